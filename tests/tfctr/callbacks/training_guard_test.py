"""What the callbacks refuse or stop, and in which words."""

import re
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import DynamicEmbedding, FeatureConfig, TableConfig, TieredStorage
from tfctr.callbacks import Throughput, TrainingGuard, check_callbacks
from tfctr.distributed import DistributedOptimizer, ranks

SGD = keras.optimizers.SGD


def embedding(bad_gradients="raise"):
    optimizer = keras.optimizers.Adagrad(0.1)
    table = TableConfig("ads", 2, optimizer, bad_gradients=bad_gradients)
    return DynamicEmbedding(FeatureConfig(table), name="embedding")


class Tower(keras.layers.Layer):
    """A layer that keeps its table to itself."""

    def __init__(self, **options):
        super().__init__()
        self.parts = {"first": [embedding(**options)]}

    def call(self, inputs, training=None):
        return self.parts["first"][0](inputs, training=training)


class Late(keras.Model):
    """A model that is built when it is first called."""

    def __init__(self, **options):
        super().__init__(name="late")
        self.tower, self.head = Tower(**options), keras.layers.Dense(1)

    def call(self, inputs, training=None):
        return self.head(self.tower(inputs, training=training))


def model_around(*layers):
    return keras.Sequential(
        [keras.Input((), dtype="int64"), *layers, keras.layers.Dense(1)]
    )


def nested(layer):
    inputs = keras.Input((), dtype="int64")
    return keras.Model(inputs, layer(inputs))


MODELS = {
    "outermost": lambda: model_around(embedding()),
    "in a model": lambda: model_around(nested(embedding())),
    "in a layer": lambda: model_around(Tower()),
    "deep": lambda: model_around(nested(nested(Tower()))),
}


@pytest.fixture(params=MODELS)
def model(request):
    return MODELS[request.param]()


def plain_model():
    return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])


def fit(model, optimizer, *callbacks):
    model.compile(optimizer, "mean_squared_error", run_eagerly=True)
    ids = np.arange(4)
    model.fit(ids, np.zeros((4, 1)), verbose=0, callbacks=list(callbacks))


def horovod_optimizer():
    # As horovod.keras makes them: a class of its own, named as the one it wraps.
    kind = type("SGD", (SGD,), {"__module__": "horovod._keras"})
    return kind(0.1)


class SubclassOfWrapped(type(horovod_optimizer())):
    """A class of the user's, on top of Horovod's."""


