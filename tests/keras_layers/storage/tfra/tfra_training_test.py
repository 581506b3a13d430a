"""Models on `TfraStorage`: as on `TieredStorage`, and without the traps of TFRA."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import DynamicEmbedding, Expiry, TableConfig, TieredStorage

FIELDS, VOCABULARY, BATCH = 3, 50, 32


def table(name="ads", optimizer=None, **options):
    rule = optimizer or keras.optimizers.Adam(0.05)
    return TableConfig(name, dim=4, optimizer=rule, **options)


def make_model(storage, **options):
    keras.utils.set_random_seed(1)
    layer = DynamicEmbedding(table(**options), storage=storage, name="embed")
    inputs = keras.Input((FIELDS,), dtype="int64")
    hidden = keras.layers.Flatten()(layer(inputs))
    hidden = keras.layers.Dense(8, activation="relu")(hidden)
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(hidden))
    model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy")
    return model, layer


def click_log(num_batches):
    rng = np.random.default_rng(0)
    ids = rng.zipf(1.3, (num_batches * BATCH, FIELDS)) % VOCABULARY
    return ids, (ids[:, 0] % 2).astype("float32")


class Losses(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.losses = []
        self.total = 0.0

    def on_train_batch_end(self, batch, logs=None):
        # Keras reports the mean so far.
        total = logs["loss"] * (batch + 1)
        self.losses.append(total - self.total)
        self.total = total


def loss_curve(storage, num_batches=200):
    model, layer = make_model(storage)
    ids, labels = click_log(num_batches)
    losses = Losses()
    model.fit(ids, labels, BATCH, verbose=0, shuffle=False, callbacks=[losses])
    return losses.losses, layer, model.predict(ids[:100], verbose=0)


@pytest.fixture(scope="module")
def expected_curve(tfra_storage):
    return loss_curve(TieredStorage())


@pytest.mark.parametrize(
    "fixture", ["tfra_storage", "redis_storage", "small_hybrid_storage"]
)
def test_a_model_learns_as_on_tiered_storage(fixture, request, expected_curve):
    losses, layer, outputs = loss_curve(request.getfixturevalue(fixture)())
    expected, expected_layer, expected_outputs = expected_curve
    np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=2e-5)
    np.testing.assert_allclose(outputs, expected_outputs, rtol=1e-3)
    assert layer.size() == expected_layer.size() > 40
    assert len(losses) == 200
    assert np.mean(losses[-20:]) < 0.5 * np.mean(losses[:20])


# Traps that TFRA's own layers have.


def train(layer, *batches):
    """One step with a call of the layer for each batch; returns their vectors."""
    with tf.GradientTape() as tape:
        vectors = [layer(ids, training=True) for ids in batches]
        loss = tf.add_n([tf.reduce_sum(vector) for vector in vectors])
    tape.gradient(loss, layer.trainable_variables)
    return vectors


def sgd_layer(storage, **options):
    config = table(optimizer=keras.optimizers.SGD(1.0), **options)
    return DynamicEmbedding(config, storage=storage)


def ids_of(*ids):
    return tf.constant([ids], tf.int64)


def test_ids_first_seen_in_different_steps_get_different_vectors(tfra_storage):
    layer = sgd_layer(tfra_storage(), initializer="normal")
    layer.build((None, 1))
    step = tf.function(lambda ids: train(layer, ids)[0])
    vectors = np.concatenate([step(ids_of(i))[0] for i in range(100)])
    assert len(np.unique(vectors, axis=0)) == 100
    assert layer.size() == 100


def test_a_layer_may_be_called_twice_in_a_step(tfra_storage):
    layer = sgd_layer(tfra_storage())
    # Each position is a column, and so a feature.
    one, two = train(layer, ids_of(1, 2), ids_of(7, 8))
    found = layer(tf.concat([ids_of(1, 2), ids_of(7, 8)], 0), training=False)
    np.testing.assert_allclose(found, tf.concat([one, two], 0) - 1.0, rtol=1e-6)
    one, _ = train(layer, ids_of(1, 2), ids_of(1, 2))
    np.testing.assert_allclose(
        layer(ids_of(1, 2), training=False), one - 2.0, rtol=1e-6
    )


def test_layers_of_one_name_share_nothing(tfra_storage):
    storage = tfra_storage()
    layers = [sgd_layer(storage, name="same", seed=7) for _ in range(2)]
    train(layers[0], ids_of(1, 2))
    assert not layers[1](ids_of(1, 2), training=False).numpy().any()
    assert [layer.size() for layer in layers] == [2, 0]


def test_expiry_of_one_table_leaves_those_of_another(tfra_storage):
    storage = tfra_storage()
    expiry = Expiry(every=None, max_rows=20)
    layers = [
        DynamicEmbedding(table(expiry=rule), storage=storage) for rule in (expiry, None)
    ]
    for layer in layers:
        train(layer, tf.range(100, dtype=tf.int64)[:, None])
    [other] = layers[1].tables.values()
    before = other.save_rows()
    assert layers[0].expire() == 80
    assert [layer.size() for layer in layers] == [20, 100]
    # Weights and slots.
    assert before.values.shape == (100, 3 * 4) and np.all(before.values)
    for column, expected in zip(other.save_rows(), before, strict=True):
        np.testing.assert_array_equal(column, expected)


def test_a_saved_model_keeps_its_rows(tfra_storage, tmp_path):
    model, layer = make_model(tfra_storage())
    ids, labels = click_log(1)
    model.train_on_batch(ids, labels)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    again = loaded.get_layer("embed")
    assert type(again.storage) is tfra_storage
    for one in (layer, again):
        train(one, tf.constant(ids))
    np.testing.assert_array_equal(again(ids), layer(ids))
    assert again.size() == layer.size() > 0


def test_dense_layers_build_after_the_import(tfra_storage):
    tfra_storage().open(table(), (0,))
    dense = keras.layers.Dense(2, kernel_initializer="he_normal")
    assert dense(tf.ones((1, 3))).shape == (1, 2)
    with pytest.raises(ValueError, match="unknown"):
        tf.TensorShape(None).as_list()
