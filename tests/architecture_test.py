"""The architecture, as tests: who may know whom, and what nobody may do."""

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Bottom to top. A package may import itself and the packages below it.
PACKAGES = ("tfctr_ops", "keras_layers", "tfctr")
# Frameworks that a package must not know, above what it stands on.
FOREIGN = {
    "tfctr_ops": ("keras", "tf_keras", "horovod", "tensorflow_recommenders_addons"),
    "keras_layers": ("tf_keras", "horovod"),
    "tfctr": (),
}
# What each part of tfctr may import of tfctr, besides itself.
PARTS = {
    "topology": (),
    "metrics": (),
    "distributed": (),
    # What an input is: data delivers it, models take it.
    "feature": (),
    # Of which columns of a file it is made.
    "declaration": ("feature",),
    "data": ("declaration", "feature"),
    "models": ("feature",),
    "checkpoint": ("distributed",),
    # The rows of sharded tables come together on one rank.
    "export": ("checkpoint", "distributed"),
    "optimizers": ("distributed",),
    "report": (),
    "callbacks": ("optimizers", "checkpoint", "metrics", "distributed", "report"),
    "config": ("declaration",),
    "migration": (),
    # The one module that knows them all.
    "training": (
        "builders",
        "callbacks",
        "checkpoint",
        "config",
        "data",
        "distributed",
        "export",
        "metrics",
        "models",
        "optimizers",
        "topology",
    ),
    "builders": ("config", "data", "distributed", "models", "optimizers"),
    "exporting": ("builders", "checkpoint", "config", "export"),
    "study": ("callbacks", "config", "optimizers", "training"),
    "progressive": (
        "builders",
        "callbacks",
        "checkpoint",
        "config",
        "data",
        "distributed",
        "metrics",
        "training",
    ),
    # Its workers measure whole models.
    "bench": (
        "data",
        "distributed",
        "export",
        "feature",
        "models",
        "optimizers",
        "topology",
    ),
    "commands": (
        "bench",
        "checkpoint",
        "config",
        "data",
        "distributed",  # Of several ranks, one prints.
        "export",
        "exporting",
        "metrics",
        "migration",
        "progressive",
        "report",
        "study",
        "topology",
        "training",
    ),
    "cli": ("commands",),
    "__main__": ("cli",),
    "__init__": (),
}
PRIVATE = ("tensorflow.python", "tensorflow.core", "keras.src", "tf_keras.src")
# TFRA stands on private names of TensorFlow, and so does what plugs into it.
MAY_USE_PRIVATE = "keras_layers/storage/tfra/"

MAX_LINES = 400
LONG_FILES = {
    "keras_layers/dynamic_embedding.py": (
        "One Keras layer, whose hooks cannot be spread over files; what could leave it "
        "stands in feature_ids, pooling, table_group, table_lookup and table_saving."
    ),
}
MAX_ARGUMENTS = 6
LONG_CONSTRUCTORS: dict[str, str] = {
    "keras_layers/storage/tiered_storage.py:TieredStorage": (
        "Each tier and its limit is one thing that people set, by the name that the "
        "configurations of saved models have."
    ),
    "tfctr/models/dcn_v2.py:DCNv2": (
        "The sizes of its experts stand beside those of every network, one by one, as "
        "the configuration of a training run names them."
    ),
    "tfctr/optimizers/cow_clip.py:CowClip": (
        "A Keras optimizer takes its hyperparameters one by one, as `get_config` gives "
        "them and `model.save` writes them."
    ),
    "tfctr/optimizers/k_step_adam.py:KStepAdam": (
        "A Keras optimizer takes its hyperparameters one by one, as `get_config` gives "
        "them and `model.save` writes them."
    ),
    "tfctr/data/timed_log.py:TimedLog": (
        "What `ParquetLog` takes, by the same names, and beside it the time, the item "
        "and the negatives, of which the last two may be left out."
    ),
}


def files_in(*folders):
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def in_repository(path):
    return path.relative_to(ROOT).as_posix()


SOURCES = pytest.mark.parametrize("path", files_in(*PACKAGES), ids=in_repository)


