"""`StackFields`: columns in the order of the names of their features."""

import keras
import numpy as np
import pytest

from tfctr.models.stack_fields import StackFields

RNG = np.random.default_rng(0)
A = RNG.normal(size=(2, 3, 4)).astype("float32")
B = RNG.normal(size=(2, 4)).astype("float32")
C = RNG.normal(size=(2, 1, 4)).astype("float32")


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ({"a": A}, A),
        ({"b": B}, B[:, None]),
        ({"b": B, "a": A}, np.concatenate([A, B[:, None]], axis=1)),
        ({"c": C, "b": B, "a": A}, np.concatenate([A, B[:, None], C], axis=1)),
    ],
    ids=["wide", "single", "both", "all"],
)
def test_fields_stand_side_by_side(inputs, expected):
    layer = StackFields()
    np.testing.assert_array_equal(layer(inputs), expected)
    shapes = {name: x.shape for name, x in inputs.items()}
    assert layer.compute_output_shape(shapes) == expected.shape
    declared = layer({name: keras.Input(x.shape[1:]) for name, x in inputs.items()})
    assert declared.shape == (None, *expected.shape[1:])


def test_config_round_trip():
    layer = StackFields(name="fields")
    assert StackFields.from_config(layer.get_config()).name == "fields"
