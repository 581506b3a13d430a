"""`Checkpoint`: which checkpoints there are, what is refused, and disks that fail."""

import re
import shutil
import subprocess
import sys
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import DynamicEmbedding, FeatureConfig, TableConfig
from tfctr.callbacks import Checkpoint
from tfctr.callbacks.checkpoint_writer import CheckpointWriter
from tfctr.checkpoint import CheckpointDirectory, write_dense

# Which checkpoints there are.


@pytest.fixture
def make_checkpoint(tmp_path):
    """Makes a `Checkpoint`, whose lock is let go when its training has failed."""
    made = []

    def make(**options):
        made.append(Checkpoint(tmp_path, **options))
        return made[-1]

    yield make
    for checkpoint in made:
        checkpoint.directory.unlock()


class Tiny:
    """A model of one table, four batches an epoch, and no chance in it."""

    def __init__(self):
        table = TableConfig(
            "ads", 2, keras.optimizers.SGD(1.0), initializer="zeros", seed=1
        )
        self.layer = DynamicEmbedding(FeatureConfig(table), name="embedding")
        self.model = keras.Sequential(
            [
                keras.Input((), dtype="int64"),
                self.layer,
                keras.layers.Dense(1, kernel_initializer="ones", name="head"),
            ]
        )
        self.model.compile(keras.optimizers.SGD(0.01), "mean_squared_error")

    def fit(self, *callbacks, epochs=1):
        data = tf.data.Dataset.from_tensor_slices((np.arange(16), np.ones((16, 1))))
        self.model.fit(
            data.batch(4), epochs=epochs, callbacks=callbacks, shuffle=False, verbose=0
        )

    def rows(self):
        return self.layer.read_rows(np.arange(16)).numpy().tobytes()

    def dense(self):
        weights = map(keras.ops.convert_to_numpy, self.model.variables)
        return [weight.tobytes() for weight in weights]


class Each(keras.callbacks.Callback):
    """Calls a function after each step or epoch."""

    def __init__(self, batch=None, epoch=None):
        super().__init__()
        self.batch, self.epoch = batch, epoch

    def on_train_batch_end(self, batch, logs=None):
        if self.batch:
            self.batch(batch)

    def on_epoch_end(self, epoch, logs=None):
        if self.epoch:
            self.epoch(epoch)


@pytest.mark.parametrize(
    "options, epochs, steps",
    [
        ({}, 3, [8, 12]),  # One an epoch; the two newest stay.
        ({"keep": 9}, 3, [4, 8, 12]),
        ({"keep": 1}, 3, [12]),
        ({"every": 3, "keep": 9}, 2, [3, 6, 8]),  # And at the end.
        ({"every": 100}, 2, [8]),
    ],
)
def test_checkpoints_are_made_and_stay_as_asked(tmp_path, options, epochs, steps):
    checkpoint = Checkpoint(tmp_path / "deep" / "saved", **options)
    Tiny().fit(checkpoint, epochs=epochs)
    assert checkpoint.directory.steps() == steps
    names = sorted(path.name for path in checkpoint.directory.path.glob("step-*"))
    assert names == [f"step-{step:012d}" for step in steps]


def test_unchanged_rows_are_not_written_again(tmp_path):
    tiny = Tiny()
    # Sixteen rows in the first epoch; the second begins with four of them.
    checkpoint = Checkpoint(tmp_path, every=1, keep=99)
    tiny.fit(checkpoint, epochs=2)
    written = [
        checkpoint.directory.read_state(step)["tables"][0][0]
        for step in checkpoint.directory.steps()
    ]
    assert [counts["rows"] for counts in written] == [4, 8, 12, *[16] * 5]
    assert [counts["rows_written"] for counts in written] == [4] * 8


