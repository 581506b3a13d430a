"""Checkpoints of several ranks: as many ranks resume them, or more, or fewer."""

import json
import os
import pathlib
import re
import resource
import shutil
import signal
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import DynamicEmbedding, TableConfig, TieredStorage
from keras_layers.dynamic_embedding import layers_of
from tfctr import distributed
from tfctr.callbacks import Checkpoint, KStepMerge, StepLosses
from tfctr.callbacks.checkpoint_writer import CheckpointWriter
from tfctr.checkpoint import CheckpointDirectory
from tfctr.distributed import engine
from tfctr.optimizers import KStepAdam

BATCH, BATCHES, EPOCHS = 24, 12, 2
SAVED_AT = 7


def make_model(storage, optimizer=None):
    keras.utils.set_random_seed(1)
    inner = TieredStorage() if storage == "ram" else TieredStorage("8KB", storage)
    table = TableConfig("ads", 4, keras.optimizers.Adam(0.05), seed=3)
    inputs = keras.Input((3,), dtype="int64")
    embedded = DynamicEmbedding(
        table, storage=distributed.ShardedStorage(inner), name="ads"
    )(inputs)
    hidden = keras.layers.Dense(8, "relu")(keras.layers.Flatten()(embedded))
    if optimizer is not None:  # With states of its own on each rank.
        hidden = keras.layers.Dropout(0.3)(keras.layers.BatchNormalization()(hidden))
    model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden))
    adam = distributed.DistributedOptimizer(keras.optimizers.Adam(0.01))
    model.compile(optimizer or adam, "binary_crossentropy")
    return model


def make_dataset():
    rng = np.random.default_rng(0)
    size = BATCH * BATCHES - 11  # The last batch is uneven.
    ids = (rng.pareto(1.0, (size, 3)) * 5).astype(np.int64)
    labels = (rng.random((size, 1)) < 0.5).astype(np.float32)
    data = tf.data.Dataset.from_tensor_slices((ids, labels)).batch(BATCH)
    return distributed.shard(data)


class Failure(keras.callbacks.Callback):
    """What befalls one rank after a step."""

    def __init__(self, step, rank, directory):
        super().__init__()
        self.left = step
        self.is_it = distributed.rank() == rank
        self.directory = pathlib.Path(directory)

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0 and self.is_it:
            self.happen()


class Killed(Failure):
    """It ends, as the system would end it, perhaps while a checkpoint is written."""

    def happen(self):
        os.kill(os.getpid(), signal.SIGKILL)


class FullDisk(Failure):
    """It can write no more, once the checkpoints that were begun are whole."""

    def happen(self):
        while list(self.directory.glob("*.draft")):
            time.sleep(0.01)
        limit_files(0)


FAILURES = {"killed": Killed, "full disk": FullDisk}


def limit_files(num_bytes):
    """Makes writes beyond so many bytes of a file fail, in this process."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, most))


def train(
    directory,
    storage="ram",
    epochs=EPOCHS,
    every=SAVED_AT,
    merge=None,
    failure=None,
    fails_at=None,
):
    """Trains, or goes on; what this rank has seen from there.

    `failure` names what befalls the last rank after step `fails_at`.
    """
    optimizer = merge and KStepAdam(0.01, k=4, merge=merge, warmup_merges=1)
    model = make_model(storage, optimizer)
    checkpoint = Checkpoint(directory, every=every, keep=99)
    losses = StepLosses()
    dataset, initial_epoch = checkpoint.resume(model, make_dataset())
    first = checkpoint.step
    callbacks = [distributed.BroadcastCallback(), losses, checkpoint]
    if merge:
        callbacks.insert(1, KStepMerge())
    if failure is not None:
        last = distributed.size() - 1
        callbacks.append(FAILURES[failure](fails_at, last, directory))
    model.fit(
        dataset,
        initial_epoch=initial_epoch,
        epochs=epochs,
        callbacks=callbacks,
        shuffle=False,
        verbose=0,
    )
    [layer] = layers_of(model)
    return {"first": first, "losses": losses.losses, **state_of(model, layer)}


def state_of(model, layer):
    rows = {
        f"{name}:{id_}": vector.tolist()
        for name, ids, vectors in layer.export(1000)
        for id_, vector in zip(ids.tolist(), vectors, strict=True)
    }
    dense = [
        keras.ops.convert_to_numpy(weight).tolist()
        for weight in model.trainable_variables
    ]
    return {"rows": rows, "dense": dense}


def merge_and_resume(directory):
    """k-step merges: a whole run, and one from its first checkpoint on."""
    found = {}
    for merge in ("frozen_denominator", "parameters"):
        whole, resumed = (pathlib.Path(directory) / f"{merge}{i}" for i in (0, 1))
        expected = train(whole, merge=merge)
        if distributed.is_main():
            name = f"step-{SAVED_AT:012d}"
            shutil.copytree(whole / name, resumed / name)
        engine.barrier("copied")
        found[merge] = [expected, train(resumed, merge=merge)]
    return found


def fill_disk_and_resume(directory):
    """The disk of one rank is full when the epoch's end is saved, and then is not."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    try:
        train(directory, epochs=1, failure="full disk", fails_at=SAVED_AT + 2)
    except Exception as error:
        told = [type(error).__name__, str(error), *error.__notes__]
    finally:
        limit_files(before)
    engine.barrier("failed")
    return {
        "told": told,
        "steps": Checkpoint(directory).directory.steps(),
        **resume_all({"full disk": directory})["full disk"],
    }


