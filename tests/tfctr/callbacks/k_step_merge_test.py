"""`KStepMerge` in `model.fit`: when ranks merge, and what they then hold.

The oracle is the same training of one weight per rank, written in NumPy.
"""

import re
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import DynamicEmbedding, FeatureConfig, TableConfig
from tfctr import distributed
from tfctr.callbacks import Checkpoint, KStepMerge, TrainingGuard
from tfctr.checkpoint.dense_state import collect
from tfctr.optimizers import KStepAdam

RANKS, BATCHES, EPOCHS, RATE = 2, 7, 2, 0.05  # No period below divides 7 or 14.
WEIGHTS = "parameters"


def data_of(rank):
    """One example per batch: an input and a label."""
    draws = np.random.default_rng(rank).normal(size=(BATCHES, 2))
    return draws[:, :1] + 1.0, draws[:, 1:]


def line(optimizer, **options):
    """`weight * input`, under the mean squared error."""
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    model = keras.Sequential([keras.Input((1,)), layer])
    model.compile(optimizer, "mean_squared_error", **options)
    return model


def fit(model, *callbacks, x=None, **options):
    inputs, labels = data_of(distributed.rank()) if x is None else x
    options = {"epochs": EPOCHS, "batch_size": 1, "shuffle": False, **options}
    return model.fit(inputs, labels, verbose=0, callbacks=list(callbacks), **options)


def numpy_fit(merge, k, forced):
    """The weights of both ranks after each step; `forced` after these steps."""
    data = [data_of(rank) for rank in range(RANKS)]
    inputs = np.stack([inputs[:, 0] for inputs, _ in data], 1)
    labels = np.stack([labels[:, 0] for _, labels in data], 1)
    x, m, v = np.ones(RANKS), np.zeros(RANKS), np.zeros(RANKS)
    s, weights = 1e-8, []
    for t in range(1, EPOCHS * BATCHES + 1):
        a, y = inputs[(t - 1) % BATCHES], labels[(t - 1) % BATCHES]
        g = 2 * a * (a * x - y)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        if merge == WEIGHTS:
            is_merge = t % k == 0
            x = x - RATE * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-7)
        else:
            is_merge = (t - 1) % k == 0
            s = max(v.mean(), s) if is_merge else s
            x = x - RATE * m / np.sqrt(s)
        if is_merge or t in forced:
            x = np.full(RANKS, x.mean())
            s = max(v.mean(), s)
        weights.append(x)
    return weights


class Weights(keras.callbacks.Callback):
    """Records the weight after each step, or after so many of one execution."""

    def __init__(self):
        super().__init__()
        self.weights = []

    def on_train_batch_end(self, batch, logs=None):
        self.weights.append(float(self.model.get_weights()[0][0, 0]))


CASES = {
    f"{merge} {k} {steps_per_execution}": (merge, k, steps_per_execution)
    for merge, k in (("frozen_denominator", 3), (WEIGHTS, 4))
    for steps_per_execution in (1, 3)
}


def fit_line(merge, k, steps_per_execution):
    warm_up = {"warmup_merges": 1} if merge == "frozen_denominator" else {}
    optimizer = KStepAdam(RATE, k=k, merge=merge, **warm_up)
    model = line(optimizer, steps_per_execution=steps_per_execution)
    record, inputs, labels = Weights(), *data_of(0)
    history = fit(model, KStepMerge(), record, validation_data=(inputs[:1], labels[:1]))
    final = float(model.get_weights()[0][0, 0])
    return {
        "weights": [*record.weights, final],
        "val_loss": history.history["val_loss"],
        "logs": history.history["merges"],
        "merges": optimizer.merges,
    }


def fit_statistics(k):
    """Batch normalisation of inputs that each rank has its own mean of."""
    normalise = keras.layers.BatchNormalization(momentum=0.5)
    layers = [keras.Input((1,)), normalise, keras.layers.Dropout(0.1)]
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    model.compile(KStepAdam(RATE, k=k, merge=WEIGHTS), "mean_squared_error")
    inputs = np.full((4, 1), 8.0 * (1 + distributed.rank()))
    x = (inputs, np.ones((4, 1)))
    fit(model, KStepMerge(), x=x, epochs=1, batch_size=2)
    return normalise.moving_mean.numpy().tolist()


