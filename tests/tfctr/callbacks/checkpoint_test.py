"""`Checkpoint`: a training that was broken off goes on as if it had not been.

The oracle is the run that nobody broke off: its loss at each step, to the bit, in
memory. Run as a program, this file is such a training, which can be killed.
"""

import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import DynamicEmbedding, FeatureConfig, TableConfig, TieredStorage
from tfctr.callbacks import Checkpoint, StepLosses
from tfctr.checkpoint import write_dense
from tfctr.data import Position, SyntheticClickLog
from tfctr.models import DeepFM, DynamicTables

BATCH, BATCHES, EPOCHS, EVERY = 64, 57, 2, 20  # The last batch of an epoch is smaller.
STEPS = EPOCHS * BATCHES
LOG = {"num_examples": 4000, "fields": 4, "ids_per_field": 500, "num_dense": 2}


@pytest.fixture(scope="module")
def log():
    return SyntheticClickLog(**LOG)


def make_model(log, ssd=None, steps_per_execution=1, seed=1):
    """A model of dropout, dense Adam and tables, none of which may lose its state."""
    keras.utils.set_random_seed(seed)
    # About a tenth of the rows fit into this memory.
    storage = TieredStorage() if ssd is None else TieredStorage("20KB", ssd)
    tables = DynamicTables(keras.optimizers.Adam(0.01), storage)
    model = DeepFM(log.features, tables, dim=8, hidden_units=(16,), dropout=0.2)
    model.compile(
        keras.optimizers.Adam(0.001),
        "binary_crossentropy",
        steps_per_execution=steps_per_execution,
    )
    return model


def epoch_data(log, kind="dataset"):
    """What `resume` takes: one epoch, or a function of the batch it begins with."""

    def begin(batch):
        return log.batches("train", BATCH, seed=3, position=Position(0, batch))

    return begin(0) if kind == "dataset" else begin


class Record(keras.callbacks.Callback):
    """Hands each step and its loss on."""

    def __init__(self, checkpoint, losses, take):
        super().__init__()
        self.checkpoint, self.losses, self.take = checkpoint, losses, take

    def on_train_batch_end(self, batch, logs=None):
        self.take(self.checkpoint.step, self.losses.losses[-1])


def train(model, checkpoint, data, take, epochs=EPOCHS):
    """Resumes and fits; `take` is given each step and its loss."""
    dataset, initial_epoch = checkpoint.resume(model, data)
    losses = StepLosses()
    model.fit(
        dataset,
        initial_epoch=initial_epoch,
        epochs=epochs,
        callbacks=[checkpoint, losses, Record(checkpoint, losses, take)],
        shuffle=False,
        verbose=0,
    )


def losses_of(model, checkpoint, data, **options):
    """The losses of a training, by step."""
    losses = {}
    train(model, checkpoint, data, losses.__setitem__, **options)
    return losses


def rows_of(model):
    """All rows of the model's tables, by layer and feature: sorted ids, and vectors."""
    return {
        (layer.name, feature): (ids.tolist(), vectors.tobytes())
        for layer in model.layers
        if isinstance(layer, DynamicEmbedding)
        for feature, ids, vectors in layer.export(10**6)
    }


def dense_of(model):
    return [keras.ops.convert_to_numpy(weight).tobytes() for weight in model.variables]


@pytest.fixture(scope="module")
def runs(log, tmp_path_factory):
    """Two whole trainings that keep all their checkpoints, in RAM and over SSD."""
    runs = {}
    for kind in ("ram", "ssd"):
        root = tmp_path_factory.mktemp(kind)
        model = make_model(log, root / "ssd" if kind == "ssd" else None)
        checkpoint = Checkpoint(root / "saved", every=EVERY, keep=99)
        losses = losses_of(model, checkpoint, epoch_data(log))
        runs[kind] = root / "saved", losses, model
    return runs


def broken_off(runs, kind, step, target):
    """Copies the directory as it was when the checkpoint of `step` was the newest."""
    source = runs[kind][0]
    for saved in source.glob("step-*"):
        if int(saved.name.removeprefix("step-")) <= step:
            shutil.copytree(saved, target / saved.name)
    return target


def test_ssd_changes_no_loss(runs):
    assert list(runs["ram"][1]) == list(range(1, STEPS + 1))
    assert runs["ssd"][1] == runs["ram"][1]
    stats = runs["ssd"][2].get_layer("vectors").stats()["vectors"]
    assert stats["rows_on_disk_only"] > 0.5 * stats["known_rows"]