def resume_all(directories):
    """Resumes each checkpoint, trains to the end, and writes none."""
    found = {}
    for name, directory in directories.items():
        model = make_model("ram")
        checkpoint = Checkpoint(directory)
        checkpoint.resume(model, make_dataset())
        [layer] = layers_of(model)
        rows = state_of(model, layer)["rows"]
        losses = StepLosses()
        # Without the checkpoint in `fit`: several jobs resume the same one.
        for part in (make_dataset().skip(checkpoint.step), make_dataset()):
            model.fit(part, callbacks=[losses], shuffle=False, verbose=0)
        found[name] = {
            "first": checkpoint.step,
            "rows": rows,
            "losses": losses.losses,
        }
    return found


def scenarios(directory):
    return {
        "merges": merge_and_resume(f"{directory}/merges"),
        "full disk": fill_disk_and_resume(f"{directory}/full_disk"),
    }


def mean(of_ranks):
    """The losses of the global batches: the mean of the ranks' weighted ones."""
    return np.mean([one["losses"] for one in of_ranks], axis=0)


def union(of_ranks):
    together = {}
    for one in of_ranks:
        assert not together.keys() & one["rows"].keys()
        together |= one["rows"]
    return together


def assert_equal_rows(rows, expected, tolerance):
    assert rows.keys() == expected.keys()
    for key, vector in rows.items():
        np.testing.assert_allclose(vector, expected[key], tolerance, tolerance)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """One process, from begin to end, with its checkpoint of step `SAVED_AT`."""
    directory = tmp_path_factory.mktemp("alone")
    result = train(str(directory))
    keep_first(directory)
    return directory, result