REFUSED = {
    "scaling wrapper": (
        lambda: keras.optimizers.LossScaleOptimizer(SGD(0.1)),
        "Layer 'embedding' cannot train under loss scaling: its rows would move by the "
        "scaled gradients. Received: LossScaleOptimizer. Use the policy "
        "'mixed_bfloat16' or 'float32', which need none.",
    ),
    "scale factor": (
        lambda: SGD(0.1, loss_scale_factor=8.0),
        "Received: loss_scale_factor=8.0. Use the policy",
    ),
    "accumulation": (
        lambda: SGD(0.1, gradient_accumulation_steps=4),
        "Layer 'embedding' cannot train under gradient accumulation: its rows would "
        "move at every step, the dense weights at some. Received: "
        "gradient_accumulation_steps=4. Raise the batch size instead.",
    ),
    "horovod": (
        horovod_optimizer,
        "Horovod's DistributedOptimizer averages nothing under Keras 3: every rank "
        "would train a model of its own. Received: horovod._keras.SGD. Compile with "
        "tfctr.distributed.DistributedOptimizer(...) of the plain Keras optimizer.",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("callback", [TrainingGuard, lambda: Throughput(4)])
def test_optimizers_that_tables_cannot_follow_are_refused(kind, callback):
    make_optimizer, message = REFUSED[kind]
    model = MODELS["outermost"]()
    with pytest.raises(ValueError, match=re.escape(message)):
        fit(model, make_optimizer(), callback())
    assert model.layers[0].size() == 0


def test_tables_are_found_wherever_they_are(model):
    with pytest.raises(ValueError, match="Received: gradient_accumulation_steps=4."):
        fit(model, SGD(0.1, gradient_accumulation_steps=4), TrainingGuard())


def test_a_subclass_of_horovods_class_is_refused():
    message = f"Received: {__name__}.SubclassOfWrapped."
    with pytest.raises(ValueError, match=re.escape(message)):
        fit(MODELS["outermost"](), SubclassOfWrapped(0.1), TrainingGuard())


def test_the_model_trains_under_a_plain_optimizer(model):
    fit(model, SGD(0.1), TrainingGuard(), Throughput(4))


@pytest.mark.parametrize("kind", REFUSED)
def test_models_without_tables_may_do_as_they_like(kind):
    model = plain_model()
    model.compile(REFUSED[kind][0](), "mean_squared_error")
    guard = TrainingGuard()
    guard.set_model(model)
    guard.on_train_begin()


# Several ranks; what the ranks of a job are told is in distributed/optimizer_test.py.


class EverywhereStorage(TieredStorage):
    """Stands for a storage whose rows all ranks train."""

    spans_ranks = True


class MergingOptimizer(SGD):
    """Stands for an optimizer that merges the weights of the ranks itself."""

    merges_weights = True


@pytest.fixture
def two_ranks(monkeypatch):
    """For the checks alone: nothing is exchanged."""
    monkeypatch.setattr(ranks, "engine", types.SimpleNamespace(size=lambda: 2))


@pytest.mark.parametrize(
    "make_optimizer", [lambda: DistributedOptimizer(SGD(0.1)), MergingOptimizer]
)
def test_ranks_that_train_one_model_may_train(two_ranks, make_optimizer):
    layer = embedding()
    layer.storage = EverywhereStorage()
    fit(model_around(layer), make_optimizer(), TrainingGuard())
    fit(plain_model(), make_optimizer(), TrainingGuard())


def test_ranks_that_train_apart_may_not(two_ranks):
    for model in (plain_model(), model_around(embedding()), Late()):
        with pytest.raises(ValueError, match="2 ranks must train one model. Received:"):
            fit(model, SGD(0.1), TrainingGuard())
    for model in (model_around(embedding()), Late()):
        with pytest.raises(ValueError, match="2 ranks must train one set of rows."):
            fit(model, DistributedOptimizer(SGD(0.1)), TrainingGuard())


# What goes wrong during training.

BATCH_SIZE = 2
SPOILT = (
    "The dense weights must be finite to be trained. Received: NaN or infinity in "
    "'head/kernel'. A bad batch or a too high learning rate has spoilt them: load the "
    "last model you saved, and check the inputs, the labels and the learning rate."
)


def model_with_numbers(bad_gradients="skip"):
    """`head` of the row of an id, beside a number: what is bad there reaches both."""
    ids, numbers = keras.Input((), dtype="int64"), keras.Input((1,))
    table = TableConfig("ads", 2, SGD(0.01), bad_gradients=bad_gradients)
    rows = DynamicEmbedding(FeatureConfig(table), name="embedding")(ids)
    inputs = keras.layers.Concatenate()([rows, numbers])
    model = keras.Model([ids, numbers], keras.layers.Dense(1, name="head")(inputs))
    model.compile(keras.optimizers.Adam(0.01), "mean_squared_error")
    return model


def fit_batches(model, kinds, callback=TrainingGuard):
    """Trains one batch of each kind: good, with a NaN, or of huge gradients."""
    kinds = np.repeat(list(kinds), BATCH_SIZE)
    numbers = np.where(kinds == "nan", np.nan, 1.0)[:, None]
    labels = np.where(kinds == "large", 1e14, 1.0)
    model.fit(
        [np.arange(len(kinds)), numbers],
        labels,
        batch_size=BATCH_SIZE,
        shuffle=False,
        verbose=0,
        callbacks=[callback()],
    )


def updates_and_skips(model):
    (stats,) = model.get_layer("embedding").stats().values()
    return stats["step"], stats["skipped_updates"]


def kinds(text):
    """`"2 good, 1 nan"`, as a list."""
    parts = [part.split() for part in text.split(", ")]
    return [kind for number, kind in parts for _ in range(int(number))]


@pytest.mark.parametrize("callback", [TrainingGuard, lambda: Throughput(BATCH_SIZE)])
def test_training_stops_where_a_skipped_batch_has_spoilt_the_weights(callback):
    model = model_with_numbers()
    with pytest.raises(ValueError, match=re.escape(SPOILT)):
        fit_batches(model, kinds("3 good, 1 nan, 16 good"), callback)
    assert updates_and_skips(model) == (3, 1)


def test_training_does_not_begin_with_spoilt_weights():
    model = model_with_numbers("raise")
    with pytest.raises(tf.errors.InvalidArgumentError, match="received a gradient"):
        fit_batches(model, kinds("3 good, 1 nan, 16 good"))
    with pytest.raises(ValueError, match=re.escape(SPOILT)):
        fit_batches(model, kinds("20 good"))
    assert updates_and_skips(model) == (3, 0)


def test_weights_are_looked_at_when_an_epoch_ends():
    model = model_with_numbers()
    model.get_layer("embedding").trainable = False  # It skips nothing, then.
    model.compile("adam", "mean_squared_error")
    with pytest.raises(ValueError, match=re.escape(SPOILT)):
        fit_batches(model, kinds("1 nan, 1 good"))


def test_a_model_that_is_not_built_is_watched_from_the_first_batch():
    model = Late(bad_gradients="skip")
    model.compile("sgd", "mean_squared_error")
    labels = np.array([np.nan, 1.0, 1.0])
    with pytest.raises(ValueError, match="Received: NaN or infinity in 'late/"):
        model.fit(
            np.arange(3),
            labels,
            batch_size=1,
            shuffle=False,
            verbose=0,
            callbacks=[TrainingGuard()],
        )
    (layer,) = model.tower.parts["first"]
    assert layer.stats()["ads"]["skipped_updates"] == 1
    assert layer.stats()["ads"]["step"] == 0


def test_a_table_may_not_skip_ten_updates_in_a_row():
    model = model_with_numbers()
    message = (
        "Table 'ads' of layer 'embedding' must not skip update after update: it learns "
        "nothing. Received: 10 in a row, whose gradients were NaN, infinite or beyond "
        "1e12. Lower the learning rate, or check the inputs and the loss."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        fit_batches(model, kinds("9 large, 1 good, 15 large"))
    assert updates_and_skips(model) == (1, 19)


def test_batches_of_one_execution_count_one_by_one():
    model = model_with_numbers()
    model.compile("adam", "mean_squared_error", steps_per_execution=7)
    with pytest.raises(ValueError, match=re.escape("Received: 14 in a row")):
        fit_batches(model, kinds("21 large"))
    assert updates_and_skips(model) == (0, 14)


def test_what_an_earlier_training_skipped_does_not_count():
    model = model_with_numbers()
    for _ in range(3):
        fit_batches(model, kinds("9 large"))
    assert updates_and_skips(model) == (0, 27)


def test_each_table_is_watched_by_itself():
    ids = {name: keras.Input((), dtype="int64", name=name) for name in ("a", "b")}
    features = {
        name: FeatureConfig(TableConfig(name, dim, SGD(0.01), bad_gradients="skip"))
        for name, dim in (("a", 2), ("b", 3))
    }
    rows = DynamicEmbedding(features, name="embedding")(ids)
    large = keras.layers.Rescaling(1e14)(rows["b"])
    head = keras.layers.Dense(1, kernel_initializer="ones")
    model = keras.Model(ids, head(keras.layers.Concatenate()([rows["a"], large])))
    model.compile(SGD(0.0), "mean_absolute_error")
    with pytest.raises(ValueError, match="Table 'b' of layer 'embedding' must not"):
        model.fit(
            {name: np.arange(20) for name in ids},
            np.ones(20),
            batch_size=1,
            verbose=0,
            callbacks=[TrainingGuard()],
        )
    stats = model.get_layer("embedding").stats()
    assert [stats[name]["skipped_updates"] for name in "ab"] == [0, 10]


def test_models_without_tables_are_not_watched():
    model = plain_model()
    model.compile("sgd", "mean_squared_error")
    nan = np.full((4, 1), np.nan)
    model.fit(nan, nan, verbose=0, callbacks=[TrainingGuard()])


# The other callbacks.


def test_early_stopping_that_restores_weights_is_refused(model):
    early = keras.callbacks.EarlyStopping("loss", restore_best_weights=True)
    message = (
        "EarlyStopping cannot restore the rows of layer 'embedding': they are no Keras "
        "weights. Received: restore_best_weights=True. Leave it out, save with "
        "ModelCheckpoint(save_best_only=True, save_weights_only=True), and "
        "load_weights afterwards."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        check_callbacks([keras.callbacks.History(), early], model)


def test_a_subclass_of_early_stopping_is_refused_too(model):
    class Mine(keras.callbacks.EarlyStopping):
        pass

    with pytest.raises(ValueError, match="Received: restore_best_weights=True."):
        check_callbacks([Mine("loss", restore_best_weights=True)], model)


def test_other_callbacks_pass(model):
    early = keras.callbacks.EarlyStopping("loss")
    check_callbacks([early, keras.callbacks.TerminateOnNaN(), TrainingGuard()], model)
    check_callbacks([], model)


def test_early_stopping_may_restore_a_model_without_tables():
    early = keras.callbacks.EarlyStopping("loss", restore_best_weights=True)
    check_callbacks([early], plain_model())


def test_a_model_that_is_not_built_cannot_be_checked():
    early = keras.callbacks.EarlyStopping("loss", restore_best_weights=True)
    model = Late()
    message = "Received: model 'late', not built, and restore_best_weights=True. Call"
    with pytest.raises(ValueError, match=re.escape(message)):
        check_callbacks([early], model)
    model(np.arange(4))
    with pytest.raises(ValueError, match="the rows of layer 'embedding'"):
        check_callbacks([early], model)


def test_a_model_that_is_not_built_is_checked_when_training_begins():
    model = Late()
    message = "Model 'late', not built yet, may have tables and cannot train under "
    with pytest.raises(ValueError, match=message):
        fit(model, SGD(0.1, gradient_accumulation_steps=4), TrainingGuard())


def test_the_remedy_in_the_message_works(tmp_path):
    model = MODELS["outermost"]()
    best = str(tmp_path / "best.weights.h5")
    keep = keras.callbacks.ModelCheckpoint(
        best, monitor="loss", save_best_only=True, save_weights_only=True
    )
    check_callbacks([keep], model)
    fit(model, SGD(0.1), keep)
    rows = model.layers[0].read_rows(np.arange(4)).numpy()
    assert rows.any()
    for _ in range(2):
        fit(model, SGD(10.0))  # Away from the best.
    assert (model.layers[0].read_rows(np.arange(4)).numpy() != rows).any()
    model.load_weights(best)
    np.testing.assert_array_equal(model.layers[0].read_rows(np.arange(4)), rows)