def test_a_checkpoint_of_a_progressive_run_is_refused_before_the_model_changes(
    tmp_path,
):
    trained, fresh = Tiny(), Tiny()
    trained.fit()
    writer = CheckpointWriter(CheckpointDirectory(tmp_path), keep=1)
    writer.begin(trained.model, {"step": 4, "epoch": 1, "batch": 0, "config": {}})
    writer.finish()
    before = fresh.rows(), fresh.dense()
    assert before != (trained.rows(), trained.dense())
    message = (
        "`Checkpoint` resumes what a `Checkpoint` has saved. Received: "
        f"'{tmp_path}/step-000000000004', of a progressive run. Go on with it by "
        "`tfctr train`, or take its weights: tfctr.checkpoint.restore_weights."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        Checkpoint(tmp_path).resume(fresh.model, tf.data.Dataset.range(4))
    assert (fresh.rows(), fresh.dense()) == before


class Scores(keras.callbacks.Callback):
    """Logs given numbers as `val_auc`, and remembers the model of each epoch."""

    def __init__(self, tiny, scores):
        super().__init__()
        self.tiny, self.scores, self.seen = tiny, scores, []

    def on_epoch_end(self, epoch, logs=None):
        logs["val_auc"] = self.scores[epoch]
        self.seen.append((self.tiny.rows(), self.tiny.dense()))


@pytest.mark.parametrize(
    "scores, mode, best",
    [
        ([0.6, 0.8, 0.7, 0.75, 0.8], None, 1),  # The first of equals.
        ([0.6, 0.5, 0.7, 0.75, 0.8], "min", 1),
        ([0.6, 0.7, 0.8], "max", 2),
    ],
)
def test_the_best_epoch_comes_back_with_its_rows(tmp_path, scores, mode, best):
    tiny = Tiny()
    seen = Scores(tiny, scores)
    checkpoint = Checkpoint(tmp_path, keep=1, restore_best="val_auc", mode=mode)
    tiny.fit(seen, checkpoint, epochs=len(scores))
    assert len({rows for rows, _ in seen.seen}) == len(scores)
    assert (tiny.rows(), tiny.dense()) == seen.seen[best]
    # The best stays, though only the newest was asked for.
    steps = sorted({4 * (best + 1), 4 * len(scores)})
    assert checkpoint.directory.steps() == steps


def test_the_best_epoch_of_a_broken_run_counts(tmp_path):
    first, second = Tiny(), Tiny()
    seen = Scores(first, [0.9, 0.5])
    options = {"keep": 1, "restore_best": "val_auc"}
    checkpoint = Checkpoint(tmp_path, **options)
    # As if it had died after the second epoch.
    checkpoint.on_train_end = lambda logs=None: None
    first.fit(seen, checkpoint, epochs=2)
    checkpoint._writer.finish()
    checkpoint.directory.unlock()
    again = Checkpoint(tmp_path, **options)
    data = tf.data.Dataset.from_tensor_slices((np.arange(16), np.ones((16, 1))))
    data, initial_epoch = again.resume(second.model, data.batch(4))
    assert (initial_epoch, again.step) == (2, 8)
    second.model.fit(
        data,
        initial_epoch=2,
        epochs=3,
        callbacks=[Scores(second, [None, None, 0.6]), again],
        shuffle=False,
        verbose=0,
    )
    assert (second.rows(), second.dense()) == seen.seen[0]


def test_a_loss_is_best_when_it_is_lowest(tmp_path):
    tiny = Tiny()
    rows = []
    # The model learns, so that the last epoch has the lowest loss, and the first not.
    tiny.fit(
        Each(epoch=lambda epoch: rows.append(tiny.rows())),
        Checkpoint(tmp_path, restore_best="loss"),
        epochs=3,
    )
    assert tiny.rows() == rows[-1]


def test_the_best_is_kept_until_a_better_one_is_written(tmp_path, monkeypatch):
    tiny = Tiny()
    checkpoint = Checkpoint(tmp_path, every=1, keep=1, restore_best="val_auc")
    remove, removed = checkpoint.directory.remove, []

    def note(step):
        newest = checkpoint.directory.steps()[-1]
        best = checkpoint.directory.read_state(newest)["best"]
        assert best is None or best[1] != step
        removed.append(step)
        remove(step)

    def slow(path, arrays):
        time.sleep(0.3)  # Still being written when the epoch ends.
        write_dense(path, arrays)

    monkeypatch.setattr(checkpoint.directory, "remove", note)
    monkeypatch.setattr("tfctr.callbacks.checkpoint_writer.write_dense", slow)
    tiny.fit(Scores(tiny, [0.6, 0.7, 0.8]), checkpoint, epochs=3)
    assert removed


# What is refused.


def refuses(error, message):
    return pytest.raises(error, match=re.escape(message))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"every": 0}, "`every` must be a positive integer. Received: every=0."),
        ({"keep": "2"}, "`keep` must be a positive integer. Received: keep='2'."),
        ({"keep": 0}, "`keep` must be a positive integer. Received: keep=0."),
        ({"mode": "up"}, "`mode` must be 'min', 'max' or None. Received: mode='up'."),
    ],
)
def test_arguments_are_checked(tmp_path, options, message):
    with refuses(ValueError, message):
        Checkpoint(tmp_path, **options)


def test_a_metric_that_nobody_logs_is_refused(make_checkpoint):
    message = (
        "`restore_best` must name a metric that is logged at the end of an epoch: "
        "'loss'. Received: restore_best='val_auc'."
    )
    with refuses(ValueError, message):
        Tiny().fit(make_checkpoint(restore_best="val_auc"))


def test_a_model_that_is_not_built_is_refused(tmp_path):
    model = keras.Sequential([keras.layers.Dense(1)], name="late")
    message = (
        "A model has tables to restore once it is built. Received: model 'late', not "
        "built. Call it on one batch before `resume`."
    )
    with refuses(ValueError, message):
        Checkpoint(tmp_path).resume(model, tf.data.Dataset.range(1))


def test_a_training_from_the_start_overwrites_no_checkpoints(tmp_path):
    Tiny().fit(Checkpoint(tmp_path))
    message = (
        f"The training begins with step 0, but '{tmp_path}' has checkpoints up to step "
        "4. Continue it with `dataset, initial_epoch = checkpoint.resume(model, "
        "dataset)` before `fit`, or name another directory."
    )
    tiny = Tiny()
    with refuses(ValueError, message):
        tiny.fit(Checkpoint(tmp_path))
    assert tiny.layer.size() == 0


