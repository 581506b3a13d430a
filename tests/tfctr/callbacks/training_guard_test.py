"""What the callbacks refuse before the first step, and in which words."""

import re

import keras
import numpy as np
import pytest

from keras_layers import DynamicEmbedding, FeatureConfig, TableConfig
from tfctr.callbacks import Throughput, TrainingGuard, check_callbacks

SGD = keras.optimizers.SGD


def embedding():
    table = TableConfig("ads", 2, keras.optimizers.Adagrad(0.1))
    return DynamicEmbedding(FeatureConfig(table), name="embedding")


class Tower(keras.layers.Layer):
    """A layer that keeps its table to itself."""

    def __init__(self):
        super().__init__()
        self.parts = {"first": [embedding()]}

    def call(self, inputs, training=None):
        return self.parts["first"][0](inputs, training=training)


class Late(keras.Model):
    """A model that is built when it is first called."""

    def __init__(self):
        super().__init__(name="late")
        self.tower, self.head = Tower(), keras.layers.Dense(1)

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
        "the plain Keras optimizer.",
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
