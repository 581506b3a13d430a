"""The variables of a model and its optimizer, there and back."""

import re

import keras
import numpy as np
import pytest

from keras_layers import DynamicEmbedding, FeatureConfig, TableConfig
from tfctr.checkpoint import read_dense, write_dense
from tfctr.checkpoint.dense_state import collect


def make_model(units=3, optimizer="adam", layers=1):
    table = TableConfig("ads", 2, keras.optimizers.SGD(0.1), seed=1)
    model = keras.Sequential(
        [
            keras.Input((), dtype="int64"),
            DynamicEmbedding(FeatureConfig(table)),
            keras.layers.Dropout(0.5),
            keras.layers.BatchNormalization(),
            *(keras.layers.Dense(units) for _ in range(layers)),
        ],
        name="small",
    )
    if optimizer:
        model.compile(optimizer, "mean_squared_error")
    return model


def train(model):
    x, y = np.arange(8), np.ones((8, model.output_shape[-1]))
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    return model


def values(model):
    """Bits of all variables, those of the optimizer and of Dropout among them."""
    optimizer = getattr(model, "optimizer", None)  # There once a model is compiled.
    variables = model.variables + (optimizer.variables if optimizer else [])
    return [keras.ops.convert_to_numpy(variable).tobytes() for variable in variables]


@pytest.mark.parametrize("optimizer", ["adam", "sgd", None])
def test_all_variables_come_back_to_the_bit(tmp_path, optimizer):
    saved = make_model(optimizer=optimizer)
    if optimizer:
        train(saved)
    write_dense(tmp_path / "dense.npz", collect(saved))
    model = make_model(optimizer=optimizer)
    assert values(model) != values(saved)
    read_dense([tmp_path / "dense.npz"], model)
    assert values(model) == values(saved)


@pytest.mark.parametrize("optimizer", ["sgd", None])
def test_weights_come_back_without_their_optimizer(tmp_path, optimizer):
    saved = train(make_model())
    write_dense(tmp_path / "dense.npz", collect(saved))
    model = make_model(optimizer=optimizer)
    before = values(model)[len(model.variables) :]
    read_dense([tmp_path / "dense.npz"], model, with_optimizer=False)
    weights = len(model.variables)
    assert values(model)[:weights] == values(saved)[:weights]
    assert values(model)[weights:] == before


def test_what_was_collected_is_of_that_moment(tmp_path):
    model = train(make_model())
    before, arrays = values(model), collect(model)
    train(model)
    assert values(model) != before
    write_dense(tmp_path / "dense.npz", arrays)
    read_dense([tmp_path / "dense.npz"], model)
    assert values(model) == before


def test_of_several_ranks_states_it_takes_the_mean(tmp_path):
    model = train(make_model())
    first = collect(model)
    arrays = [
        {
            name: (array + rank).astype(array.dtype)
            if np.issubdtype(array.dtype, np.floating)
            else array
            for name, array in first.items()
        }
        for rank in range(3)
    ]
    paths = [tmp_path / f"{rank}.npz" for rank in range(3)]
    for path, one in zip(paths, arrays, strict=True):
        write_dense(path, one)
    read_dense(paths, model)
    found = collect(model)
    for name, array in first.items():
        if np.issubdtype(array.dtype, np.floating):
            np.testing.assert_allclose(found[name], array + 1, 1e-6)
        else:
            np.testing.assert_array_equal(found[name], array)


def test_the_mean_of_equal_states_is_each_of_them(tmp_path):
    saved = train(make_model())
    for rank in range(3):
        write_dense(tmp_path / f"{rank}.npz", collect(saved))
    model = make_model()
    read_dense([tmp_path / f"{rank}.npz" for rank in range(3)], model)
    assert values(model) == values(saved)


def test_rows_are_no_variables():
    model = train(make_model())
    assert max(array.size for array in collect(model).values()) < 8 * 2


@pytest.mark.parametrize(
    "options, message",
    [
        ({"layers": 2}, r"Expected: \d+ variables\. Received: \d+\."),
        ({"optimizer": "sgd"}, r"Expected: \d+ variables\. Received: \d+\."),
        ({"optimizer": None}, r"Expected: \d+ variables\. Received: \d+\."),
        (
            {"units": 5},
            r"Expected: variable \d+ model of shape \(2, 5\), float32\. "
            r"Received: \(2, 3\), float32\.",
        ),
    ],
)
def test_another_model_is_refused_and_left_alone(tmp_path, options, message):
    path = tmp_path / "dense.npz"
    write_dense(path, collect(train(make_model())))
    model = make_model(**options)
    collect(model)  # Builds the optimizer.
    before = values(model)
    start = rf"'{re.escape(str(path))}' does not fit model 'small'\. "
    end = " Build and compile the model as it was when the checkpoint was made."
    with pytest.raises(ValueError, match=start + message + end):
        read_dense([path], model)
    assert values(model) == before
