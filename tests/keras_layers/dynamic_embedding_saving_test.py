"""What survives saving and copying, to the bit, and what is refused instead of lost."""

import json
import pickle
import re
import threading
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import DynamicEmbedding, FeatureConfig, TableConfig, TieredStorage
from tfctr_ops import SparseOptimizer

DIM, COLUMNS = 3, 2
SGD = SparseOptimizer("sgd", learning_rate=0.5)


@pytest.fixture(autouse=True)
def seed():
    keras.utils.set_random_seed(9)


def adam():
    schedule = keras.optimizers.schedules.InverseTimeDecay(0.1, 2, 1.0)
    return keras.optimizers.Adam(schedule, beta_1=0.8, name="adam")


def table(name="ads", dim=DIM, **options):
    return TableConfig(name, dim=dim, **{"optimizer": SGD, **options})


def embedding(**options):
    # With a seed: a subclassed model makes its layers anew when it is loaded.
    ads = table(
        optimizer=adam(), initializer="random_normal", default_row=[1, 2, 3], seed=4
    )
    return DynamicEmbedding(ads, TieredStorage("8MB"), name="embedding", **options)


def functional(layer=None):
    inputs = keras.Input((COLUMNS,), dtype="int64")
    hidden = keras.layers.Flatten()((layer or embedding())(inputs))
    return keras.Model(inputs, keras.layers.Dense(1, name="head")(hidden))


def sequential():
    layers = [embedding(), keras.layers.Flatten(), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((COLUMNS,), dtype="int64"), *layers])


def nested():
    inputs = keras.Input((COLUMNS,), dtype="int64")
    inner = keras.Model(inputs, embedding()(inputs), name="inner")
    outer = keras.Input((COLUMNS,), dtype="int64")
    hidden = keras.layers.Flatten()(inner(outer))
    return keras.Model(outer, keras.layers.Dense(1)(hidden))


@keras.saving.register_keras_serializable(package="tfctr_test")
class Subclassed(keras.Model):
    def __init__(self, **options):
        super().__init__(**options)
        self.embedding, self.head = embedding(), keras.layers.Dense(1)

    def build(self, input_shape):
        self.embedding.build(input_shape)
        self.head.build((None, COLUMNS * DIM))

    def call(self, inputs, training=None):
        vectors = self.embedding(inputs, training=training)
        return self.head(tf.reshape(vectors, [-1, COLUMNS * DIM]))


def subclassed():
    model = Subclassed()
    model.build((None, COLUMNS))
    return model


MODELS = {
    "functional": functional,
    "sequential": sequential,
    "nested": nested,
    "subclassed": subclassed,
}


@pytest.fixture(params=MODELS)
def make(request):
    return MODELS[request.param]


def layers_of(model):
    """The embedding layers, wherever they are."""
    return [x for x in model._flatten_layers() if isinstance(x, DynamicEmbedding)]


def layer_of(model):
    (layer,) = layers_of(model)
    return layer


def config_of(layer):
    return keras.saving.serialize_keras_object(layer)["config"]


def data(steps, first=0):
    rng = np.random.default_rng(first)
    ids = rng.integers(-3, 3, size=(4 * steps, COLUMNS)) * 2**60
    return ids, rng.normal(size=(len(ids), 1)).astype("float32")


def fit(model, steps=2, first=0, compile_it=True):
    if compile_it:
        model.compile(keras.optimizers.Adam(0.1), "mean_squared_error")
    model.run_eagerly = True  # Traces nothing: faster for so few steps.
    history = model.fit(*data(steps, first), batch_size=4, shuffle=False, verbose=0)
    return history.history["loss"]


def tables(layer):
    """Rows, slots and counters of every table, by key, and its step."""
    found = []
    for live in layer.tables.values():
        rows = [np.asarray(column) for column in live.save_rows()]
        order = np.lexsort((rows[0], rows[1]))
        found.append([live.stats()["step"], *(column[order] for column in rows)])
    return found


def assert_equal_tables(layer, other):
    for ours, theirs in zip(tables(layer), tables(other), strict=True):
        for column, expected in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(column, expected)


# Saving.