def imports(path):
    """Yields the full dotted name, and the line, of everything a file imports."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package[: len(package) + 1 - node.level] if node.level else ()
            module = ".".join([*parts, *([node.module] if node.module else [])])
            # What is imported from a package may be a module of it.
            yield from ((f"{module}.{alias.name}", node.lineno) for alias in node.names)


def is_within(name, modules):
    return any(name == module or name.startswith(f"{module}.") for module in modules)


@SOURCES
def test_imports_point_downwards(path):
    package = path.relative_to(ROOT).parts[0]
    above = PACKAGES[PACKAGES.index(package) + 1 :]
    for name, line in imports(path):
        assert not is_within(name, above), (
            f"{in_repository(path)}:{line} imports {name}, but {package} lies below "
            f"it. Order, bottom to top: {' <- '.join(PACKAGES)}. Move the code down, "
            "or pass the object in as an argument."
        )
        assert not is_within(name, FOREIGN[package]), (
            f"{in_repository(path)}:{line} imports {name}, which {package} must not "
            "know. Move the code to a package above."
        )


@pytest.mark.parametrize("path", files_in("tfctr"), ids=in_repository)
def test_parts_of_tfctr_know_only_those_below_them(path):
    part = path.relative_to(ROOT / "tfctr").parts[0].removesuffix(".py")
    assert part in PARTS, (
        f"tfctr/{part} has no line in PARTS of tests/architecture_test.py. Add one, "
        "with the parts that it may import."
    )
    for name, line in imports(path):
        root, _, rest = name.partition(".")
        other = rest.partition(".")[0]
        if root == "tfctr" and other in PARTS:
            assert other in (part, *PARTS[part]), (
                f"{in_repository(path)}:{line} imports {name}, but {part} may import "
                f"only {list(PARTS[part]) or 'itself'} of tfctr. Pass the object in as "
                "an argument, or move what both need to a package below tfctr."
            )


def test_the_parts_of_tfctr_have_an_order():
    known = []
    while len(known) < len(PARTS):
        ready = [
            part
            for part, below in PARTS.items()
            if part not in known and set(below) <= set(known)
        ]
        assert ready, f"These import each other: {sorted(set(PARTS) - set(known))}."
        known += ready


@pytest.mark.parametrize(
    "path", files_in(*PACKAGES, "tests", "examples", "tools"), ids=in_repository
)
def test_nothing_private_of_the_frameworks_is_used(path):
    if in_repository(path).startswith(MAY_USE_PRIVATE):
        return
    used = [
        *imports(path),
        *(
            (ast.unparse(node), node.lineno)
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Attribute)
        ),
    ]
    for name, line in used:
        assert not is_within(name, PRIVATE), (
            f"{in_repository(path)}:{line} uses {name}, which is private and changes "
            "without notice. Use the public `tf.` or `keras.` name."
        )


def cc_files():
    folder = ROOT / "tfctr_ops" / "cc"
    return sorted(path for end in ("*.h", "*.cc") for path in folder.rglob(end))


@pytest.mark.parametrize("path", [*files_in(*PACKAGES), *cc_files()], ids=in_repository)
def test_a_file_fits_in_one_sitting(path):
    lines, name = len(path.read_text().splitlines()), in_repository(path)
    assert lines <= MAX_LINES or name in LONG_FILES, (
        f"{name} has {lines} lines; the limit is {MAX_LINES}. Split it by ideas, or "
        "give it a line in LONG_FILES that says why it is one."
    )
    assert lines > MAX_LINES or name not in LONG_FILES, (
        f"{name} has only {lines} lines by now. Take its line out of LONG_FILES."
    )


@SOURCES
def test_constructors_stay_small(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ClassDef):
            continue
        name = f"{in_repository(path)}:{node.name}"
        count = max(
            (
                len(f.args.posonlyargs) + len(f.args.args) - 1 + len(f.args.kwonlyargs)
                for f in node.body
                if isinstance(f, ast.FunctionDef) and f.name == "__init__"
            ),
            default=0,
        )
        assert count <= MAX_ARGUMENTS or name in LONG_CONSTRUCTORS, (
            f"{name} takes {count} arguments; the limit is {MAX_ARGUMENTS}. Group them "
            "in a dataclass, drop what no workflow sets, or give it a line in "
            "LONG_CONSTRUCTORS that says why."
        )
        assert count > MAX_ARGUMENTS or name not in LONG_CONSTRUCTORS, (
            f"{name} takes only {count} arguments by now. Take its line out of "
            "LONG_CONSTRUCTORS."
        )


def test_exceptions_name_what_exists():
    for name in [*LONG_FILES, *LONG_CONSTRUCTORS]:
        assert (ROOT / name.partition(":")[0]).exists(), f"{name} does not exist."


@pytest.mark.parametrize(
    "path",
    [path for path in cc_files() if path.parent.name == "store"],
    ids=in_repository,
)
def test_the_store_is_plain_cc(path):
    for name in re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)', path.read_text(), re.M):
        # Headers of the system are flat, or lie in sys/ and the like.
        assert name.startswith("tfctr_ops/cc/store/") or not re.match(
            r"(tensorflow|absl|tsl|Eigen|tfctr_ops|google)/", name
        ), (
            f"{in_repository(path)} includes {name}. Only cc/kernels and cc/ops may, "
            "so that the store compiles in seconds and runs under the sanitizers alone."
        )