def fit_twice():
    """The first time without the callback: what was traced has no statistics."""
    normalise = keras.layers.BatchNormalization(momentum=0.5)
    model = keras.Sequential([keras.Input((1,)), normalise, keras.layers.Dense(1)])
    model.compile(KStepAdam(RATE, k=2, merge=WEIGHTS), "mean_squared_error")
    x = (np.full((2, 1), 8.0 * (1 + distributed.rank())), np.ones((2, 1)))
    fit(model, x=x, epochs=1)
    before = normalise.moving_mean.numpy().tolist()
    fit(model, KStepMerge(), x=x, epochs=1)
    return [before, normalise.moving_mean.numpy().tolist()]


def fit_apart():
    """Rank 1 begins with a denominator of its own."""
    optimizer = KStepAdam(RATE, k=3)
    model = line(optimizer)
    optimizer.build(model.trainable_variables)
    (shared,) = [one for one in optimizer.variables if "shared" in one.name]
    shared.assign([[float(distributed.rank()) * 100]])
    try:
        fit(model, KStepMerge())
    except ValueError as error:
        return str(error)
    return None


def fit_compiled():
    try:
        fit(line(KStepAdam(RATE, k=3), jit_compile=True), KStepMerge())
    except ValueError as error:
        return str(error)
    return None


def scenarios():
    return {
        **{name: fit_line(*case) for name, case in CASES.items()},
        "largest": fit(line(KStepAdam(RATE, k=3)), KStepMerge()).history[
            "largest_step"
        ],
        "statistics": {str(k): fit_statistics(k) for k in (2, 100)},
        "twice": fit_twice(),
        "apart": fit_apart(),
        "compiled": fit_compiled(),
    }


@pytest.fixture(scope="module")
def found(run_ranks):
    return run_ranks(RANKS, __file__, "scenarios")


@pytest.mark.multiprocess
@pytest.mark.parametrize("name", CASES)
def test_ranks_merge_on_schedule_and_at_the_end_of_epochs(found, name):
    merge, k, steps_per_execution = CASES[name]
    ends = [BATCHES * epoch for epoch in range(1, EPOCHS + 1)]
    weights = numpy_fit(merge, k, ends)
    # Keras' callbacks see a step per execution, before what happens at its epoch's end.
    without = [numpy_fit(merge, k, ends[:epoch]) for epoch in range(EPOCHS + 1)]
    seen = [
        without[epoch][epoch * BATCHES + min(step, BATCHES) - 1]
        for epoch in range(EPOCHS)
        for step in range(
            steps_per_execution, BATCHES + steps_per_execution, steps_per_execution
        )
    ]
    expected = np.array([*seen, weights[-1]])
    for rank, of_rank in enumerate(found):
        np.testing.assert_allclose(
            of_rank[name]["weights"], expected[:, rank], rtol=1e-5, atol=1e-6
        )


@pytest.mark.multiprocess
@pytest.mark.parametrize("name", CASES)
def test_merges_are_counted_and_logged(found, name):
    merge, k, _ = CASES[name]
    first = 1 if merge == "frozen_denominator" else k
    steps = EPOCHS * BATCHES
    scheduled = [t for t in range(1, steps + 1) if (t - first) % k == 0]
    forced = {BATCHES, steps} - set(scheduled)
    for of_rank in found:
        assert of_rank[name]["merges"] == {
            "scheduled": len(scheduled),
            "forced": len(forced),
        }
        logged = [
            len([t for t in {*scheduled, *forced} if t <= end])
            for end in (BATCHES, steps)
        ]
        assert of_rank[name]["logs"] == logged


@pytest.mark.multiprocess
@pytest.mark.parametrize("name", CASES)
def test_all_ranks_validate_the_merged_model(found, name):
    merge, k, _ = CASES[name]
    inputs, labels = data_of(0)
    weights = numpy_fit(merge, k, [BATCHES, 2 * BATCHES])
    expected = [
        (weights[end - 1][0] * inputs[0, 0] - labels[0, 0]) ** 2
        for end in (BATCHES, 2 * BATCHES)
    ]
    for of_rank in found:
        np.testing.assert_allclose(of_rank[name]["val_loss"], expected, rtol=1e-4)


@pytest.mark.multiprocess
def test_the_largest_step_of_any_rank_is_logged(found):
    first, second = (of_rank["largest"] for of_rank in found)
    assert first == second
    assert len(first) == EPOCHS and min(first) > 0


@pytest.mark.multiprocess
def test_statistics_are_averaged_in_scheduled_and_forced_merges(found):
    # Half of what was, half of the batch: 8 and 16, twice.
    expected = [np.mean([0.75 * 8, 0.75 * 16])]
    for of_rank in found:
        assert of_rank["statistics"] == {"2": expected, "100": expected}


