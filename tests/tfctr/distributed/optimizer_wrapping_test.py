"""`DistributedOptimizer` around one optimizer: what it keeps, and what it refuses."""

import json
import re
import subprocess
import sys

import keras
import numpy as np
import pytest

from helpers.dense_models import X, Y, dense_model
from tfctr.distributed import DistributedOptimizer, is_distributed


def test_it_is_an_optimizer_of_the_same_class():
    adam = keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 9))
    wrapped = DistributedOptimizer(adam)
    assert is_distributed(wrapped) and not is_distributed(adam)
    assert isinstance(wrapped, keras.optimizers.Adam)
    assert wrapped.get_config() == adam.get_config()
    assert isinstance(DistributedOptimizer("adagrad"), keras.optimizers.Adagrad)


def test_a_built_optimizer_keeps_its_state():
    plain, other = dense_model(), dense_model()
    plain.compile(keras.optimizers.Adam(0.1), "mean_squared_error")
    plain.fit(X, Y, epochs=2, shuffle=False, verbose=0)
    other.set_weights(plain.get_weights())
    other.compile(DistributedOptimizer(plain.optimizer), "mean_squared_error")
    for model in (plain, other):
        model.fit(X, Y, epochs=2, shuffle=False, verbose=0)
    assert int(other.optimizer.iterations) == int(plain.optimizer.iterations) == 4
    for one, two in zip(plain.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)


@keras.saving.register_keras_serializable(package="test")
class Mine(keras.optimizers.SGD):
    """An optimizer of the user's."""


def test_a_saved_model_has_the_optimizer_it_was_made_of(tmp_path):
    for number, optimizer in enumerate((keras.optimizers.Adam(0.1), Mine(0.1))):
        model = dense_model()
        model.compile(DistributedOptimizer(optimizer), "mean_squared_error")
        model.fit(X, Y, verbose=0)
        model.save(tmp_path / f"{number}.keras")
        loaded = keras.models.load_model(tmp_path / f"{number}.keras")
        assert type(loaded.optimizer) is type(optimizer)
        for one, two in zip(
            model.optimizer.variables, loaded.optimizer.variables, strict=True
        ):
            np.testing.assert_array_equal(one, two)
    code = (
        "import json, sys, keras\n"
        f"model = keras.models.load_model({str(tmp_path / '0.keras')!r})\n"
        "optimizer = model.optimizer\n"
        "known = [name for name in sys.modules if name.startswith('tfctr')]\n"
        "print(json.dumps([type(optimizer).__module__, type(optimizer).__name__,\n"
        "    int(optimizer.iterations), known]))\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    found = json.loads(process.stdout)
    assert found == ["keras.src.optimizers.adam", "Adam", 1, []]


class Merging(keras.optimizers.Adam):
    """An optimizer that brings the ranks together itself."""

    merges_weights = True


def horovod_optimizer():
    kind = type("SGD", (keras.optimizers.SGD,), {"__module__": "horovod._keras"})
    return kind(0.1)


SGD = keras.optimizers.SGD


@pytest.mark.parametrize(
    "make_optimizer, options, message",
    [
        (SGD, {"reduction": "max"}, "'mean', 'sum'. Received: reduction='max'."),
        (SGD, {"wire_dtype": "int8"}, "Received: wire_dtype='int8'."),
        (
            lambda: keras.optimizers.LossScaleOptimizer(SGD()),
            {},
            "must be a Keras optimizer without a wrapper, or its name. Received: an "
            "object of class LossScaleOptimizer. Under 'mixed_bfloat16' and 'float32' "
            "no loss scaling is needed.",
        ),
        (lambda: 3, {}, "Received: an object of class int."),
        (
            lambda: DistributedOptimizer(SGD()),
            {},
            "`optimizer` must exchange its gradients once. Received: an optimizer that "
            "DistributedOptimizer has made. Compile with it as it is.",
        ),
        (
            Merging,
            {},
            "must not merge the weights of the ranks itself. Received: Merging, which "
            "does. Compile with it as it is.",
        ),
        (
            lambda: SGD(loss_scale_factor=8.0),
            {},
            "`optimizer` must not scale the loss. Received: loss_scale_factor=8.0.",
        ),
        (
            lambda: SGD(gradient_accumulation_steps=2),
            {},
            "`optimizer` must move the weights at every step. Received: "
            "gradient_accumulation_steps=2. Raise the batch size instead.",
        ),
        (
            horovod_optimizer,
            {},
            "`optimizer` must be the plain Keras optimizer: Horovod's wrapper averages "
            "nothing under Keras 3. Received: horovod._keras.SGD.",
        ),
    ],
)
def test_what_cannot_be_distributed_is_refused(make_optimizer, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        DistributedOptimizer(make_optimizer(), **options)
