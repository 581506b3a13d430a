"""CowClip around Keras optimizers: which rows move how far, by NumPy, id by id."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfctr.optimizers import CowClip

ROWS, DIM = 12, 3
RULE = {"ratio": 0.5, "floor": 0.02, "l2": 0.01}
START = np.random.default_rng(2).normal(scale=0.1, size=(ROWS, DIM)).astype("float32")


def batches(num_batches=6, batch_size=4, width=3):
    """Ids, many twice in a sample; and the gradients of their vectors."""
    rng = np.random.default_rng(1)
    ids = rng.integers(0, 6, (num_batches, batch_size, width))
    ids[:, 0] = ids[:, 0, :1]
    gradients = rng.normal(size=(num_batches, batch_size, width, DIM))
    return ids, gradients.astype("float32")


def clipped(occurrences, table, num_samples):
    """The gradient of each id of a batch, and whether it was clipped.

    `occurrences` are (sample, id, gradient); the loss is a mean over the samples.
    """
    found = {}
    for id in {id for _, id, _ in occurrences}:
        gradient = sum(g for _, other, g in occurrences if other == id) / num_samples
        count = len({sample for sample, other, _ in occurrences if other == id})
        room = count * max(RULE["ratio"] * np.linalg.norm(table[id]), RULE["floor"])
        length = np.linalg.norm(gradient)
        found[id] = (
            gradient * min(1, room / length) + 2 * RULE["l2"] * table[id],
            length > room,
        )
    return found


def occurrences_of(ids, gradients):
    return [
        (sample, id, gradient.astype(float))
        for sample, (row, of_row) in enumerate(zip(ids, gradients, strict=True))
        for id, gradient in zip(row, of_row, strict=True)
    ]


def moved_by_sgd(steps, learning_rate=1.0):
    """The table after steps of `(occurrences, num_samples)`, and the clipped share."""
    table, outcomes = START.astype(float), []
    for occurrences, num_samples in steps:
        found = clipped(occurrences, table.copy(), num_samples)
        for id, (gradient, is_clipped) in found.items():
            table[id] -= learning_rate * gradient
            outcomes.append(is_clipped)
    return table, np.mean(outcomes)


def steps_of(ids, gradients):
    return [
        (occurrences_of(*batch), len(batch[0]))
        for batch in zip(ids, gradients, strict=True)
    ]


def embedding(**options):
    layer = keras.layers.Embedding(ROWS, DIM, **options)
    layer.build(None)
    layer.embeddings.assign(START)
    return layer


def loss(gradients, vectors):
    """By sample. The gradients of its vectors are the labels."""
    return keras.ops.sum(gradients * vectors, axis=(1, 2))


def model_of(layer):
    inputs = keras.Input((3,), dtype="int64")
    return keras.Model(inputs, layer(inputs))


def fit(model, ids, gradients, **options):
    data = tf.data.Dataset.from_tensor_slices((ids, gradients))
    return model.fit(data, shuffle=False, verbose=0, **options)


def rows(layer):
    return layer.embeddings.numpy()


@pytest.mark.parametrize(
    ("options", "gradient"),
    [
        ({"run_eagerly": True}, "sparse"),
        ({"run_eagerly": True}, "dense"),
        ({"steps_per_execution": 4}, "sparse"),
        ({"jit_compile": True}, "sparse"),
        ({"jit_compile": True}, "dense"),
    ],
)
def test_fit_moves_rows_as_numpy_does(options, gradient):
    # A regulariser makes the gradient dense, even of strength zero.
    dense = {"embeddings_regularizer": keras.regularizers.L2(0.0)}
    layer = embedding(**(dense if gradient == "dense" else {}))
    model = model_of(layer)
    optimizer = CowClip(keras.optimizers.SGD(1.0), [layer], **RULE)
    model.compile(optimizer, loss, **options)
    ids, gradients = batches()
    fit(model, ids, gradients)
    expected, share = moved_by_sgd(steps_of(ids, gradients))
    np.testing.assert_allclose(rows(layer), expected, rtol=1e-4, atol=1e-6)
    assert optimizer.clipped_share == {layer.path: pytest.approx(share)}
    assert 0.2 < share < 0.98
    assert int(optimizer.iterations) == 6


@pytest.mark.parametrize("in_graph", [False, True])
def test_a_loop_of_your_own_does_the_same(in_graph):
    layer = embedding()
    optimizer = CowClip(keras.optimizers.SGD(1.0), [layer], **RULE)

    def step(ids, gradients):
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(loss(gradients, layer(ids)))
        variables = layer.trainable_variables
        optimizer.apply(tape.gradient(value, variables), variables)

    step = tf.function(step, autograph=False) if in_graph else step
    ids, gradients = batches()
    for batch in zip(ids, gradients, strict=True):
        layer(tf.constant([[0, 0, 0]]))  # Is no part of the step.
        step(*map(tf.constant, batch))
    expected, _ = moved_by_sgd(steps_of(ids, gradients))
    np.testing.assert_allclose(rows(layer), expected, rtol=1e-4, atol=1e-6)


def test_evaluation_leaves_no_trace():
    layer = embedding()
    model = model_of(layer)
    model.compile(
        CowClip(keras.optimizers.SGD(1.0), [layer], **RULE), loss, run_eagerly=True
    )
    ids, gradients = batches()
    for batch in zip(ids, gradients, strict=True):
        model.predict_on_batch(ids[0])
        model.test_on_batch(ids[1], gradients[1])
        model.train_on_batch(*batch)
    expected, _ = moved_by_sgd(steps_of(ids, gradients))
    np.testing.assert_allclose(rows(layer), expected, rtol=1e-4, atol=1e-6)


def one_step(occurrences, num_samples, look_up):
    """Moves the rows of a layer by one step, with the loss that `look_up` returns."""
    layer = embedding()
    optimizer = CowClip(keras.optimizers.SGD(1.0), [layer], **RULE)
    with tf.GradientTape() as tape:
        value = look_up(layer)
    variables = layer.trainable_variables
    optimizer.apply(tape.gradient(value, variables), variables)
    expected, _ = moved_by_sgd([(occurrences, num_samples)])
    np.testing.assert_allclose(rows(layer), expected, rtol=1e-4, atol=1e-6)


def test_calls_of_one_batch_are_about_the_same_samples():
    first, second = batches(2)[0]
    gradients = batches(2)[1]
    occurrences = occurrences_of(first, gradients[0])
    occurrences += occurrences_of(second, gradients[1])

    def look_up(layer):
        return tf.reduce_mean(
            loss(gradients[0], layer(first)) + loss(gradients[1], layer(second))
        )

    one_step(occurrences, 4, look_up)


def test_calls_of_other_batches_are_about_other_samples():
    ids, gradients = batches(2)
    more, of_more = ids[1][:3], gradients[1][:3]
    occurrences = occurrences_of(ids[0], gradients[0])
    occurrences += [(f"other {s}", *rest) for s, *rest in occurrences_of(more, of_more)]

    def look_up(layer):
        losses = (loss(gradients[0], layer(ids[0])), loss(of_more, layer(more)))
        return sum(map(tf.reduce_sum, losses)) / 4

    one_step(occurrences, 4, look_up)


def test_bags_belong_to_their_samples():
    ids, gradients = batches(1, batch_size=5)
    lengths = [3, 0, 1, 2, 3]
    occurrences = [
        (sample, ids[0, sample, place], gradients[0, sample, place].astype(float))
        for sample, length in enumerate(lengths)
        for place in range(length)
    ]
    flat = [id for _, id, _ in occurrences]
    values = np.array([gradient for _, _, gradient in occurrences], "float32")

    def look_up(layer):
        vectors = layer(tf.RaggedTensor.from_row_lengths(flat, lengths))
        return tf.reduce_sum(vectors.flat_values * values) / 5

    one_step(occurrences, 5, look_up)

    def look_up_nested(layer):
        # The second and third bag are two of one sample.
        bags = tf.RaggedTensor.from_row_lengths(flat, lengths)
        nested = tf.RaggedTensor.from_row_lengths(bags, [1, 2, 2])
        return tf.reduce_sum(layer(nested).flat_values * values) / 3

    sample_of = [0, 1, 1, 2, 2]
    nested = [(sample_of[sample], *rest) for sample, *rest in occurrences]
    one_step(nested, 3, look_up_nested)


@pytest.mark.parametrize("shape", [(12,), (4, 3), (2, 3, 2)])
def test_ids_of_any_rank(shape):
    ids, gradients = batches(1)
    flat = gradients.reshape(shape[0], -1, DIM)
    occurrences = occurrences_of(ids.reshape(shape[0], -1), flat)

    def look_up(layer):
        vectors = layer(tf.constant(ids.reshape(shape)))
        return tf.reduce_sum(vectors * gradients.reshape(*shape, DIM)) / shape[0]

    one_step(occurrences, shape[0], look_up)


def test_negative_and_float_ids_are_read_as_keras_does():
    ids, gradients = batches(1)
    occurrences = occurrences_of(ids[0], gradients[0])

    def look_up(layer):
        odd = np.where(ids[0] % 2, ids[0] - ROWS, ids[0]).astype("float32")
        return tf.reduce_mean(loss(gradients[0], layer(odd)))

    one_step(occurrences, 4, look_up)


def test_micro_batches_that_are_applied_at_once_are_other_samples():
    ids, gradients = batches(2)
    layer = embedding()
    optimizer = CowClip(keras.optimizers.SGD(1.0), [layer], **RULE)
    total = 0.0
    for batch, labels in zip(ids, gradients, strict=True):
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(loss(labels, layer(batch))) / 8
        [gradient] = tape.gradient(value, layer.trainable_variables)
        total += tf.convert_to_tensor(gradient)
    optimizer.apply([total], layer.trainable_variables)
    together = (np.concatenate(one)[np.newaxis] for one in (ids, gradients))
    expected, _ = moved_by_sgd(steps_of(*together))
    np.testing.assert_allclose(rows(layer), expected, rtol=1e-4, atol=1e-6)


def test_the_inner_optimizer_sees_each_row_once():
    ids, gradients = batches(1)
    layer = embedding()
    optimizer = CowClip(
        keras.optimizers.Adagrad(0.1, initial_accumulator_value=0.2), [layer], **RULE
    )
    model = model_of(layer)
    model.compile(optimizer, loss)
    fit(model, ids, gradients)
    expected = START.astype(float)
    for id, (g, _) in clipped(occurrences_of(ids[0], gradients[0]), START, 4).items():
        expected[id] -= 0.1 * g / np.sqrt(0.2 + g**2 + 1e-7)
    np.testing.assert_allclose(rows(layer), expected, rtol=1e-4, atol=1e-6)


def test_the_reference_code_moves_all_rows_by_l2():
    layer = embedding()
    model = model_of(layer)
    rule = {**RULE, "variant": "reference_code"}
    model.compile(CowClip(keras.optimizers.SGD(1.0), [layer], **rule), loss)
    ids, gradients = batches(1)
    fit(model, ids, gradients)
    gradient, counts = np.zeros((ROWS, DIM)), np.ones(ROWS)
    for id in np.unique(ids):
        where = ids[0] == id
        gradient[id] = gradients[0][where].sum(0) / 4
        counts[id] = where.any(1).sum()
    gradient += 2 * RULE["l2"] * START
    least = RULE["ratio"] * np.sqrt(DIM) * RULE["floor"]
    room = np.maximum(np.linalg.norm(START, axis=1), least) * counts * RULE["ratio"]
    scale = room / np.maximum(np.linalg.norm(gradient, axis=1), room)
    expected = START - gradient * scale[:, np.newaxis]
    np.testing.assert_allclose(rows(layer), expected, rtol=1e-4, atol=1e-6)
    assert (expected[6:] != START[6:]).all()  # Absent ids.


def test_without_dense_weights_both_optimizers_count():
    layer = embedding()
    model = model_of(layer)
    optimizer = CowClip("sgd", [layer], embedding_optimizer=keras.optimizers.SGD(1.0))
    model.compile(optimizer, loss)
    fit(model, *batches())
    assert int(optimizer.iterations) == 6
    assert (rows(layer) != START).any()


def test_schedules_see_the_steps():
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([0], [1.0, 0.0])
    layer = embedding()
    model = model_of(layer)
    model.compile(CowClip(keras.optimizers.SGD(schedule), [layer], **RULE), loss)
    ids, gradients = batches()
    fit(model, ids, gradients)
    expected, _ = moved_by_sgd(steps_of(ids[:1], gradients[:1]))
    np.testing.assert_allclose(rows(layer), expected, rtol=1e-4, atol=1e-6)


def test_one_table_may_serve_two_models():
    layer = embedding()
    models = [model_of(layer), model_of(layer)]
    for model in models:
        model.compile(CowClip(keras.optimizers.SGD(1.0), [layer], **RULE), loss)
    ids, gradients = batches()
    for step in range(6):
        models[step % 2].train_on_batch(ids[step], gradients[step])
    expected, _ = moved_by_sgd(steps_of(ids, gradients))
    np.testing.assert_allclose(rows(layer), expected, rtol=1e-4, atol=1e-6)


def test_a_clone_has_calls_of_its_own():
    layer = embedding()
    model = model_of(layer)
    model.compile(CowClip(keras.optimizers.SGD(1.0), [layer], **RULE), loss)
    ids, gradients = batches()
    fit(model, ids, gradients)
    with keras.saving.custom_object_scope({"loss": loss}):
        clone = keras.models.clone_model(model)  # Keras compiles it too.
    clone.set_weights([START])
    fit(clone, ids, gradients)
    np.testing.assert_array_equal(clone.get_weights()[0], rows(layer))
    assert clone.optimizer.clipped_share == model.optimizer.clipped_share
