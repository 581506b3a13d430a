"""What every test starts from: fixed seeds, a quiet TensorFlow, known hardware."""

import gc
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

# Read when the frameworks are imported.
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import pytest
import tensorflow as tf

ROOT = pathlib.Path(__file__).resolve().parent.parent

tf.get_logger().setLevel("ERROR")


def pytest_collection_modifyitems(items):
    if tf.config.list_physical_devices("GPU"):
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="this machine has no GPU"))


@pytest.fixture(autouse=True)
def _fixed_seeds():
    keras.utils.set_random_seed(0)


@pytest.fixture(scope="module", autouse=True)
def _few_objects_to_look_at():
    """Keeps the collector from what Keras and TensorFlow hold for good.

    Of some hundred modules that is most of a process, and a look at all of it takes
    seconds.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def data_dir():
    """The folder of the public data sets, which are no part of the repository."""
    asked = os.environ.get("TFCTR_DATA")
    path = pathlib.Path(asked) if asked else ROOT.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip(
            f"there is no folder {path}. Set TFCTR_DATA to the folder that holds the "
            "data sets, each in a folder of its own, such as ml-1m."
        )
    return path


@pytest.fixture(scope="session")
def horovodrun():
    """Runs a Python program on several ranks.

    `horovodrun(n, *arguments)` returns what `python *arguments` printed on all n ranks.
    With `fails=True`, the job must fail. `env` is added to the environment. With
    `hosts=two_hosts`, the job starts on the first of two hosts.
    """
    if importlib.util.find_spec("horovod") is None:
        pytest.skip("this environment has no Horovod, which goes with the pinned stack")

    def run(num_ranks, *arguments, fails=False, timeout=300, env=None, hosts=None):
        command = [
            pathlib.Path(sys.executable).with_name("horovodrun"),
            *("-np", str(num_ranks), *(hosts.options if hosts else ())),
            # Jobs of one user that begin together break each other's cache.
            "--disable-cache",
            # Else a rank waits for the start of the others 30 seconds only.
            *("--start-timeout", "120", "--gloo-timeout-seconds", "120"),
            *(sys.executable, *arguments),
        ]
        process = subprocess.run(
            hosts.on(0, *command) if hosts else command,
            cwd=ROOT,
            env={**(hosts.env if hosts else os.environ), **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
        )
        assert (process.returncode != 0) == fails, process.stdout
        return process.stdout

    return run


@pytest.fixture(scope="session")
def run_ranks(horovodrun, tmp_path_factory):
    """Calls a function of a test file on several ranks.

    `run_ranks(n, __file__, "function", *arguments)` returns what it returned on each of
    the n ranks, that of rank 0 first. Arguments and results pass through JSON. With
    `fails=True`, what the job printed is returned. Options are those of `horovodrun`.
    """

    def run(num_ranks, file, function, *arguments, fails=False, **options):
        results = tmp_path_factory.mktemp("ranks")
        printed = horovodrun(
            num_ranks,
            *(ROOT / "tests/run_rank.py", file, function),
            *(json.dumps(arguments), results),
            fails=fails,
            **options,
        )
        if fails:
            return printed
        return [
            json.loads((results / f"{rank}.json").read_text())
            for rank in range(num_ranks)
        ]

    return run