def test_a_saved_model_comes_back_whole(make, tmp_path):
    model = make()
    fit(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert layer_of(model).stats()["ads"]["step"] == 2
    assert layer_of(model).size() > 4
    assert_equal_tables(layer_of(loaded), layer_of(model))
    assert config_of(layer_of(loaded)) == config_of(layer_of(model))
    ids, _ = data(2)
    ids = np.concatenate([ids, ids + 1])  # Known ones, and unknown ones.
    np.testing.assert_array_equal(
        loaded.predict(ids, verbose=0), model.predict(ids, verbose=0)
    )


def test_saved_weights_come_back_whole(make, tmp_path):
    model, other = make(), make()
    fit(model)
    fit(other, first=5)  # Its rows are to be replaced, not added to.
    model.save_weights(tmp_path / "model.weights.h5")
    other.load_weights(tmp_path / "model.weights.h5")
    assert_equal_tables(layer_of(other), layer_of(model))
    ids, _ = data(2)
    np.testing.assert_array_equal(
        other.predict(ids, verbose=0), model.predict(ids, verbose=0)
    )


def test_weights_may_be_saved_in_shards(tmp_path):
    model, other = functional(), functional()
    fit(model)
    model.save_weights(tmp_path / "model.weights.json", max_shard_size=4e-7)
    assert len(list(tmp_path.glob("*.h5"))) > 1
    other.load_weights(tmp_path / "model.weights.json")
    assert_equal_tables(layer_of(other), layer_of(model))


def test_training_resumes_to_the_bit(make, tmp_path):
    model = make()
    fit(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    losses = [fit(m, 4, first=1, compile_it=False) for m in (model, loaded)]
    np.testing.assert_array_equal(losses[0], losses[1])
    assert layer_of(loaded).stats()["ads"]["step"] == 6
    assert_equal_tables(layer_of(loaded), layer_of(model))


def test_training_resumes_from_weights_to_the_bit(tmp_path):
    config = embedding().get_config()
    model, other = (functional(DynamicEmbedding.from_config(config)) for _ in range(2))
    for one in (model, other):
        # Weights say nothing of the model's optimizer: one without state.
        one.compile(keras.optimizers.SGD(0.1), "mean_squared_error")
    fit(model, compile_it=False)
    model.save_weights(tmp_path / "model.weights.h5")
    other.load_weights(tmp_path / "model.weights.h5")
    losses = [fit(m, 4, first=1, compile_it=False) for m in (model, other)]
    np.testing.assert_array_equal(losses[0], losses[1])
    assert_equal_tables(layer_of(other), layer_of(model))


def test_a_layer_before_its_first_update_is_saved_too(tmp_path):
    model = functional()
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    ids, _ = data(1)
    assert layer_of(loaded).size() == 0
    np.testing.assert_array_equal(
        layer_of(loaded)(ids, training=True), layer_of(model)(ids, training=True)
    )


def test_written_rows_are_saved(tmp_path):
    model = functional()
    layer_of(model).write_rows([7], [[4, 5, 6]], 1)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    rows = layer_of(loaded).read_rows([7, 8], 1)
    np.testing.assert_array_equal(rows, [[4, 5, 6], [1, 2, 3]])


def test_a_layer_used_twice_has_one_table_when_it_comes_back(tmp_path):
    layer = embedding()
    left, right = (keras.Input((COLUMNS,), dtype="int64") for _ in range(2))
    flat = [keras.layers.Flatten()(layer(side)) for side in (left, right)]
    model = keras.Model([left, right], keras.layers.Dot(axes=-1)(flat))
    model.compile("sgd", "mean_squared_error")
    ids, labels = data(1)
    model.fit([ids, ids[::-1]], labels, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_equal_tables(layer_of(loaded), layer)
    loaded.fit([ids, ids[::-1]], labels, verbose=0)
    assert layer_of(loaded).stats()["ads"]["step"] == 2


def test_a_pickled_model_comes_back_whole():
    model = functional()
    fit(model)
    copy = pickle.loads(pickle.dumps(model))
    assert_equal_tables(layer_of(copy), layer_of(model))
    layer_of(copy).write_rows([0], [[9, 9, 9]], 0)
    assert np.all(layer_of(model).read_rows([0], 0) != 9)


# Configuration.


def features(kind):
    ads = table(seed=1, initializer="random_normal", default_row=[1, 2, 3])
    items = table("items", 5, seed=2, bad_gradients="skip")
    shared = keras.optimizers.Adagrad(0.3)
    return {
        "table": lambda: ads,
        "bag": lambda: FeatureConfig(ads, "sqrtn", padding_id=0),
        "strings": lambda: FeatureConfig(ads, padding_id=""),
        "dict": lambda: {
            "a": FeatureConfig(ads, per_column=True, namespace="x"),
            "b": FeatureConfig(items, "mean"),
            "c": FeatureConfig(ads),
        },
        "one optimizer": lambda: {
            "a": FeatureConfig(table("a", optimizer=shared)),
            "b": FeatureConfig(table("b", optimizer=shared)),
        },
    }[kind]()


@pytest.mark.parametrize("kind", ["table", "bag", "strings", "dict", "one optimizer"])
def test_the_configuration_is_json_and_comes_back(kind):
    storage = TieredStorage("1GB", eviction_policy="clock", num_threads=2)
    layer = DynamicEmbedding(features(kind), storage, save_limit="3GB", name="x")
    text = json.dumps(keras.saving.serialize_keras_object(layer))
    again = keras.saving.deserialize_keras_object(json.loads(text))
    assert json.dumps(keras.saving.serialize_keras_object(again)) == text
    assert (again.name, again.save_limit) == ("x", "3GB")
    assert again.storage.get_config() == storage.get_config()
    assert list(again.features) == list(layer.features)
    for name, expected in layer.features.items():
        found = again.features[name]
        for field in ("combiner", "padding_id", "namespace", "per_column"):
            assert getattr(found, field) == getattr(expected, field)
        for field in ("name", "dim", "default_row", "bad_gradients"):
            assert getattr(found.table, field) == getattr(expected.table, field)
        assert found.table.row_initializer() == expected.table.row_initializer()
        assert found.table.sparse_optimizer() == expected.table.sparse_optimizer()
        assert expected.table.seed in (None, found.table.seed)


def test_an_optimizer_of_two_tables_is_one_object_again():
    layer = DynamicEmbedding(features("one optimizer"))
    again = DynamicEmbedding.from_config(layer.get_config())
    inputs = {"a": np.array([1]), "b": np.array([1])}
    again(inputs)
    a, b = (again.features[name].table.optimizer for name in "ab")
    assert a is b
    assert len(again.tables) == len(layer.features) - 1


def test_a_storage_of_two_layers_is_one_budget_again(tmp_path):
    storage = TieredStorage("1MB")
    inputs = keras.Input((COLUMNS,), dtype="int64")
    outputs = [DynamicEmbedding(table(n), storage)(inputs) for n in ("a", "b")]
    keras.Model(inputs, outputs).save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    first, second = layers_of(loaded)
    assert first.storage is second.storage


def test_keras_passes_the_error_on(tmp_path):
    model = functional()
    model.save_weights(tmp_path / "model.weights.h5")
    other = functional(DynamicEmbedding(table(optimizer=SGD), name="embedding"))
    with warnings.catch_warnings(), pytest.raises(ValueError, match="slots of 'sgd'"):
        warnings.simplefilter("ignore")  # Keras warns before it gives the reason.
        other.load_weights(tmp_path / "model.weights.h5")


def test_tables_beyond_the_limit_are_not_saved(tmp_path):
    model = functional(embedding(save_limit="5KB"))
    layer = layer_of(model)
    layer.write_rows(np.arange(100), np.zeros((100, DIM)), 0)
    # 24 bytes of header, 3 weights and 6 slots, in eights.
    row_bytes = layer.stats()["ads"]["row_bytes"]
    held = f"{row_bytes / 10:.1f} KB"
    message = (
        "Layer 'embedding' saves at most save_limit='5KB' of rows through Keras, since "
        "they pass through memory whole and into one file. Received: "
        f"{held} of rows. Raise the limit if that fits: "
        f'DynamicEmbedding(..., save_limit="{row_bytes / 5:.1f} KB").'
    )
    for save in (
        lambda: model.save(tmp_path / "model.keras"),
        lambda: model.save_weights(tmp_path / "model.weights.h5"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            save()
    layer.save_limit = f"{row_bytes / 5:.1f} KB"
    model.save(tmp_path / "model.keras")


def test_a_limit_that_is_no_size_is_refused():
    with pytest.raises(ValueError, match=re.escape("Received: save_limit='much'.")):
        embedding(save_limit="much")


# Copies.


def test_a_cloned_model_has_a_table_of_its_own():
    model = functional(DynamicEmbedding(table(optimizer=adam())))
    fit(model)
    clone = keras.models.clone_model(model)
    assert layer_of(clone).size() == 0
    before = tables(layer_of(model))
    fit(clone, first=1)
    for column, expected in zip(tables(layer_of(model))[0], before[0], strict=True):
        np.testing.assert_array_equal(column, expected)


def test_a_copy_starts_from_the_same_rows_though_no_seed_was_given():
    layer = DynamicEmbedding(table())
    copy = DynamicEmbedding.from_config(layer.get_config())
    ids, _ = data(2)
    np.testing.assert_array_equal(copy(ids, training=True), layer(ids, training=True))


def test_two_layers_with_one_table_config_share_no_rows(tmp_path):
    ads = table(seed=1)
    inputs = keras.Input((COLUMNS,), dtype="int64")
    left, right = DynamicEmbedding(ads), DynamicEmbedding(ads)
    model = keras.Model(inputs, [left(inputs), right(inputs)])
    left.write_rows([5], [[1, 1, 1]], 0)
    np.testing.assert_array_equal(right.read_rows([5], 0), [[0, 0, 0]])
    model.save(tmp_path / "model.keras")
    left, right = layers_of(keras.models.load_model(tmp_path / "model.keras"))
    np.testing.assert_array_equal(left.read_rows([5], 0), [[1, 1, 1]])
    np.testing.assert_array_equal(right.read_rows([5], 0), [[0, 0, 0]])


# Weights that are set without the rows.

PARTED = (
    r"rows of table 'ads' are those after {} updates, but the layer's weights are "
    r"those after {}\. The weights were set without the rows, as by `set_weights` or "
    r"EarlyStopping\(restore_best_weights=True\): neither can carry a table\."
)


UNSAVABLE = (
    r"Layer 'embedding' cannot be saved: its rows and its weights must be of the same "
    r"moment\. Received: rows of table 'ads' after \d updates, weights after \d\. If "
    r"weights were set without the rows, .* go back by `load_weights`, which carries "
    r"both\. If another thread trains the layer, save between its steps\."
)


def assert_refuses_everything(model, message, folder):
    ids, labels = data(1)
    for use in (
        lambda: model.predict(ids, verbose=0),
        lambda: model.evaluate(ids, labels, verbose=0),
        lambda: model.fit(ids, labels, verbose=0),
        lambda: model(ids),
    ):
        with pytest.raises(tf.errors.FailedPreconditionError, match=message):
            use()
    for save in (
        lambda: model.save(folder / "parted.keras"),
        lambda: model.save_weights(folder / "parted.weights.h5"),
    ):
        with pytest.raises(ValueError, match=UNSAVABLE):
            save()


def test_weights_set_without_rows_are_loud(tmp_path):
    model = functional()
    fit(model)
    weights = model.get_weights()
    model.save_weights(tmp_path / "model.weights.h5")
    model.set_weights(weights)  # Of the same moment: nothing is lost.
    fit(model, compile_it=False)
    expected = tables(layer_of(model))
    model.set_weights(weights)
    assert_refuses_everything(model, PARTED.format(4, 2), tmp_path)
    for column, before in zip(tables(layer_of(model))[0], expected[0], strict=True):
        np.testing.assert_array_equal(column, before)
    model.load_weights(tmp_path / "model.weights.h5")
    assert np.isfinite(fit(model, compile_it=False)).all()


def test_weights_given_to_a_clone_are_loud(tmp_path):
    model = functional()
    fit(model)
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    clone.compile("sgd", "mean_squared_error")
    assert_refuses_everything(clone, PARTED.format(0, 2), tmp_path)


def test_early_stopping_that_restores_weights_is_loud(tmp_path):
    model = functional()
    model.compile("sgd", "mean_squared_error")
    ids, labels = data(1)
    # The loss falls, so the first epoch has the largest.
    stop = keras.callbacks.EarlyStopping(
        "loss", mode="max", patience=1, restore_best_weights=True
    )
    model.fit(ids, labels, epochs=9, verbose=0, callbacks=[stop])
    assert_refuses_everything(model, PARTED.format(2, 1), tmp_path)


def test_the_best_model_of_a_checkpoint_carries_its_rows(tmp_path):
    model = functional()
    model.compile("sgd", "mean_squared_error")
    ids, labels = data(1)
    path = str(tmp_path / "best.weights.h5")
    save = keras.callbacks.ModelCheckpoint(
        path, "loss", mode="max", save_best_only=True, save_weights_only=True
    )
    model.fit(ids, labels, epochs=3, verbose=0, callbacks=[save])
    model.load_weights(path)
    assert layer_of(model).stats()["ads"]["step"] == 1
    assert np.isfinite(model.predict(ids, verbose=0)).all()


def test_a_step_of_another_thread_while_saving_is_loud(tmp_path, monkeypatch):
    model = functional()
    fit(model)
    model.run_eagerly = False
    model.make_train_function(force=True)
    table = layer_of(model).tables["ads"]
    save_rows = table.save_rows

    def interrupted():
        rows = save_rows()
        other = threading.Thread(target=model.train_on_batch, args=data(1))
        other.start()
        other.join()
        return rows

    monkeypatch.setattr(table, "save_rows", interrupted)
    message = (
        "Layer 'embedding' cannot be saved while another thread trains it. Received: "
        "table 'ads' after 2 updates when saving began, after 3 when it ended. Save "
        "between the steps of training."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        model.save(tmp_path / "model.keras")


# What Keras and TensorFlow would save without the rows.


NO_EXPORT = (
    r"Layer 'embedding' cannot be exported by Model\.export or tf\.saved_model\.save: "
    r"its rows are no TensorFlow variables, and the file would be without them\."
)


@pytest.mark.parametrize("name", ["functional", "sequential", "nested"])
def test_export_is_refused(name, tmp_path):
    model = MODELS[name]()
    with pytest.raises(ValueError, match=NO_EXPORT):
        model.export(tmp_path / "model", verbose=False)
    with pytest.raises(ValueError, match=NO_EXPORT):
        tf.saved_model.save(model, str(tmp_path / "model"))


def test_export_of_a_subclassed_model_is_refused(tmp_path):
    model = subclassed()
    model(data(1)[0])
    # Keras tries it on floats first, and that is refused before.
    with pytest.raises(ValueError, match="Layer 'embedding' expects ids of an integer"):
        model.export(tmp_path / "model", verbose=False)


LEGACY = (
    "Layer 'embedding' cannot be saved in the legacy format of Keras: its rows are no "
    "variables, and the file would be without them. Received: that format, as for a "
    "path that ends in '.h5' or '.hdf5'. Save the model as '.keras', or by "
    "model.save_weights as '.weights.h5', which carry them."
)


@pytest.mark.parametrize("name", ["functional", "sequential", "nested"])
def test_the_legacy_format_is_refused(name, tmp_path):
    model = MODELS[name]()
    layer_of(model).write_rows([7], [[4, 5, 6]], 1)
    with pytest.raises(NotImplementedError, match=re.escape(LEGACY)):
        model.save(tmp_path / "model.h5")


def test_a_checkpoint_of_the_legacy_format_is_refused_after_one_epoch(tmp_path):
    model = functional()
    model.compile("sgd", "mean_squared_error")
    save = keras.callbacks.ModelCheckpoint(str(tmp_path / "model.h5"))
    with pytest.raises(NotImplementedError, match=re.escape(LEGACY)):
        model.fit(*data(1), epochs=2, verbose=0, callbacks=[save])
    assert layer_of(model).stats()["ads"]["step"] == 1


def test_a_tensorflow_checkpoint_is_refused(make, tmp_path):
    model = make()
    fit(model)
    message = (
        "Layer 'embedding' cannot be saved by tf.train.Checkpoint: its rows are no "
        "TensorFlow variables, and the checkpoint would be without them. Use "
        "model.save_weights, or model.save, which carry them."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        tf.train.Checkpoint(model=model).save(str(tmp_path / "checkpoint"))
