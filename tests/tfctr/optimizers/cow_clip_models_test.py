"""CowClip in a model: what is clipped, and by which optimizer the rest moves."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfctr.feature import Feature
from tfctr.models import StaticTables
from tfctr.optimizers import CowClip


def two_tables(optimizer_of, run_eagerly=True):
    """A table that may be named, one that is not, one of width 1, and dense weights."""
    keras.utils.set_random_seed(4)
    named = keras.layers.Embedding(6, 2, name="named")
    other = keras.layers.Embedding(6, 2, name="other")
    linear = keras.layers.Embedding(6, 1, name="linear")
    inputs = keras.Input((2,), dtype="int64")
    parts = [keras.layers.Flatten()(layer(inputs)) for layer in (named, other, linear)]
    dense = keras.layers.Dense(1, name="dense")
    model = keras.Model(inputs, dense(keras.layers.Concatenate()(parts)))
    optimizer = optimizer_of(named, linear)
    model.compile(optimizer, "mean_squared_error", run_eagerly=run_eagerly)
    return model


def weights_of(model):
    return {weight.path: weight.numpy() for weight in model.weights}


def trained(optimizer_of, **options):
    model = two_tables(optimizer_of, **options)
    rng = np.random.default_rng(5)
    x, y = rng.integers(0, 6, (16, 2)), rng.normal(size=16)
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    return model


def test_other_variables_are_left_alone():
    """In the first step: afterwards all of them feel the clipped ones."""
    models = [
        two_tables(lambda *_: keras.optimizers.SGD(1e-4)),
        two_tables(lambda *layers: CowClip(keras.optimizers.SGD(1e-4), layers, 1e-3)),
    ]
    for model in models:
        model.train_on_batch(np.array([[1, 2], [3, 1]]), np.array([50.0, 90.0]))
    plain, wrapped = map(weights_of, models)
    for path, value in plain.items():
        is_equal = np.allclose(value, wrapped[path], rtol=1e-6, atol=1e-8)
        assert is_equal == (path != "named/embeddings"), path
    share = models[1].optimizer.clipped_share
    assert share == {"named": 1.0, "linear": 0.0}


def test_a_linear_table_is_clipped_when_asked():
    model = trained(lambda *layers: CowClip("sgd", layers, 1e-6, clip_linear=True))
    assert model.optimizer.clipped_share == {"named": 1.0, "linear": 1.0}


def test_embeddings_may_have_an_optimizer_of_their_own():
    def optimizer_of(named, linear):
        return CowClip(
            keras.optimizers.SGD(1e-3),
            [named],
            ratio=np.inf,
            embedding_optimizer=keras.optimizers.Adam(1e-2),
        )

    model = trained(optimizer_of)
    optimizer = model.optimizer
    assert float(optimizer.learning_rate) == pytest.approx(1e-3)
    assert float(optimizer.embedding_learning_rate) == pytest.approx(1e-2)
    assert int(optimizer.iterations) == 4
    assert int(optimizer.embedding_optimizer.iterations) == 4
    moments = [v.path for v in optimizer.variables if "momentum" in v.path]
    assert len(moments) == 1 and moments[0].endswith("/named_embeddings_momentum")
    before = weights_of(model)
    optimizer.embedding_learning_rate = 0.0
    model.train_on_batch(np.array([[1, 2]]), np.array([50.0]))
    after = weights_of(model)
    for path, value in before.items():
        assert np.array_equal(value, after[path]) == (path == "named/embeddings")
    optimizer.embedding_learning_rate = 1e-2
    optimizer.learning_rate = 0.0
    model.train_on_batch(np.array([[1, 2]]), np.array([50.0]))
    for path, value in weights_of(model).items():
        assert np.array_equal(value, after[path]) == (path != "named/embeddings")


def test_one_optimizer_given_twice_is_one():
    adam = keras.optimizers.Adam()
    assert CowClip(adam, embedding_optimizer=adam).embedding_optimizer is None


def test_averages_of_weights_end_in_the_weights():
    def average(*_, **options):
        return keras.optimizers.SGD(1e-4, use_ema=True, ema_momentum=0.5, **options)

    plain = weights_of(trained(average))
    for make in (
        lambda *layers: CowClip(average(), layers, np.inf),
        lambda *layers: CowClip(
            average(), layers, np.inf, embedding_optimizer=average(name="other")
        ),
    ):
        for path, value in weights_of(trained(make)).items():
            np.testing.assert_allclose(value, plain[path], rtol=1e-5, atol=1e-7)


def test_callbacks_set_the_learning_rate():
    model = two_tables(lambda *layers: CowClip(keras.optimizers.SGD(1.0), layers))
    halve = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    plateau = keras.callbacks.ReduceLROnPlateau("loss", 0.1, patience=1, min_delta=1e9)
    x, y = np.zeros((4, 2)), np.zeros(4)
    model.fit(x, y, epochs=2, verbose=0, callbacks=[halve])
    assert float(model.optimizer.learning_rate) == 0.25
    model.fit(x, y, epochs=2, verbose=0, callbacks=[plateau])
    assert float(model.optimizer.optimizer.learning_rate) == pytest.approx(0.025)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision(policy):
    """Keras scales the loss of float16, and unscales before CowClip clips."""
    keras.config.set_dtype_policy(policy)
    try:
        model = trained(
            lambda *layers: CowClip(keras.optimizers.SGD(1.0), layers, 0.0, 1e-3),
            run_eagerly=False,
        )
        before = two_tables(lambda *_: "sgd").get_layer("named").embeddings.numpy()
    finally:
        keras.config.set_dtype_policy("float32")
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    assert (optimizer is model.optimizer) == (policy == "mixed_bfloat16")
    assert optimizer.clipped_share == {"named": 1.0, "linear": 0.0}
    # Four steps, with at most four samples each.
    moved = model.get_layer("named").embeddings.numpy() - before
    lengths = np.linalg.norm(moved, axis=1)
    assert (lengths > 0.0005).all() and (lengths < 0.0161).all()


def test_static_tables_of_a_model():
    """Their layer holds a table for each feature, and bags as ragged ids."""
    features = [
        Feature("user", "int64"),
        Feature("ids", "int64", width=2),
        Feature("tags", "int64", is_bag=True),
    ]
    vocabularies = {"user": [1, 2], "ids": [5, 6], "tags": [7, 8]}
    layer = StaticTables(vocabularies).layer("vectors", features, 3)
    inputs = {
        "user": tf.constant([1, 2, 1], tf.int64),
        "ids": tf.constant([[5, 5], [6, 5], [5, 5]], tf.int64),
        "tags": tf.ragged.constant([[7, 7, 8], [], [7]], dtype=tf.int64),
    }
    layer(inputs)
    optimizer = CowClip(keras.optimizers.SGD(1.0), [layer], ratio=0.0, floor=0.001)
    optimizer.build(layer.trainable_variables)
    before = [one.numpy() for one in layer.trainable_variables]
    with tf.GradientTape() as tape:
        outputs = layer(inputs)
        # As much for each vector: rows move by `floor` for each sample with the id.
        value = sum(tf.reduce_sum(vectors) for vectors in outputs.values())
    gradients = tape.gradient(value, layer.trainable_variables)
    optimizer.apply(gradients, layer.trainable_variables)
    found = {
        variable.path: np.round(
            np.linalg.norm(variable.numpy() - old, axis=1) / 0.001
        ).tolist()
        for variable, old in zip(layer.trainable_variables, before, strict=True)
    }
    assert found == {
        "vectors/user_table/embeddings": [0, 2, 1],
        "vectors/ids_table/embeddings": [0, 3, 1],
        "vectors/tags_table/embeddings": [0, 2, 1],
    }
    assert len(optimizer.clipped_share) == 3
