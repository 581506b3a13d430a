"""An export in C++: the loader of TensorFlow Serving, linked with nothing of tfctr."""

import hashlib
import os
import pathlib
import shutil
import subprocess

import numpy as np
import pytest
import tensorflow as tf

from tfctr import training
from tfctr.config import TrainConfig
from tfctr.export import check, saved_model
from tfctr_ops import library

ROOT = pathlib.Path(__file__).resolve().parents[3]
SOURCE = pathlib.Path(__file__).with_name("serve.cc")


@pytest.fixture(scope="module")
def serve():
    """The program, compiled once for each TensorFlow and kept in `build`."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    headers, libraries = tf.sysconfig.get_include(), tf.sysconfig.get_lib()
    if compiler is None:
        pytest.skip("this machine has no C++ compiler")
    for needed in (
        f"{headers}/tensorflow/cc/saved_model/loader.h",
        f"{libraries}/libtensorflow_cc.so.2",
    ):
        if not os.path.exists(needed):
            pytest.skip(f"this TensorFlow comes without {needed}")
    # Sessions and kernels are registered by loading libtensorflow_cc, so it has to be
    # linked even where the symbols that the program names are found in another library.
    command = [
        *(compiler, "-w", "-O0", "-std=c++17", *tf.sysconfig.get_compile_flags()),
        *(str(SOURCE), f"-L{libraries}", "-Wl,--no-as-needed"),
        *("-l:libtensorflow_cc.so.2", *tf.sysconfig.get_link_flags()),
        f"-Wl,-rpath,{libraries}",
    ]
    version = f"{tf.__version__} {command} ".encode()
    name = hashlib.sha256(version + SOURCE.read_bytes()).hexdigest()[:16]
    program = ROOT / "build" / "tests" / f"serve-{name}"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        partial = program.with_suffix(f".{os.getpid()}")
        command += ["-o", str(partial)]
        subprocess.run(command, check=True)
        partial.replace(program)
    return program


def tensor_line(name, values):
    values = np.asarray(values)
    text = values.ravel().tolist()
    if values.dtype.kind in "SO":
        kind, text = "string", [word.decode() for word in text]
    else:
        kind = "float32" if values.dtype.kind == "f" else values.dtype.name
    return " ".join(map(str, [name, kind, values.ndim, *values.shape, *text]))


def as_requested(inputs):
    """Inputs as a signature takes them: ragged ones as values and row splits."""
    for name, values in inputs.items():
        if isinstance(values, tf.RaggedTensor):
            yield name, values.values
            yield f"{name}_row_splits", values.row_splits
        else:
            yield name, values


def answer(program, path, inputs, linked=""):
    lines = "\n".join(tensor_line(*each) for each in as_requested(inputs))
    done = subprocess.run(
        [program, path],
        input=lines,
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "LD_PRELOAD": str(linked)},
    )
    assert done.returncode == 0, done.stderr
    name, _, rank, *numbers = done.stdout.split()
    shape = list(map(int, numbers[: int(rank)]))
    values = np.array(numbers[int(rank) :], np.float32)
    return name, values.reshape(shape)


def test_it_links_nothing_of_tfctr(serve):
    linked = subprocess.run(["ldd", serve], capture_output=True, text=True, check=True)
    assert "libtensorflow_cc" in linked.stdout
    assert "tfctr" not in linked.stdout.replace(str(serve), "")


@pytest.mark.parametrize(
    "linked, options",
    [
        ("", {"file_size": 2000}),
        (library.path(), {"tables": "store"}),
        (library.path(), {"tables": "store", "ram": "1KB"}),
    ],
)
def test_it_predicts_as_the_model_does(serve, clicks, batch, tmp_path, linked, options):
    path = saved_model(clicks, tmp_path / "1", **options)
    inputs = batch(9, largest=100)
    # No words without letters, which a line of words cannot show.
    words = tf.where(inputs["words"] == "", "b", inputs["words"])
    inputs = {**inputs, "words": words}
    name, found = answer(serve, path, inputs, linked)
    assert name == "click"
    expected = clicks.predict_on_batch(inputs)
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.slow
def test_a_deep_fm_of_movielens_predicts_in_python_and_in_cpp(
    serve, data_dir, tmp_path
):
    if not (data_dir / "ml-1m").is_dir():
        pytest.skip(f"there is no {data_dir}/ml-1m: the files of MovieLens 1M.")
    overrides = [
        f"data.path={data_dir}/ml-1m",
        f"run.directory={tmp_path}/run",
        "run.epochs=1",
        "run.batch_size=8192",
        "run.steps_per_execution=16",
    ]
    config = TrainConfig.load(str(ROOT / "examples" / "movielens.toml"), overrides)
    model, _ = training.train(config)
    log = training.open_log(config)
    inputs, _ = next(iter(log.batches("test", 500)))
    path = saved_model(model, tmp_path / "1", examples=inputs)
    expected = model.predict_on_batch(inputs)
    assert expected.std() > 0.05  # It has learnt to tell them apart.
    _, found = answer(serve, path, inputs)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    result = check(path)
    assert result["is_equal"] and result["max_difference"] <= 1e-6