def keep_first(directory):
    steps = sorted(pathlib.Path(directory).glob("step-*"))
    assert [int(path.name[5:]) for path in steps][0] == SAVED_AT
    for path in steps[1:]:
        for file in sorted(path.rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
        path.rmdir()


@pytest.fixture(scope="module")
def saved(run_ranks, tmp_path_factory, alone):
    """Of each number of ranks: where its checkpoint is."""
    directories = {"1": str(alone[0])}
    for ranks in (2, 3):
        directory = tmp_path_factory.mktemp("saved")
        storage = str(tmp_path_factory.mktemp("ssd")) if ranks == 2 else "ram"
        of_ranks = run_ranks(ranks, __file__, "train", str(directory), storage)
        np.testing.assert_allclose(mean(of_ranks), alone[1]["losses"], 1e-4)
        assert_equal_rows(union(of_ranks), alone[1]["rows"], 1e-3)
        keep_first(directory)
        directories[str(ranks)] = str(directory)
    return directories


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize(
    "ranks", [1, 2, *(pytest.param(n, marks=pytest.mark.soak) for n in (3, 4))]
)
def test_any_number_of_ranks_resumes_any_other(run_ranks, saved, alone, ranks):
    if ranks == 1:
        found = [resume_all(saved)]
    else:
        found = run_ranks(ranks, __file__, "resume_all", saved)
    expected = alone[1]["losses"][SAVED_AT:]
    rows = [union([one[name] for one in found]) for name in saved]
    for name, restored in zip(saved, rows, strict=True):
        of_ranks = [one[name] for one in found]
        assert {one["first"] for one in of_ranks} == {SAVED_AT}
        np.testing.assert_allclose(mean(of_ranks), expected, 1e-4)
        assert_equal_rows(restored, rows[0], 1e-3)


@pytest.mark.soak
@pytest.mark.multiprocess
def test_one_process_resumes_what_four_ranks_saved(run_ranks, tmp_path, alone):
    of_ranks = run_ranks(4, __file__, "train", str(tmp_path))
    np.testing.assert_allclose(mean(of_ranks), alone[1]["losses"], 1e-4)
    keep_first(tmp_path)
    found = resume_all({"4": str(tmp_path), "1": str(alone[0])})
    np.testing.assert_allclose(found["4"]["losses"], found["1"]["losses"], 1e-4)
    assert_equal_rows(found["4"]["rows"], found["1"]["rows"], 1e-3)


# What a job prints then.
TOLD = {
    "killed": r"Process 1 exit with status code 137\b",
    "full disk": (
        r"(?s): File too large\. Free some space.*The newest whole checkpoint is '.*"
        r"tfctr: rank 1 of 2 has failed, by the error above, and ends the job"
    ),
}


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize(
    "failure", ["killed", pytest.param("full disk", marks=pytest.mark.soak)]
)
def test_a_job_that_failed_goes_on_from_its_last_checkpoint(
    run_ranks, tmp_path, alone, failure
):
    arguments = (str(tmp_path), "ram", EPOCHS, 5, None)
    output = run_ranks(2, __file__, "train", *arguments, failure, 13, fails=True)
    assert re.search(TOLD[failure], output), output
    of_ranks = run_ranks(2, __file__, "train", *arguments)
    first = of_ranks[0]["first"]
    assert first in (5, 10)  # The newest may not have been complete.
    np.testing.assert_allclose(mean(of_ranks), alone[1]["losses"][first:], 1e-4)
    assert_equal_rows(union(of_ranks), alone[1]["rows"], 1e-3)
    assert not list(tmp_path.glob("*.draft"))


@pytest.fixture(scope="module")
def found(run_ranks, tmp_path_factory):
    return run_ranks(2, __file__, "scenarios", str(tmp_path_factory.mktemp("found")))


@pytest.mark.slow
@pytest.mark.multiprocess
def test_merges_go_on_amid_their_interval(found):
    for merge in ("frozen_denominator", "parameters"):
        whole_of_ranks = []
        for of_rank in found:
            whole, resumed = of_rank["merges"][merge]
            assert resumed["first"] == SAVED_AT
            assert resumed["losses"] == whole["losses"][SAVED_AT:]
            assert resumed["dense"] == whole["dense"]
            assert resumed["rows"] == whole["rows"]
            whole_of_ranks.append(whole["dense"])
        assert whole_of_ranks[0] == whole_of_ranks[1]


@pytest.mark.multiprocess
def test_a_rank_that_cannot_write_is_named_and_the_last_checkpoint_stays(found, alone):
    first, second = (of_rank["full disk"] for of_rank in found)
    for of_rank in (first, second):
        assert of_rank["steps"] == [of_rank["first"]] == [SAVED_AT]
    kind, message, _ = first["told"]
    assert kind == "OSError"
    assert message.startswith(
        "Rank 1 could not write its part of a checkpoint, and there is none of step "
        f"{BATCHES}. It said: {second['told'][0]}: "
    )
    # Rank 1 tells it itself, with the file.
    assert re.search(r"/full_disk/\S+: File too large", second["told"][1])
    for of_rank in (first, second):
        assert "The newest whole checkpoint is '" in of_rank["told"][-1]
        assert f"/step-{SAVED_AT:012d}'" in of_rank["told"][-1]
    expected = alone[1]["losses"][SAVED_AT:]
    np.testing.assert_allclose(mean([first, second]), expected, 1e-4)


@pytest.mark.multiprocess
def test_a_checkpoint_says_how_many_ranks_saved_it(saved):
    state = json.loads(
        next(pathlib.Path(saved["3"]).glob("step-*/state.json")).read_text()
    )
    assert len(state["random"]) == len(state["tables"]) == 3
    parts = sorted(
        path.parent.name for path in pathlib.Path(saved["3"]).rglob("MANIFEST")
    )
    assert parts == [f"part-{rank:05d}-of-00003" for rank in range(3)]


def test_a_rank_that_does_not_see_the_directory_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "gather_objects", lambda value, name: ["/nowhere/a"])
    model = keras.Sequential()
    model.compile("sgd")
    writer = CheckpointWriter(CheckpointDirectory(tmp_path), keep=1)
    with pytest.raises(ValueError, match="rank 0, which does not see '/nowhere/a'"):
        writer.begin(model, {"step": 3})