@pytest.mark.parametrize(
    "kind, step, given",
    [
        ("ram", EVERY, "dataset"),
        ("ssd", 2 * EVERY, "function"),
        ("ram", 4 * EVERY, "function"),
        ("ssd", 4 * EVERY, "dataset"),
    ],
)
def test_a_resumed_run_ends_as_the_whole_one(log, runs, tmp_path, kind, step, given):
    directory = broken_off(runs, kind, step, tmp_path / "saved")
    # Another seed: nothing may hang on what the new process happens to start with.
    model = make_model(log, tmp_path / "ssd" if kind == "ssd" else None, seed=step)
    checkpoint = Checkpoint(directory, every=1000)
    losses = losses_of(model, checkpoint, epoch_data(log, given))
    _, expected, whole = runs[kind]
    assert losses == {s: loss for s, loss in expected.items() if s > step}
    assert checkpoint.step == STEPS
    assert rows_of(model) == rows_of(whole)
    assert dense_of(model) == dense_of(whole)


def test_a_run_goes_on_in_another_mix_of_memory_and_disk(log, runs, tmp_path):
    directory = broken_off(runs, "ram", 40, tmp_path / "saved")
    model = make_model(log, tmp_path / "ssd", seed=5)
    losses = losses_of(model, Checkpoint(directory), epoch_data(log))
    assert losses == {s: loss for s, loss in runs["ram"][1].items() if s > 40}


def test_steps_per_execution_are_resumed_too(log, tmp_path):
    whole = make_model(log, steps_per_execution=4)
    checkpoint = Checkpoint(tmp_path / "whole", every=EVERY, keep=99)
    expected = losses_of(whole, checkpoint, epoch_data(log))
    runs = {"ram": (tmp_path / "whole", expected, whole)}
    step = checkpoint.directory.steps()[3]  # In the second epoch.
    directory = broken_off(runs, "ram", step, tmp_path / "saved")
    model = make_model(log, steps_per_execution=4, seed=5)
    losses = losses_of(model, Checkpoint(directory), epoch_data(log))
    assert losses == {s: loss for s, loss in expected.items() if s > step}
    assert dense_of(model) == dense_of(whole)


def test_a_run_that_ended_goes_on_with_more_epochs(log, runs, tmp_path):
    directory = broken_off(runs, "ram", STEPS, tmp_path / "saved")
    model = make_model(log, seed=5)
    losses = losses_of(model, Checkpoint(directory), epoch_data(log), epochs=3)
    assert list(losses) == list(range(STEPS + 1, STEPS + BATCHES + 1))
    whole = make_model(log)
    checkpoint = Checkpoint(tmp_path / "whole", every=1000)
    expected = losses_of(whole, checkpoint, epoch_data(log), epochs=3)
    assert losses == {s: loss for s, loss in expected.items() if s > STEPS}


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


class Scores(keras.callbacks.Callback):
    """Logs given numbers as `val_auc`, and remembers the model of each epoch."""

    def __init__(self, tiny, scores):
        super().__init__()
        self.tiny, self.scores, self.seen = tiny, scores, []

    def on_epoch_end(self, epoch, logs=None):
        logs["val_auc"] = self.scores[epoch]
        self.seen.append((self.tiny.rows(), dense_of(self.tiny.model)))


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
    assert (tiny.rows(), dense_of(tiny.model)) == seen.seen[best]
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
    checkpoint._finish_writing()
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
    assert (second.rows(), dense_of(second.model)) == seen.seen[0]


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


# What is refused.


def refuses(error, message):
    return pytest.raises(error, match=re.escape(message))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"every": 0}, "`every` must be a positive integer. Received: every=0."),
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


def test_a_damaged_table_is_named(saved):
    files = [path for path in (saved / "layer-0" / "0").iterdir() if path.is_file()]
    segment = next(path for path in files if "manifest" not in path.name.lower())
    flip(segment, 5000)
    tiny = Tiny()
    with refuses(tf.errors.DataLossError, f"'{segment}' is damaged"):
        resume(tiny, saved.parent)
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

    monkeypatch.setattr("tfctr.callbacks.checkpoint.write_dense", fail)
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

    monkeypatch.setattr("tfctr.callbacks.checkpoint.write_dense", fail)
    with pytest.raises(OSError, match="No space left on device") as failure:
        Tiny().fit(make_checkpoint())
    assert not hasattr(failure.value, "__notes__")  # There is no older one.


# Killed.


def main(root, storage, given, dies_at):
    """A training that kills itself after a step, if it is told one."""
    root = pathlib.Path(root)
    log = SyntheticClickLog(**LOG)
    model = make_model(log, root / "ssd" if storage == "ssd" else None)

    def take(step, loss):
        with (root / "losses.txt").open("a") as file:
            file.write(f"{step} {loss.hex()}\n")
        if step == int(dies_at):
            os.kill(os.getpid(), signal.SIGKILL)

    checkpoint = Checkpoint(root / "saved", every=EVERY)
    train(model, checkpoint, epoch_data(log, given), take)


