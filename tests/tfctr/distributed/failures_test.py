"""What becomes of a job when one of its ranks fails."""

import concurrent.futures
import functools
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

import keras
import numpy as np
import psutil
import pytest
import tensorflow as tf

from keras_layers import DynamicEmbedding, TableConfig
from tfctr import distributed
from tfctr.distributed import engine, failures

# Each takes a job of its own.
FAILURES = ("raise", "killed", "stalled")
RARE_FAILURES = ("finished", "astray")
EVERY_FAILURE = [
    *FAILURES,
    *(pytest.param(failure, marks=pytest.mark.soak) for failure in RARE_FAILURES),
]


def train(failure, folder):
    """Steps of which rank 1 makes five."""
    paths = [pathlib.Path(folder) / f"{failure}{rank}" for rank in range(2)]
    paths[distributed.rank()].write_text(str(os.getpid()))
    # One that begins late is not to be taken for one that stalls.
    while not all(path.exists() for path in paths):
        time.sleep(0.01)
    for step in range(1000):
        if step == 5 and distributed.rank() == 1:
            fail(failure)
        engine.all_reduce([tf.ones([1_000_000])], "gradients")


def fail(failure):
    if failure == "raise":
        # Of the threads that feed a training: Python would wait for it.
        threading.Thread(target=threading.Event().wait).start()
        raise ValueError("a bad batch")
    if failure == "killed":
        step = threading.Event()

        def kill():
            step.wait()
            os.kill(os.getpid(), signal.SIGKILL)

        threading.Thread(target=kill).start()
        step.set()  # The next step goes on while the signal comes.
    elif failure == "finished":
        sys.exit()
    elif failure == "stalled":
        time.sleep(600)
    elif failure == "astray":
        engine.all_reduce([tf.ones([3])], "other.gradients")


def predict_on_one_rank():
    """What a script must not do: a lookup of which the other ranks know nothing."""
    inputs = keras.Input((2,), dtype="int64")
    table = TableConfig("ads", 2, keras.optimizers.SGD(0.1), seed=1)
    rows = DynamicEmbedding(table, distributed.ShardedStorage())(inputs)
    model = keras.Model(inputs, rows)
    if distributed.is_main():
        model.predict(np.arange(8).reshape(4, 2), verbose=0)
    else:
        time.sleep(600)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("failures")


@pytest.fixture(scope="module")
def printed(run_ranks, folder):
    """Returns what a job has printed, by failure. That it has ended is tested, too."""

    @functools.cache
    def run_all(failures):
        with concurrent.futures.ThreadPoolExecutor() as pool:
            jobs = {failure: pool.submit(run, failure) for failure in failures}
            return {failure: job.result() for failure, job in jobs.items()}

    def run(failure):
        stalls = failure in ("stalled", "astray")
        env = {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "5"} if stalls else {}
        arguments = (failure, str(folder))
        return run_ranks(2, __file__, "train", *arguments, fails=True, env=env)

    return lambda failure: run_all(FAILURES if failure in FAILURES else RARE_FAILURES)[
        failure
    ]


@pytest.mark.multiprocess
@pytest.mark.parametrize("failure", EVERY_FAILURE)
def test_no_process_stays(printed, folder, failure):
    printed(failure)
    for rank in range(2):
        pid = int((folder / f"{failure}{rank}").read_text())
        assert not psutil.pid_exists(pid)


@pytest.mark.multiprocess
@pytest.mark.parametrize("failure", EVERY_FAILURE)
def test_errors_of_tensorflow_do_not_bury_the_message(printed, failure):
    assert "Graph execution error" not in printed(failure)


@pytest.mark.multiprocess
def test_a_rank_that_raises_says_who_it_is_and_what_to_do(printed):
    text = printed("raise")
    assert text.count("ValueError: a bad batch\n") == 1
    assert "tfctr: rank 1 of 2 has failed, by the error above, and ends the job" in text
    assert "restart with horovodrun" in text
    assert "Process name: 1\n" in text  # Horovodrun's own verdict.


@pytest.mark.multiprocess
def test_a_rank_that_is_killed_is_told(printed):
    assert "Process 1 exit with status code 137" in printed("killed")
    assert "Process name: 1\n" in printed("killed")


@pytest.mark.multiprocess
@pytest.mark.soak
def test_a_prediction_on_one_rank_ends_the_job(run_ranks):
    env = {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "5"}
    text = run_ranks(2, __file__, "predict_on_one_rank", fails=True, env=env)
    assert "table.ads.keys" in text  # What rank 1 has not called.
    assert "tfctr: rank 0 of 2 waits for a rank that is gone" in text
    assert "If Horovod tells of missing ranks instead: they stalled, or called" in text


@pytest.mark.multiprocess
@pytest.mark.soak
def test_a_rank_that_ends_before_the_others_ends_the_job(printed):
    text = printed("finished")
    assert "tfctr: rank 0 of 2 waits for a rank that is gone, at /" in text
    assert "run_rank.py:" in text
    assert "has ended since it had fewer steps" in text


def errors_of_first(text):
    """What rank 0 has printed, without the lines of others that stand among it."""
    return "".join(re.findall(r"^\[0\]<stderr>:(.*\n)", text, re.M))


@pytest.mark.multiprocess
def test_a_rank_that_stalls_is_named(printed):
    text = errors_of_first(printed("stalled"))
    assert "Missing ranks:\n1!: [gradients" in text
    assert "Horovod tells of missing ranks instead: they stalled" in text


@pytest.mark.multiprocess
@pytest.mark.soak
def test_a_collective_that_not_all_ranks_call_is_named(printed):
    text = errors_of_first(printed("astray"))
    assert "Missing ranks:\n0!: [other.gradients" in text


def run_alone(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )


def test_hooks_of_the_user_are_called_before():
    done = run_alone(
        "import sys\n"
        "from tfctr.distributed import failures\n"
        "sys.excepthook = lambda *error: print('mine', error[0].__name__)\n"
        "failures.end_with_job(2, 4)\n"
        "raise KeyError('a')\n"
    )
    assert done.returncode == 1
    assert done.stdout == "mine KeyError\n"
    assert "rank 2 of 4 has failed" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_rank_ends_when_nobody_reads_what_it_prints():
    code = (
        "import threading\n"
        "from tfctr.distributed import failures\n"
        "failures.end_with_job(0, 2)\n"
        "print('ready', flush=True)\n"
        "threading.Event().wait()\n"
    )
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=pipe, stderr=subprocess.STDOUT
    )
    assert b"ready\n" in iter(process.stdout.readline, b"")
    process.stdout.close()
    assert process.wait(60) == 1


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [
        (tf.errors.UnknownError(None, None, "Horovod has been shut down. This"), True),
        (
            tf.errors.UnknownError(
                None, None, "[/a/gloo/transport/tcp/pair.cc:589] Read error"
            ),
            True,
        ),
        (tf.errors.UnknownError(None, None, "Mismatched allreduce shapes"), False),
        (ValueError("Horovod has been shut down"), False),
    ],
)
def test_errors_of_lost_ranks_are_told_from_others(error, is_lost):
    assert failures.is_lost_rank(error) == is_lost
