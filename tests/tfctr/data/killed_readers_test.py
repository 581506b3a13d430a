"""Readers of jobs that are killed amid an epoch go on, and each row comes once."""

import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import threading

import keras
import pytest
import tensorflow as tf

from helpers import log_files
from tfctr import distributed
from tfctr.callbacks import Checkpoint
from tfctr.data import (
    Avazu,
    Criteo,
    FeatureDeclaration,
    MovieLens,
    ParquetLog,
    Position,
    SyntheticClickLog,
    TFRecordLog,
    text_blocks,
    tf_record,
)

ROOT = pathlib.Path(__file__).resolve().parents[3]
ROWS, TRAIN_ROWS = 400, 360
EPOCHS, SOAK_EPOCHS = 2, 40
STEPS = 12  # The last batch of an epoch is uneven.
# The newest whole checkpoint lies in the middle of the second epoch.
EVERY, KILLED_AT = 5, 2 * STEPS - 5


def write_logs(directory, movielens_path):
    """Writes files of rows that are numbered in one of their columns."""
    criteo = [line.split("\t") for line in log_files.criteo_lines(ROWS)]
    avazu = [line.split(",") for line in log_files.avazu_lines(ROWS)]
    for row in range(ROWS):
        criteo[row][1] = avazu[row][16] = str(row)
    lines = ["\t".join(fields) for fields in criteo]
    for name in ("criteo", "criteo_gz", "parquet", "tfrecord"):
        (directory / name).mkdir()
    log_files.write_lines(directory / "criteo" / "day_0", lines[:150])
    log_files.write_lines(directory / "criteo" / "day_1", lines[150:])
    log_files.write_lines(directory / "criteo_gz" / "train.gz", lines)
    lines = [log_files.AVAZU_HEADER, *map(",".join, avazu)]
    log_files.write_lines(directory / "avazu", lines)
    rows = [{**log_files.WHOLE, "user": row} for row in range(ROWS)]
    log_files.write_parquet(directory / "parquet" / "a", rows[:170])
    log_files.write_parquet(directory / "parquet" / "b", rows[170:])
    log_files.write_records(directory / "tfrecord" / "a", rows[:170])
    log_files.write_records(directory / "tfrecord" / "b", rows[170:])
    movielens_path.rename(directory / "movielens")


def open_logs(directory):
    """Opens all of them, in blocks and windows that are small against the logs."""
    text_blocks.BLOCK_BYTES, text_blocks._READ_BYTES = 8_000, 2_000
    tf_record._BLOCK_RECORDS = 50
    directory = pathlib.Path(directory)
    rest = {"shuffle_rows": 100}
    in_parquet, in_criteo, in_avazu = (
        [FeatureDeclaration("row", column=column)] for column in ("user", "I1", "C14")
    )
    return {
        "criteo": Criteo(directory / "criteo", in_criteo, **rest),
        "criteo_gz": Criteo(directory / "criteo_gz", in_criteo, **rest),
        "avazu": Avazu(directory / "avazu", in_avazu, **rest),
        "parquet": ParquetLog(directory / "parquet", in_parquet, **rest),
        "tfrecord": TFRecordLog(directory / "tfrecord", in_parquet, **rest),
        "movielens": MovieLens(directory / "movielens"),
        "synthetic": SyntheticClickLog(ROWS, fields=1, num_dense=1),
    }


def numbers_of(kind, inputs):
    """Returns what tells the rows of a batch from all others."""
    if kind == "movielens":
        return (inputs["user"] * 1000 + inputs["movie"]).numpy().tolist()
    return inputs["dense" if kind == "synthetic" else "row"].numpy().ravel().tolist()


class Recorder(keras.Model):
    """Writes the rows of each step down, and learns nothing."""

    def __init__(self, path):
        super().__init__()
        self.record = path
        self.seen_steps = 0
        self.dense = keras.layers.Dense(1)
        self.dense.build((None, 1))
        self.built = True

    def train_step(self, batches):
        rows = {}
        for kind, batch in batches.items():
            inputs, labels, weights = keras.utils.unpack_x_y_sample_weight(batch)
            # An example of weight 0 is another rank's.
            own = [True] * len(labels) if weights is None else (weights > 0).numpy()
            numbers = zip(numbers_of(kind, inputs), own, strict=True)
            rows[kind] = [number for number, is_own in numbers if is_own]
        with self.record.open("a") as file:
            file.write(json.dumps([self.seen_steps, rows]) + "\n")
        self.seen_steps += 1
        return {"loss": 0.0}


class Killed(keras.callbacks.Callback):
    """Ends the last rank as the system would.

    Args:
        recorder: `Recorder`.
        step: Integer. After this step; or
        seconds: Float. so long after the first one, whatever it does then.
    """

    def __init__(self, recorder, step=None, seconds=None):
        super().__init__()
        self.recorder, self.step, self.seconds = recorder, step, seconds
        self.is_it = distributed.rank() + 1 == distributed.size()

    def on_train_batch_end(self, batch, logs=None):
        if self.is_it and self.recorder.seen_steps == self.step:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.is_it and self.seconds is not None and batch == 0:
            kill = (os.getpid(), signal.SIGKILL)
            threading.Timer(self.seconds, os.kill, kill).start()


