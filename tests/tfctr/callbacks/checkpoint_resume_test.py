"""`Checkpoint.resume`: a broken training goes on as if it had not been broken off.

The oracle is the run that nobody broke off: its loss at each step, to the bit, in
memory. Run as a program, this file is such a training, which can be killed.
"""

import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

import keras
import pytest

from keras_layers import DynamicEmbedding, TieredStorage
from tfctr.callbacks import Checkpoint, StepLosses
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


if __name__ == "__main__":
    main(*sys.argv[1:])