def test_another_process_cannot_write_to_the_directory(tmp_path):
    lock = (
        "import fcntl, sys; file = open(sys.argv[1], 'w'); "
        "fcntl.flock(file, fcntl.LOCK_EX); print('locked', flush=True); input()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", lock, str(tmp_path / "LOCK")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout.readline() == b"locked\n"
        tiny = Tiny()
        message = f"Received: '{tmp_path}', which another process is writing to."
        with refuses(ValueError, message):
            tiny.fit(Checkpoint(tmp_path))
        assert tiny.layer.size() == 0
        process.communicate(b"\n")
    tiny.fit(Checkpoint(tmp_path))


def test_what_a_dead_process_left_is_removed(tmp_path):
    draft = tmp_path / "step-000000000002.draft"
    (draft / "layer-0").mkdir(parents=True)
    (draft / "dense.npz").write_bytes(b"half")
    checkpoint = Checkpoint(tmp_path)
    Tiny().fit(checkpoint)
    assert checkpoint.directory.steps() == [4]
    assert not draft.exists()


# Disks and files that fail.


def resume(tiny, directory):
    data = tf.data.Dataset.from_tensors((np.arange(4), np.ones((4, 1))))
    return Checkpoint(directory).resume(tiny.model, data)


@pytest.fixture
def saved(tmp_path):
    """The checkpoints of steps 4 and 8."""
    Tiny().fit(Checkpoint(tmp_path), epochs=2)
    return tmp_path / "step-000000000008"


def flip(path, offset):
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def test_a_damaged_file_is_named_with_the_way_back(saved):
    flip(saved / "dense.npz", 100)
    older = saved.with_name("step-000000000004")
    message = (
        f"The checkpoint before it is '{older}': remove '{saved}' to go back to it."
    )
    tiny = Tiny()
    with refuses(ValueError, f"'{saved / 'dense.npz'}' is damaged: expected SHA-256"):
        resume(tiny, saved.parent)
    with refuses(ValueError, message):
        resume(tiny, saved.parent)
    assert tiny.layer.size() == 0
    shutil.rmtree(saved)
    _, initial_epoch = resume(tiny, saved.parent)
    assert initial_epoch == 1
    assert tiny.layer.size() == 16


def test_a_damaged_table_is_named_with_the_way_back(saved):
    files = [path for path in (saved / "layer-0" / "0").iterdir() if path.is_file()]
    segment = next(path for path in files if "manifest" not in path.name.lower())
    flip(segment, 5000)
    tiny = Tiny()
    with refuses(tf.errors.DataLossError, f"'{segment}' is damaged") as raised:
        resume(tiny, saved.parent)
    [note] = raised.value.__notes__
    assert note.endswith(f"remove '{saved}' to go back to it.")
    assert tiny.layer.size() == 0


def test_a_model_of_other_layers_is_refused(saved):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)], name="plain")
    model.compile("sgd", "mean_squared_error")
    message = (
        f"'{saved}' was saved from a model with the layers ['embedding']. Received: "
        "model 'plain' with []."
    )
    with refuses(ValueError, message):
        Checkpoint(saved.parent).resume(model, tf.data.Dataset.range(1))


def test_an_error_of_the_disk_reaches_the_training(
    tmp_path, make_checkpoint, monkeypatch
):
    def fail(path, arrays):
        if "step-000000000003" in str(path):
            raise OSError(28, "No space left on device", str(path))
        write_dense(path, arrays)

    monkeypatch.setattr("tfctr.callbacks.checkpoint_writer.write_dense", fail)
    tiny = Tiny()
    steps = []
    with pytest.raises(OSError, match="No space left on device") as failure:
        tiny.fit(
            make_checkpoint(every=1),
            Each(batch=lambda batch: steps.append(batch)),
            epochs=100,
        )
    assert len(steps) <= 4  # At the latest when the next one is to be written.
    newest = tmp_path / "step-000000000002"
    assert failure.value.__notes__ == [f"The newest whole checkpoint is '{newest}'."]
    # What there is, is whole.
    _, _ = resume(Tiny(), tmp_path)


def test_an_error_of_the_last_checkpoint_is_raised_too(make_checkpoint, monkeypatch):
    def fail(path, arrays):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("tfctr.callbacks.checkpoint_writer.write_dense", fail)
    with pytest.raises(OSError, match="No space left on device") as failure:
        Tiny().fit(make_checkpoint())
    assert not hasattr(failure.value, "__notes__")  # There is no older one.


def test_an_error_without_a_file_gets_its_place(tmp_path, make_checkpoint, monkeypatch):
    def fail(path, arrays):
        raise OSError(27, "File too large")

    monkeypatch.setattr("tfctr.callbacks.checkpoint_writer.write_dense", fail)
    message = (
        "A checkpoint must be written to its end. Received: File too large, in "
        rf"'{tmp_path}/.*step-0.*'. Make room there, or name another directory."
    )
    with pytest.raises(OSError, match=message):
        Tiny().fit(make_checkpoint())