def read(directory, run, epochs=EPOCHS, killed_at=None, killed_after=None):
    """Reads all logs side by side, from the newest checkpoint on.

    Args:
        directory: String. Holds the logs, and gets checkpoints and what was read.
        run: Integer. Number of this attempt.
        epochs: Integer. Of the logs.
        killed_at: Integer. Step after which the last rank is killed.
        killed_after: Float. Seconds after the first step, at which it is.
    """
    logs = open_logs(directory)
    model = Recorder(pathlib.Path(directory) / f"run-{run}.{distributed.rank()}")
    optimizer = distributed.DistributedOptimizer(keras.optimizers.SGD())
    model.compile(optimizer, run_eagerly=True)
    checkpoint = Checkpoint(f"{directory}/checkpoints", every=EVERY)

    def batches(step):
        position = Position().advanced(step, STEPS)
        return tf.data.Dataset.zip(
            {
                kind: distributed.shard(
                    log.batches("train", batch_size(log), 7, position, epochs)
                )
                for kind, log in logs.items()
            }
        )

    # The log's epochs are one of Keras'.
    dataset, _ = checkpoint.resume(model, batches)
    first = model.seen_steps = checkpoint.step
    callbacks = [checkpoint, Killed(model, killed_at, killed_after)]
    model.fit(dataset, epochs=1, shuffle=False, verbose=0, callbacks=callbacks)
    return first


def batch_size(log):
    size = -(-log.num_examples("train") // STEPS) + 1
    assert log.steps_per_epoch("train", size) == STEPS
    return size


@pytest.fixture
def logs(tmp_path, movielens_path):
    pytest.importorskip("pyarrow")
    write_logs(tmp_path, movielens_path)
    return tmp_path


@pytest.fixture
def start(request, tmp_path_factory):
    """Calls `read` in processes of its own: the first step of each rank, or `None`."""

    def start(ranks, *arguments, fails=False):
        if ranks > 1:
            run_ranks = request.getfixturevalue("run_ranks")
            found = run_ranks(ranks, __file__, "read", *arguments, fails=fails)
            if fails:  # By the signal, and by nothing else.
                assert re.search(r"Process 1 exit with status code 137\b", found), found
            return None if fails else found
        results = tmp_path_factory.mktemp("results")
        command = [sys.executable, ROOT / "tests/run_rank.py", __file__, "read"]
        process = subprocess.run(
            [*command, json.dumps(arguments), results], timeout=300, cwd=ROOT
        )
        assert process.returncode == (-signal.SIGKILL if fails else 0)
        return None if fails else [json.loads((results / "0.json").read_text())]

    return start


def steps_of(directory, run, ranks):
    """Returns the rows of each step that an attempt came to, those of all ranks."""
    steps = {}
    for rank in range(ranks):
        path = directory / f"run-{run}.{rank}"
        # A line that is not whole is of a step after the last checkpoint.
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        for step, rows in map(json.loads, lines):
            for kind, numbers in rows.items():
                steps.setdefault(step, {}).setdefault(kind, []).extend(numbers)
    return steps


def assert_each_row_came_once(directory, ranks, firsts, epochs=EPOCHS):
    """`firsts`: the first step of each attempt."""
    seen = {}
    for run, first in enumerate(firsts):
        seen = {step: rows for step, rows in seen.items() if step < first}
        later = steps_of(directory, run, ranks)
        assert not seen.keys() & later.keys()
        seen |= later
    assert sorted(seen) == list(range(epochs * STEPS))
    for kind, log in open_logs(directory).items():
        [(inputs, _)] = log.batches("train", log.num_examples("train"))
        expected = sorted(numbers_of(kind, inputs))
        if kind not in ("movielens", "synthetic"):
            assert expected == list(range(TRAIN_ROWS))
        assert len(set(expected)) == len(expected)
        for epoch in range(epochs):
            steps = range(epoch * STEPS, (epoch + 1) * STEPS)
            assert sorted(n for step in steps for n in seen[step][kind]) == expected


@pytest.fixture
def _small_blocks_of_logs(monkeypatch):
    """Takes back what `open_logs` sets in this process."""
    for module, name in (
        (text_blocks, "BLOCK_BYTES"),
        (text_blocks, "_READ_BYTES"),
        (tf_record, "_BLOCK_RECORDS"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name))


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.usefixtures("_small_blocks_of_logs")
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_killed_job_goes_on_and_every_row_comes_once(logs, start, ranks):
    start(ranks, str(logs), 0, EPOCHS, KILLED_AT, fails=True)
    firsts = start(ranks, str(logs), 1)
    assert len(set(firsts)) == 1
    assert firsts[0] in (10, 15)  # The newest may not have been complete.
    assert_each_row_came_once(logs, ranks, [0, firsts[0]])


@pytest.mark.soak
@pytest.mark.multiprocess
@pytest.mark.usefixtures("_small_blocks_of_logs")
@pytest.mark.parametrize("ranks", [1, 2])
def test_jobs_killed_again_and_again_read_every_row_once(logs, start, ranks):
    chance = random.Random(ranks)
    firsts = []
    for run in range(4):
        seconds = chance.uniform(0, 0.6)
        start(ranks, str(logs), run, SOAK_EPOCHS, None, seconds, fails=True)
        steps = Checkpoint(logs / "checkpoints").directory.steps()
        firsts.append(steps[-1] if steps else 0)
    [first, *_] = start(ranks, str(logs), len(firsts), SOAK_EPOCHS)
    assert first == firsts[-1]
    assert_each_row_came_once(logs, ranks, [0, *firsts], SOAK_EPOCHS)