@pytest.mark.multiprocess
def test_what_was_traced_without_statistics_is_traced_again(found):
    for rank, of_rank in enumerate(found):
        before, after = of_rank["twice"]
        assert before == [0.75 * 8 * (rank + 1)]
        # Two more steps, the second of which merges.
        assert after == [np.mean([(0.75 / 4 + 0.75) * 8, (0.75 / 4 + 0.75) * 16])]


@pytest.mark.multiprocess
def test_ranks_that_differ_after_a_merge_are_told(found):
    for of_rank in found:
        message = (
            "All ranks must hold the same weights after a merge. Received: rank 1 "
            r"differs from rank 0 in \['k_step_adam.*_shared_velocity'\]. Let all "
            "ranks begin with the same model and optimizer, or load each its part of "
            "the same checkpoint."
        )
        assert re.fullmatch(message, of_rank["apart"])


@pytest.mark.multiprocess
def test_xla_is_refused_among_ranks(found):
    for of_rank in found:
        assert of_rank["compiled"] == (
            "Ranks cannot exchange anything inside of what XLA has compiled. Received: "
            "jit_compile=True. Say model.compile(..., jit_compile=False)."
        )


# One process.


def test_a_checkpoint_is_of_a_merged_model(tmp_path):
    optimizer = KStepAdam(RATE, k=100, merge=WEIGHTS)
    model = line(optimizer)
    merged = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            merged.append(optimizer.merges["forced"])

    fit(model, Checkpoint(tmp_path, every=3), Watch())
    # Saved after the steps 3, 6, 9 and 12; and after 14, when the training ends.
    assert merged == [0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]
    assert optimizer.merges == {"scheduled": 0, "forced": 5}


def test_a_checkpoint_holds_what_the_schedule_needs(tmp_path):
    options = {"k": 4, "bias_correction": True, "warmup_merges": 1}
    whole = line(KStepAdam(RATE, **options))
    fit(whole, Checkpoint(tmp_path / "whole", every=6, keep=9), KStepMerge())
    # As it was when a training was broken off after step 6, between two merges.
    (saved,) = (tmp_path / "whole").glob("step-*6")
    shutil.copytree(saved, tmp_path / "broken" / saved.name)

    resumed = line(KStepAdam(0.1, **options))
    checkpoint = Checkpoint(tmp_path / "broken", every=6)
    data = tf.data.Dataset.from_tensor_slices(data_of(0)).batch(1)
    dataset, epoch = checkpoint.resume(resumed, data)
    resumed.fit(
        dataset,
        initial_epoch=epoch,
        epochs=EPOCHS,
        verbose=0,
        shuffle=False,
        callbacks=[checkpoint, KStepMerge()],
    )
    for name, values in collect(whole).items():
        np.testing.assert_array_equal(values, collect(resumed)[name])


def test_other_optimizers_are_refused():
    message = (
        "KStepMerge needs a model compiled with tfctr.optimizers.KStepAdam. Received: "
        "model 'plain' with Adam. Compile it so, or leave KStepMerge out."
    )
    model = line("adam")
    model.name = "plain"
    with pytest.raises(ValueError, match=re.escape(message)):
        fit(model, KStepMerge())
    wrapped = keras.optimizers.LossScaleOptimizer(KStepAdam(RATE, k=2))
    with pytest.raises(ValueError, match="with LossScaleOptimizer. Compile it so"):
        fit(line(wrapped), KStepMerge())
    with pytest.raises(ValueError, match="with NoneType. Compile it so"):
        line(None).evaluate(*data_of(0), verbose=0, callbacks=[KStepMerge()])


def test_models_that_are_not_built_are_refused():
    model = keras.Sequential([keras.layers.Dense(1)], name="late")
    model.compile(KStepAdam(RATE, k=2), "mean_squared_error")
    callback = KStepMerge()
    callback.set_model(model)
    message = (
        "A model shows what is to be averaged once it is built. Received: model "
        "'late', not built. Call it on one batch before `fit`."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        callback.on_train_begin()


@pytest.mark.parametrize("callback", [TrainingGuard, KStepMerge])
def test_the_guard_accepts_it_beside_a_table(callback):
    table = TableConfig("ads", 2, keras.optimizers.SGD(0.1))
    inputs = keras.Input((), dtype="int64")
    rows = DynamicEmbedding(FeatureConfig(table), name="embedding")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1)(rows))
    optimizer = KStepAdam(RATE, k=2)
    model.compile(optimizer, "mean_squared_error")
    fit(model, callback(), x=(np.arange(6), np.ones(6)), epochs=1)
    assert model.get_layer("embedding").size() == 6
    assert int(optimizer.iterations) == 6
    # The layer's anchor has no gradient and stays.
    assert float(model.get_layer("embedding").anchor) == 0.0