def start(root, storage, given, dies_at=0):
    return subprocess.Popen(
        [sys.executable, __file__, str(root), storage, given, str(dies_at)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def check_losses(root, runs):
    """Every loss, of whichever process, is that of the run that nobody killed."""
    expected = {step: loss.hex() for step, loss in runs["ram"][1].items()}
    lines = (root / "losses.txt").read_text().splitlines()
    losses = [line.split() for line in lines]
    assert {int(step) for step, _ in losses} == set(expected)
    for step, loss in losses:
        assert loss == expected[int(step)], step


@pytest.mark.slow
@pytest.mark.parametrize(
    "storage, given, deaths",
    [
        ("ram", "dataset", [33]),
        # In the second epoch, while a checkpoint is written.
        ("ssd", "function", [80]),
    ],
)
def test_a_run_that_was_killed_goes_on(runs, tmp_path, storage, given, deaths):
    for dies_at in deaths:
        process = start(tmp_path, storage, given, dies_at)
        output, _ = process.communicate()
        assert process.returncode == -signal.SIGKILL, output
    process = start(tmp_path, storage, given)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    check_losses(tmp_path, runs)
    assert not list((tmp_path / "saved").glob("*.draft"))


@pytest.mark.soak
@pytest.mark.parametrize("given", ["dataset", "function"])
@pytest.mark.parametrize("storage", ["ram", "ssd"])
def test_a_run_that_is_killed_at_random_moments_goes_on(runs, tmp_path, storage, given):
    rng = random.Random(f"{storage} {given}")
    kills, chain = 0, 0
    while kills < 25:
        root = tmp_path / str(chain)
        root.mkdir()
        chain += 1
        while True:
            process = start(root, storage, given)
            # Once it trains, at any moment of the second that it takes.
            before = lines_of(root)
            while process.poll() is None and lines_of(root) == before:
                time.sleep(0.01)
            try:
                output, _ = process.communicate(timeout=rng.uniform(0.0, 1.0))
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                kills += 1
                continue
            assert process.returncode == 0, output
            break
        check_losses(root, runs)


def lines_of(root):
    path = root / "losses.txt"
    return path.read_text().count("\n") if path.exists() else 0


def test_data_without_an_end_cannot_be_resumed_amid_an_epoch(log, runs, tmp_path):
    directory = broken_off(runs, "ram", EVERY, tmp_path)
    with pytest.raises(ValueError, match="must have an end, which is that of an epoch"):
        Checkpoint(directory).resume(make_model(log), epoch_data(log).repeat())


@pytest.mark.parametrize("given", ["dataset", "function"])
def test_a_checkpoint_at_the_end_of_an_epoch_is_resumed(log, runs, tmp_path, given):
    whole = make_model(log)
    checkpoint = Checkpoint(tmp_path / "whole", every=BATCHES, keep=9)
    expected = losses_of(whole, checkpoint, epoch_data(log))
    assert expected == runs["ram"][1]
    assert checkpoint.directory.steps() == [BATCHES, STEPS]
    state = checkpoint.directory.read_state(BATCHES)
    assert (state["epoch"], state["batch"]) == (1, 0)
    source = {"ram": (tmp_path / "whole", expected, whole)}
    directory = broken_off(source, "ram", BATCHES, tmp_path / "saved")
    model = make_model(log, seed=5)
    losses = losses_of(model, Checkpoint(directory), epoch_data(log, given))
    assert losses == {s: loss for s, loss in expected.items() if s > BATCHES}
    assert dense_of(model) == dense_of(whole)


def test_steps_of_an_execution_beyond_the_epoch_do_not_count(log, tmp_path):
    model = make_model(log, steps_per_execution=4)
    checkpoint = Checkpoint(tmp_path, every=EVERY, keep=99)
    losses = losses_of(model, checkpoint, epoch_data(log))
    ends = [*range(4, BATCHES, 4), BATCHES]
    assert list(losses) == ends + [BATCHES + end for end in ends]
    # The multiples of 20 that the second epoch steps over are saved just after.
    assert checkpoint.directory.steps() == [20, 40, 61, 81, 101, 114]
    assert checkpoint.step == STEPS


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
    monkeypatch.setattr("tfctr.callbacks.checkpoint.write_dense", slow)
    tiny.fit(Scores(tiny, [0.6, 0.7, 0.8]), checkpoint, epochs=3)
    assert removed


if __name__ == "__main__":
    main(*sys.argv[1:])
