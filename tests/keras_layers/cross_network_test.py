"""`CrossNetwork` against the papers' formulas, one example and one layer at a time."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers.cross_network import CrossNetwork

D = 5
NUM_LAYERS = 3
VARIANTS = {
    "vector": {"variant": "vector"},
    "matrix": {"variant": "matrix"},
    "low_rank": {"variant": "matrix", "rank": 2},
    "mixture": {"variant": "mixture", "rank": 2, "num_experts": 4},
}


@pytest.fixture(params=sorted(VARIANTS))
def options(request):
    return VARIANTS[request.param]


def float64_layer(options):
    """A built layer in double precision whose biases are not zero."""
    keras.utils.set_random_seed(0)
    layer = CrossNetwork(NUM_LAYERS, **options, dtype="float64")
    layer.build((None, D))
    rng = np.random.default_rng(1)
    for weight in layer.weights:
        weight.assign(rng.normal(size=weight.shape))
    return layer


def named_weights(layer):
    return {weight.name: weight.numpy() for weight in layer.weights}


def cross_one_example(x_0, weights, options):
    """The formulas of the papers; `x_0` is (d,)."""
    x = x_0
    for layer in range(NUM_LAYERS):
        bias = weights[f"bias_{layer}"]
        if options["variant"] == "vector":
            x = x_0 * np.dot(weights[f"kernel_{layer}"][:, 0], x) + bias + x
        elif options["variant"] == "matrix" and "rank" not in options:
            x = x_0 * (weights[f"kernel_{layer}"].T @ x + bias) + x
        elif options["variant"] == "matrix":
            reduced = weights[f"reduce_{layer}"].T @ x
            x = x_0 * (weights[f"expand_{layer}"].T @ reduced + bias) + x
        else:
            odds = np.exp(weights["gate"].T @ x)
            change = np.zeros_like(x)
            for expert, share in enumerate(odds / odds.sum()):
                reduced = np.tanh(weights[f"reduce_{layer}"][expert].T @ x)
                hidden = np.tanh(weights[f"transform_{layer}"][expert].T @ reduced)
                crossed = x_0 * (weights[f"expand_{layer}"][expert].T @ hidden + bias)
                change = change + share * crossed
            x = change + x
    return x


def cross(x, weights, options):
    return np.stack([cross_one_example(row, weights, options) for row in x])


def derivative(function, values):
    """Gradient of a real function by complex steps: exact to rounding."""
    gradient = np.zeros(values.shape)
    for index in np.ndindex(values.shape):
        stepped = values.astype("complex128")
        stepped[index] += 1e-30j
        gradient[index] = function(stepped).imag / 1e-30
    return gradient


def test_output_is_that_of_the_formulas(options):
    layer = float64_layer(options)
    x = np.random.default_rng(2).normal(size=(4, D))
    expected = cross(x, named_weights(layer), options)
    np.testing.assert_allclose(layer(x), expected, rtol=1e-12)


def test_gradients_are_those_of_the_formulas(options):
    layer = float64_layer(options)
    rng = np.random.default_rng(2)
    x, upstream = rng.normal(size=(4, D)), rng.normal(size=(4, D))
    weights = named_weights(layer)
    inputs = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        loss = tf.reduce_sum(layer(inputs) * upstream)
    sources = {w.name: w.value for w in layer.trainable_weights}
    gradients = tape.gradient(loss, {"inputs": inputs, **sources})
    assert gradients.keys() == {"inputs", *weights}

    expected = derivative(
        lambda value: np.sum(cross(value, weights, options) * upstream), x
    )
    np.testing.assert_allclose(gradients["inputs"], expected, rtol=1e-10, atol=1e-10)
    for name in weights:
        expected = derivative(
            lambda value, name=name: np.sum(
                cross(x, {**weights, name: value}, options) * upstream
            ),
            weights[name],
        )
        np.testing.assert_allclose(gradients[name], expected, rtol=1e-10, atol=1e-10)


def test_one_vector_layer_by_hand():
    layer = CrossNetwork(1, kernel_initializer="ones")
    # x (1 + sum(x)), the bias being zero.
    np.testing.assert_array_equal(layer(np.array([[1.0, 2.0]])), [[4.0, 8.0]])


def test_zero_kernels_leave_the_inputs_unchanged(options):
    x = np.random.default_rng(2).normal(size=(4, D)).astype("float32")
    layer = CrossNetwork(NUM_LAYERS, **options, kernel_initializer="zeros")
    np.testing.assert_array_equal(layer(x), x)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("vector", NUM_LAYERS * (D + D)),
        ("matrix", NUM_LAYERS * (D * D + D)),
        ("low_rank", NUM_LAYERS * (2 * D * 2 + D)),
        ("mixture", NUM_LAYERS * (4 * (2 * D * 2 + 2 * 2) + D) + 4 * D),
    ],
)
def test_number_of_parameters(name, count):
    layer = CrossNetwork(NUM_LAYERS, **VARIANTS[name])
    layer.build((None, D))
    assert layer.count_params() == count


@pytest.mark.parametrize(
    "make_seed", [lambda: None, lambda: 7, lambda: keras.random.SeedGenerator(7)]
)
def test_no_two_kernels_start_equal(options, make_seed):
    initializer = keras.initializers.GlorotNormal(seed=make_seed())
    layer = CrossNetwork(NUM_LAYERS, **options, kernel_initializer=initializer)
    layer.build((None, D))
    weights = named_weights(layer)
    kernels = [v for k, v in weights.items() if not k.startswith("bias")]
    numbers = np.concatenate([kernel.ravel() for kernel in kernels])
    assert len(np.unique(numbers)) == len(numbers)


@pytest.mark.parametrize("seed", [None, 7])
def test_initial_weights_follow_the_seed(options, seed):
    def initial_weights():
        keras.utils.set_random_seed(3)
        initializer = keras.initializers.GlorotNormal(seed=seed)
        layer = CrossNetwork(NUM_LAYERS, **options, kernel_initializer=initializer)
        layer.build((None, D))
        return layer.get_weights()

    for first, second in zip(initial_weights(), initial_weights(), strict=True):
        np.testing.assert_array_equal(first, second)


def test_an_expert_starts_at_the_scale_of_one_matrix():
    keras.utils.set_random_seed(0)
    layer = CrossNetwork(1, variant="mixture", rank=20, num_experts=8)
    layer.build((None, 40))
    largest = np.abs(named_weights(layer)["reduce_0"]).max()
    limit = np.sqrt(6 / (40 + 20))  # Glorot's, for a matrix of 40 x 20.
    assert 0.99 * limit < largest <= limit


def test_a_function_may_initialize_the_kernels():
    def twos(shape, dtype=None):
        return np.full(shape, 2.0, dtype=dtype)

    layer = CrossNetwork(1, kernel_initializer=twos)
    layer.build((None, D))
    np.testing.assert_array_equal(layer.get_weights()[0], np.full((D, 1), 2.0))


def test_regularizer_sees_the_kernels_only(options):
    layer = CrossNetwork(
        NUM_LAYERS, **options, kernel_initializer="ones", kernel_regularizer="l2"
    )
    layer.build((None, D))
    unregularized = NUM_LAYERS * D + D * options.get("num_experts", 0)
    # Keras' "l2" stands for 0.01 times the sum of the squares, here of ones.
    expected = 0.01 * (layer.count_params() - unregularized)
    np.testing.assert_allclose(sum(layer.losses), expected, rtol=1e-6)


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_mixed_policy_computes_in_half_precision(options, half):
    layer = CrossNetwork(NUM_LAYERS, **options, dtype=f"mixed_{half}")
    layer.build((None, D))
    assert {weight.dtype for weight in layer.weights} == {"float32"}
    for weight in layer.weights:
        weight.assign(np.full(weight.shape, weight.name.startswith("bias"), "float32"))
    x = np.array([[1.0, -2.0, 0.0, 4.0, 0.5]])
    # Kernels of zeros and biases of ones: exact in half precision.
    per_layer = np.ones_like(x) if options["variant"] == "vector" else x
    y = layer(x)
    assert y.dtype == half
    np.testing.assert_array_equal(y, x + NUM_LAYERS * per_layer)


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_mixed_policy_reads_whole_kernels_exactly(half):
    layer = CrossNetwork(1, "matrix", kernel_initializer="ones", dtype=f"mixed_{half}")
    y = layer(np.array([[1.0, 2.0, 3.0]]))
    np.testing.assert_array_equal(y, [[7.0, 14.0, 21.0]])


def test_whole_numbers_are_read_as_floats():
    layer = CrossNetwork(1, kernel_initializer="ones")
    y = layer(np.array([[1, 2]], dtype="int64"))
    assert y.dtype == "float32"
    np.testing.assert_array_equal(y, [[4.0, 8.0]])


def test_batch_may_be_unknown(options):
    layer = float64_layer(options)

    @tf.function(input_signature=[tf.TensorSpec((None, D), "float64")])
    def run(x):
        y = layer(x)
        assert y.shape.as_list() == [None, D]
        return y

    x = np.random.default_rng(2).normal(size=(4, D))
    expected = cross(x, named_weights(layer), options)
    np.testing.assert_allclose(run(x), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"num_layers": 0},
            "`num_layers` must be a positive integer. Received: num_layers=0. "
            "Pass the number of cross layers.",
        ),
        (
            {"num_layers": 2.0},
            "`num_layers` must be a positive integer. Received: num_layers=2.0. "
            "Pass the number of cross layers.",
        ),
        (
            {"num_layers": 2, "variant": "bilinear"},
            "`variant` must be one of 'vector', 'matrix', 'mixture'. "
            "Received: variant='bilinear'.",
        ),
        (
            {"num_layers": 2, "variant": "vector", "rank": 4},
            "`rank` applies to variant='matrix' or 'mixture' only. "
            "Received: rank=4, variant='vector'. "
            "Leave rank out, or pass variant='matrix'.",
        ),
        (
            {"num_layers": 2, "variant": "matrix", "rank": 0},
            "`rank` must be a positive integer. Received: rank=0. "
            "Pass None for full kernels.",
        ),
        (
            {"num_layers": 2, "variant": "mixture", "num_experts": 4},
            "`rank` must be a positive integer. Received: rank=None. "
            "Pass the inner width of an expert.",
        ),
        (
            {"num_layers": 2, "variant": "mixture", "rank": 4},
            "`num_experts` must be a positive integer. Received: num_experts=None. "
            "Pass the number of experts.",
        ),
        (
            {"num_layers": 2, "variant": "matrix", "num_experts": 4},
            "`num_experts` applies to variant='mixture' only. "
            "Received: num_experts=4, variant='matrix'. "
            "Leave num_experts out, or pass variant='mixture'.",
        ),
    ],
)
def test_bad_arguments_are_refused(options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        CrossNetwork(**options)


@pytest.mark.parametrize("shape", [(4,), (None, None), (None, 3, 4)])
def test_other_input_shapes_are_refused(shape):
    message = re.escape(
        "`CrossNetwork` layer 'cross' expects inputs of shape (batch, d), with a "
        f"static `d`. Received: input_shape={shape}. "
        "Flatten the embeddings first: keras.layers.Flatten()(embeddings)."
    )
    with pytest.raises(ValueError, match=message):
        CrossNetwork(2, name="cross").build(shape)
    with pytest.raises(ValueError, match=message):
        CrossNetwork(2, name="cross").compute_output_shape(shape)
