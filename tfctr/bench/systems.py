"""The systems that can be measured: where each runs, and how to get it."""

import dataclasses
import importlib.util
import os
import pathlib
import sys
from dataclasses import dataclass, field

# Peers get huge pages from malloc where the kernel offers them, which makes most of
# them about a tenth faster. tfctr is measured as it is installed.
_HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}

ROOT = pathlib.Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Interpreter:
    """A Python to run workers in.

    Args:
        python: Path of the executable.
        needs: Paths, and names of top-level modules of this very interpreter, without
            which the system is absent.
        remedy: String. How to get what is missing.
        alone: Whether tfctr's own packages stay out of it.
        environment: Variables to set.
    """

    python: pathlib.Path
    needs: tuple[pathlib.Path | str, ...] = ()
    remedy: str = "make setup"
    alone: bool = True
    environment: dict[str, str] = field(default_factory=dict)

    def with_huge_pages(self) -> "Interpreter":
        """The same, with a malloc that asks for huge pages."""
        environment = {**self.environment, **_HUGE_PAGES}
        return dataclasses.replace(self, environment=environment)

    def missing(self) -> str | None:
        """The first thing that is missing, or `None`."""
        for need in (self.python, *self.needs):
            found = (
                need.exists()
                if isinstance(need, pathlib.Path)
                else importlib.util.find_spec(need) is not None
            )
            if not found:
                return str(need)
        return None


@dataclass(frozen=True)
class System:
    """Something to measure.

    Args:
        name: String. Its name in results.
        worker: String. The module of `tfctr.bench.workers` that runs it.
        interpreter: Where that module runs.
    """

    name: str
    worker: str
    interpreter: Interpreter

    @property
    def is_ours(self) -> bool:
        """Whether it is tfctr, without which there is no result."""
        return self.name.startswith("tfctr")


def own_interpreter(alone: bool = True) -> Interpreter:
    """This interpreter; without `alone`, with tfctr in it."""
    path = {} if alone else {"PYTHONPATH": str(ROOT)}
    return Interpreter(pathlib.Path(sys.executable), alone=alone, environment=path)


def tfra_interpreter() -> Interpreter:
    """This interpreter with Keras 2, which lies in a folder of its own."""
    keras_2 = pathlib.Path(sys.prefix) / "tf_keras"
    return Interpreter(
        pathlib.Path(sys.executable),
        needs=("tensorflow_recommenders_addons", keras_2),
        environment={"PYTHONPATH": str(keras_2), "TF_USE_LEGACY_KERAS": "1"},
    )


def peers_interpreter(environment: str, package: str) -> Interpreter:
    """An environment made by `make peers`, once `package` has arrived in it."""
    folder = ROOT / environment
    minor = f"python{sys.version_info.major}.{sys.version_info.minor}"
    installed = folder / "lib" / minor / "site-packages" / package
    return Interpreter(
        folder / "bin" / "python", needs=(installed,), remedy="make peers"
    )


def torch_interpreter() -> Interpreter:
    return peers_interpreter(".venv-peers", "fbgemm_gpu").with_huge_pages()


def variables(interpreter: Interpreter, threads: int) -> dict[str, str]:
    """The environment of a worker: ours, without what would make runs differ."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    fixed = {
        "CUDA_VISIBLE_DEVICES": "-1",
        "KERAS_BACKEND": "tensorflow",
        "OMP_NUM_THREADS": str(threads),
        "PYTHONHASHSEED": "0",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    return {**inherited, **fixed, **interpreter.environment}


def fbgemm() -> System:
    return System("fbgemm", "fbgemm", torch_interpreter())


def keras_embedding() -> System:
    return System("keras", "keras_embedding", own_interpreter().with_huge_pages())


def tf_variable() -> System:
    return System("tf_variable", "tf_variable", own_interpreter().with_huge_pages())


def rocksdb() -> System:
    home = peers_interpreter(".venv-peers-rocksdb", "rocksdict").with_huge_pages()
    return System("rocksdb", "read_rocksdb", home)


def tfctr(worker: str, name: str = "tfctr") -> System:
    """Ours; where several of them are measured, each has a `name` that says how."""
    return System(name, worker, own_interpreter(alone=False))


def saved_model(name: str) -> System:
    """A server of an export, with TensorFlow alone, whoever made the export."""
    return System(name, "serve_export", own_interpreter())


def tfctr_over_tfra(name: str) -> System:
    """Ours with a storage that has TFRA's table, and gets the malloc of the peer."""
    home = dataclasses.replace(
        own_interpreter(alone=False), needs=("tensorflow_recommenders_addons",)
    )
    return System(name, name, home.with_huge_pages())


def tfra_bare() -> System:
    """TFRA's table alone, in the environment of our layer above it."""
    return dataclasses.replace(
        tfctr_over_tfra("tfctr_tfra"), name="tfra_bare", worker="tfra_bare"
    )


def tfra(worker: str) -> System:
    return System("tfra", worker, tfra_interpreter().with_huge_pages())


def tfra_growing() -> System:
    """As it is installed: huge pages would be charged to its memory."""
    return System("tfra", "grow_tfra", tfra_interpreter())


def deepctr() -> System:
    home = peers_interpreter(".venv-peers-tf", "deepctr")
    # While it is imported it asks the package index for newer versions of itself. A
    # proxy that is not there keeps the benchmark off the network.
    offline = {"https_proxy": "http://127.0.0.1:9"}
    home = dataclasses.replace(home, environment=offline).with_huge_pages()
    return System("deepctr", "fit_deepctr", home)


def torch_model() -> System:
    return System("torch_fbgemm", "fit_torch", torch_interpreter())
