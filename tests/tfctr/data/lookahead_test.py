"""`lookahead`: the same elements and the same losses, with less reading in the step."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import DynamicEmbedding, FeatureConfig, TableConfig, TieredStorage
from tfctr.callbacks import StepLosses
from tfctr.data import lookahead

IDS = np.arange(24).reshape(12, 2)


def table(name="ads", dim=2):
    return TableConfig(name, dim, keras.optimizers.SGD(0.1), seed=1)


def single():
    layer = DynamicEmbedding(FeatureConfig(table()), name="single")
    layer.build((None, 2))
    return layer


def named(*names):
    shared = table()
    features = {name: FeatureConfig(shared) for name in names}
    layer = DynamicEmbedding(features, name="named")
    layer.build(dict.fromkeys(names, (None, 2)))
    return layer


def data(*parts):
    """A data set of batches of three; a single part is no tuple."""
    return tf.data.Dataset.from_tensor_slices(parts if len(parts) > 1 else parts[0])


def listed(dataset):
    """All elements, as nested lists."""
    return [
        tf.nest.map_structure(lambda part: part.tolist(), element)
        for element in dataset.as_numpy_iterator()
    ]


INPUTS = {
    "single tensor": lambda: (data(IDS), single()),
    "inputs and labels": lambda: (data(IDS, np.ones(12)), single()),
    "inputs, labels and weights": lambda: (
        data(IDS, np.ones(12), np.arange(12.0)),
        [single(), single()],
    ),
    "dict": lambda: (data({"user": IDS, "item": IDS + 1}), named("user", "item")),
    "dict with others and labels": lambda: (
        data({"user": IDS, "price": np.ones(12)}, np.ones(12)),
        named("user"),
    ),
    "an input for each layer": lambda: (
        data({"a": IDS, "b": IDS + 1, "price": np.ones(12)}, np.ones(12)),
        {"a": single(), "b": [single(), single()]},
    ),
}


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("steps", [1, 3, 100])
def test_the_elements_stay(kind, steps):
    dataset, layers = INPUTS[kind]()
    ahead = lookahead(dataset.batch(5), layers, steps)
    assert ahead.element_spec == dataset.batch(5).element_spec
    assert len(ahead) == 3
    for _ in range(2):  # More than one epoch.
        assert listed(ahead) == listed(dataset.batch(5))


def test_no_rows_are_made():
    layer = single()
    list(lookahead(data(IDS).batch(3), layer))
    assert layer.size() == 0
    assert layer.stats()["ads"]["rows"] == 0


# Over SSD.


def model_over_ssd(directory, **options):
    keras.utils.set_random_seed(0)
    # About a third of all rows, of 280 bytes, fits into this memory.
    config = TableConfig("ads", 64, keras.optimizers.SGD(0.1), seed=1)
    storage = TieredStorage("2MB", directory, **options)
    layer = DynamicEmbedding(FeatureConfig(config), storage)
    model = keras.Sequential(
        [keras.Input((), dtype="int64"), layer, keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.SGD(0.01), "mean_squared_error")
    layer.write_rows(np.arange(20_000), np.ones((20_000, 64), "float32"))
    return model, layer


def rows_read(layer):
    return layer.stats()["ads"]["rows_read"]


def batches(num_ids):
    ids = np.random.default_rng(0).permutation(20_000)[:num_ids]
    return data(ids, np.sin(ids)[:, None]).batch(200)


def losses_over_ssd(directory, wrap):
    """Losses of each step, and all rows in the end."""
    model, layer = model_over_ssd(directory)
    losses = StepLosses()
    model.fit(
        wrap(batches(8000), layer),
        epochs=2,
        callbacks=[losses],
        shuffle=False,
        verbose=0,
    )
    assert rows_read(layer) > 0
    return losses.losses, layer.read_rows(np.arange(20_000)).numpy()


def test_losses_and_rows_stay_to_the_bit(tmp_path):
    losses, rows = losses_over_ssd(tmp_path / "plain", lambda data, _: data)
    ahead_losses, ahead_rows = losses_over_ssd(
        tmp_path / "ahead", lambda data, layer: lookahead(data, layer, steps=3)
    )
    assert len(losses) == 80
    assert ahead_losses == losses
    np.testing.assert_array_equal(ahead_rows, rows)


def test_steps_find_their_rows_in_memory(tmp_path):
    reads = {}
    for steps in (None, 5):
        # Past the page cache, or nothing would be brought up.
        model, layer = model_over_ssd(tmp_path / str(steps), direct_reads=True)
        dataset = batches(1000)
        # When a list has been made of it, all five batches have been seen.
        elements = list(lookahead(dataset, layer, steps) if steps else dataset)
        before = rows_read(layer)
        for x, y in elements:
            model.train_on_batch(x, y)
        reads[steps] = rows_read(layer) - before
    assert reads[None] > 300
    # A few have left again, to make room for others.
    assert reads[5] < reads[None] // 10


def test_nothing_is_brought_up_while_the_page_cache_has_it(tmp_path):
    _, layer = model_over_ssd(tmp_path)
    before = rows_read(layer)
    elements = list(lookahead(batches(1000), layer, 5))
    assert rows_read(layer) == before
    for x, _ in elements:
        layer.prefetch(x)  # Asked for in so many words.
    assert rows_read(layer) > before


# Messages.


def refuses(message):
    return pytest.raises(ValueError, match=re.escape(message))


@pytest.mark.parametrize("steps", [0, -3])
def test_steps_are_positive(steps):
    message = f"`steps` must be a positive integer. Received: steps={steps}."
    with refuses(message):
        lookahead(data(IDS), single(), steps)


def test_a_layer_that_is_not_built_is_refused():
    layer = DynamicEmbedding(table(), name="late")
    message = (
        "Layer 'late' has no table yet, whose rows could be brought up. Call the model "
        "on one batch before `lookahead`."
    )
    for layers in (layer, [single(), layer], {"ids": layer}, {"ids": [layer]}):
        with refuses(message):
            lookahead(data(IDS), layers)


@pytest.mark.parametrize(
    "inputs, make, message",
    [
        (
            {"user": IDS, "price": IDS},
            lambda: named("user", "item"),
            "Layer 'named' looks up the inputs ['item', 'user']. Received: inputs "
            "['price', 'user'], without ['item']. Say which input it is given: "
            "lookahead(dataset, {'input': layer}, steps).",
        ),
        (
            {"user": IDS},
            lambda: {"item": single()},
            "Layer 'single' looks up the inputs ['item']. Received: inputs ['user'], "
            "without ['item'].",
        ),
        (
            IDS,
            lambda: {"item": single()},
            "Layer 'single' looks up the inputs ['item']. Received: inputs "
            "SymbolicTensor, without ['item'].",
        ),
    ],
)
def test_an_input_that_is_not_there_is_named(inputs, make, message):
    with refuses(message):
        lookahead(data(inputs, np.ones(12)).batch(3), make())
