"""`KStepAdam` on real ranks, against the same training written in NumPy.

The numbers in `VECTORS` were worked out from the listings of the papers.
"""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_layers import DynamicEmbedding, FeatureConfig, TableConfig
from tfctr import distributed
from tfctr.distributed import engine
from tfctr.optimizers import KStepAdam

RANKS = 2
FROZEN, WEIGHTS, MOMENTS = "frozen_denominator", "parameters", "parameters_and_moments"
MODES = (FROZEN, WEIGHTS, MOMENTS)

# The reference.


def reference(
    merge,
    gradient,
    steps,
    *,
    k,
    x,
    learning_rate=0.1,
    epsilon=1e-8,
    warmup_merges=1,
    bias_correction=False,
    amsgrad=True,
    forced=(),
    private=False,
):
    """Returns `x`, `m`, `v` and `s` of all workers, `(workers, ...)`, after each step.

    `gradient(step, x)` gives those of all workers; `forced` are the steps after which
    they merge anyway. `private` is what nobody should do: a denominator per worker.
    """
    x, first = np.array(x, np.float64), {FROZEN: 1}.get(merge, k)
    m, v, s = np.zeros_like(x), np.zeros_like(x), np.full_like(x, epsilon)
    refreshed, history = 0, []

    def mean(of_workers):
        return np.broadcast_to(of_workers.mean(0), of_workers.shape).copy()

    for t in range(1, steps + 1):
        g = gradient(t, x)
        m = 0.9 * m + (1 - 0.9) * g
        v = 0.999 * v + (1 - 0.999) * g**2
        merges = (t - first) % k == 0 or (t <= warmup_merges and merge == FROZEN)
        for moment in ("scheduled", "forced"):
            if moment == "forced" and (merges or t not in forced):
                continue
            if merge == FROZEN and (merges or moment == "forced"):
                s = np.maximum(v if private else mean(v), s if amsgrad else epsilon)
                refreshed = t
            if moment == "scheduled":
                if merge != FROZEN:
                    root = np.sqrt(v / (1 - 0.999**t)) + epsilon
                    x = x - learning_rate * (m / (1 - 0.9**t) / root)
                elif bias_correction:
                    root = np.sqrt(s / (1 - 0.999**refreshed))
                    x = x - learning_rate * (m / (1 - 0.9**t) / root)
                else:
                    x = x - learning_rate * (m / np.sqrt(s))
            if merges or moment == "forced":
                x = mean(x)
                if merge == MOMENTS:
                    m, v = mean(m), mean(v)
        history.append({"x": x, "m": m, "v": v, "s": s})
    return history


def given(gradients):
    """The gradients as a function that `reference` asks."""
    return lambda step, x: np.array(gradients[step - 1], np.float64)


VECTOR_GRADIENTS = [(1, 3), (2, -1), (0, 4), (1, 1)]
VECTORS = {
    (FROZEN, 2): [
        {"x": (0.717157288, 0.717157288), "s": (0.005, 0.005)},
        {"x": (0.307035354, 0.476740982)},
        {"x": (0.064846056, 0.064846056), "s": (0.015487505, 0.015487505)},
        {"x": (-0.204260587, -0.415431759)},
        {"x": (-0.309846173, -0.309846173), "s": (0.0164720175, 0.0164720175)},
    ],
    (WEIGHTS, 2): [
        {"x": (0.900000001, 0.900000000)},
        {"x": (0.831729971, 0.831729971)},
        {"x": (0.757121121, 0.762423901)},
        {"x": (0.686558733, 0.686558733)},
        {"x": (0.686558733, 0.686558733)},
    ],
    (MOMENTS, 2): [
        {"x": (0.900000001, 0.900000000)},
        {"x": (0.831729971, 0.831729971), "m": (0.23, 0.23), "v": (0.007495,) * 2},
        {"x": (0.783404518, 0.751719947)},
        {"x": (0.701027676, 0.701027676), "m": (0.4663,) * 2, "v": (0.016472017,) * 2},
        {"x": (0.701027676, 0.701027676)},
    ],
    (FROZEN, 1): [
        {"x": (0.717157288, 0.717157288)},
        {"x": (0.451487592, 0.451487592)},
        {"x": (0.124445480, 0.124445480)},
        {"x": (-0.238876789, -0.238876789)},
        {"x": (-0.238876789, -0.238876789)},
    ],
}


# What one rank does. All ranks call the same functions, in the same order.


class Calls:
    """Counts the exchanges of the ranks, and what a rank gives to each."""

    def __enter__(self):
        self.names, self.bytes, self.all_reduce = [], [], engine.all_reduce

        def count(tensors, name, average=False, wire_dtype=None):
            self.names.append(name)
            self.bytes.append(sum(one.numpy().nbytes for one in tensors))
            return self.all_reduce(tensors, name, average, wire_dtype)

        engine.all_reduce = count
        return self

    def __exit__(self, *error):
        engine.all_reduce = self.all_reduce


def value(variable):
    return keras.ops.convert_to_numpy(variable).tolist()


def by_name(optimizer, name):
    (found,) = [one for one in optimizer.variables if one.name.endswith(name)]
    return found


def state_of(optimizer, variable):
    state = {"x": value(variable)}
    names = {"m": "_momentum", "v": "_velocity"}
    if optimizer.options.is_frozen:
        names |= {"v": "x_velocity", "s": "_shared_velocity"}
    return state | {key: value(by_name(optimizer, end)) for key, end in names.items()}


def variable_of(start, dtype="float64"):
    return keras.Variable(start, dtype=dtype, name="x")


def make_step(optimizer, variable, graph=True):
    def step(gradient):
        optimizer.apply([gradient], [variable])

    return tf.function(step) if graph else step


def follow(optimizer, gradients, start, graph=True, forced=()):
    """The states after each step with the gradients of this rank, and the last."""
    variable = variable_of(start)
    step = make_step(optimizer, variable, graph)
    states = []
    for t, gradient in enumerate(gradients, start=1):
        step(tf.constant(gradient, tf.float64))
        if t in forced:
            optimizer.merge()
        states.append(state_of(optimizer, variable))
    optimizer.merge()
    return [*states, state_of(optimizer, variable)]


LONG = {"steps": 23, "k": 4, "forced": (6, 8, 9)}
LONG_OPTIONS = {
    "frozen": {"merge": FROZEN, "warmup_merges": 3},
    "frozen, corrected": {"merge": FROZEN, "warmup_merges": 1, "bias_correction": True},
    "frozen, falling": {"merge": FROZEN, "warmup_merges": 0, "amsgrad": False},
    "weights": {"merge": WEIGHTS},
    "moments": {"merge": MOMENTS},
}


def long_gradients():
    """`(steps, workers, 3)`: large at first, so that `s` has a reason to fall."""
    draws = np.random.default_rng(2).normal(size=(LONG["steps"], RANKS, 3))
    draws[:5] *= 10
    # One coordinate moves late, and one on one rank only.
    draws[:3, :, 1] = 0.0
    draws[:, 0, 2] = 0.0
    return draws


def follow_long(options):
    mine = long_gradients()[:, distributed.rank()]
    optimizer = KStepAdam(0.1, k=LONG["k"], epsilon=1e-8, **options)
    return follow(optimizer, mine, np.ones(3), forced=LONG["forced"])


def count_merges(merge):
    """Two variables beside each other, one of them with a statistic."""
    weights = [
        keras.Variable(np.full((3, 2), 1.0 + distributed.rank()), dtype="float32"),
        keras.Variable(np.ones(5), dtype="float32"),
    ]
    statistic = keras.Variable([1.0 + distributed.rank()], trainable=False)
    count = keras.Variable([distributed.rank()], dtype="int64", trainable=False)
    warmup_merges = 2 if merge == FROZEN else None
    optimizer = KStepAdam(1e-2, k=4, merge=merge, warmup_merges=warmup_merges)
    merged = []
    with Calls() as calls:
        for step in range(1, 12):
            before = len(calls.names)
            optimizer.apply([tf.ones((3, 2)), tf.ones(5)], weights)
            if len(calls.names) > before:
                merged.append(step)
        for _ in range(2):
            optimizer.merge()
        optimizer.average_also([statistic, count])
        optimizer.apply([tf.ones((3, 2)), tf.ones(5)], weights)
        optimizer.merge()
        return {
            "merged": merged,
            "names": calls.names,
            "bytes": calls.bytes,
            "merges": optimizer.merges,
            "merge_bytes": optimizer.merge_bytes,
            "statistic": value(statistic),
            "count": value(count),
        }


def follow_equal_gradients():
    gradients = np.random.default_rng(3).normal(size=(12, 4))
    optimizer = KStepAdam(0.1, k=1)
    return follow(optimizer, gradients, np.ones(4), graph=False)


def resume(merge):
    """A training that nobody broke off, and one that was, between two merges."""
    gradients = long_gradients()[:, distributed.rank()]
    options = {"k": LONG["k"], "merge": merge}
    if merge == FROZEN:
        options |= {"warmup_merges": 2, "bias_correction": True}
    whole = follow(KStepAdam(0.1, **options), gradients, np.ones(3))

    variable = variable_of(np.ones(3))
    first = KStepAdam(0.1, **options)
    step = make_step(first, variable)
    for gradient in gradients[:7]:
        step(tf.constant(gradient))
    saved = [value(one) for one in [variable, *first.variables]]

    variable = variable_of(np.zeros(3))
    second = KStepAdam(0.7, **options)
    second.build([variable])
    for one, number in zip([variable, *second.variables], saved, strict=True):
        one.assign(number)
    step, states = make_step(second, variable), []
    for gradient in gradients[7:]:
        step(tf.constant(gradient))
        states.append(state_of(second, variable))
    second.merge()
    states.append(state_of(second, variable))
    return {"whole": whole[7:], "resumed": states}


def replicas(merge):
    """float32, where sums depend on their order: the bits after a merge."""
    variable = variable_of(np.linspace(0.1, 1.0, 7), "float32")
    optimizer = KStepAdam(1e-2, k=3, merge=merge)
    draws = np.random.default_rng(distributed.rank()).normal(size=(9, 7))
    for draw in draws:
        optimizer.apply([tf.constant(draw, tf.float32)], [variable])
    optimizer.merge()
    return {
        "replicated": [value(one) for one in optimizer.replicated_variables],
        "m": value(by_name(optimizer, "_momentum")),
    }


def train_beside_a_table():
    """The table's gradients are constant, and those of the other ranks' rows zero."""
    rank = distributed.rank()
    table = TableConfig("ads", 2, keras.optimizers.SGD(0.5), initializer="ones")
    layer = DynamicEmbedding(FeatureConfig(table))
    weight = variable_of(1.0, "float32")
    optimizer = KStepAdam(0.1, k=2, merge=WEIGHTS)
    for _ in range(4):
        with tf.GradientTape() as tape:
            rows = layer(np.array([7]), training=True)
            loss = (rank + 1.0) * (tf.reduce_sum(rows) + weight)
        variables = [weight, *layer.trainable_variables]
        optimizer.apply(tape.gradient(loss, variables), variables)
    return {"rows": value(layer.read_rows([7])), "weight": value(weight)}


def scenarios():
    keras.config.set_floatx("float64")  # Learning rates, too.
    found = {"vectors": {}}
    for merge, k in VECTORS:
        mine = [gradients[distributed.rank()] for gradients in VECTOR_GRADIENTS]
        for graph in (False, True):
            options = {"epsilon": 1e-8, "warmup_merges": 1} if merge == FROZEN else {}
            optimizer = KStepAdam(0.1, k=k, merge=merge, **{"epsilon": 1e-8, **options})
            name = f"{merge} {k} {graph}"
            found["vectors"][name] = follow(optimizer, mine, 1.0, graph)
    found["long"] = {name: follow_long(some) for name, some in LONG_OPTIONS.items()}
    found["equal"] = follow_equal_gradients()
    found["resume"] = {merge: resume(merge) for merge in MODES}
    keras.config.set_floatx("float32")
    found["counts"] = {merge: count_merges(merge) for merge in MODES}
    found["replicas"] = {merge: replicas(merge) for merge in MODES}
    found["table"] = train_beside_a_table()
    return found


def toy_gradient(step, x):
    """Losses 2x², -x²/2 and -x²/2, all linear beyond 1. The optimum of all is 0."""
    return np.array([4.0, -1.0, -1.0]) * np.clip(x, -1, 1)


TOY = {"steps": 4000, "k": 5, "learning_rate": 1e-3}


def toy():
    keras.config.set_floatx("float64")
    variable = variable_of(0.5)
    slope = [4.0, -1.0, -1.0][distributed.rank()]
    optimizer = KStepAdam(TOY["learning_rate"], k=TOY["k"], warmup_merges=1)
    optimizer.build([variable])

    @tf.function
    def train():
        for _ in tf.range(TOY["steps"]):
            gradient = slope * tf.clip_by_value(variable.value, -1.0, 1.0)
            optimizer.apply([gradient], [variable])

    train()
    optimizer.merge()
    return value(variable)


@pytest.fixture(scope="module")
def found(run_ranks):
    return run_ranks(RANKS, __file__, "scenarios")


def of_all(found, *path):
    """What the ranks have found there, `(steps, ranks, ...)` by name of the state."""
    for key in path:
        found = [of_rank[key] for of_rank in found]
    return [
        {name: np.array([one[name] for one in of_step]) for name in of_step[0]}
        for of_step in zip(*found, strict=True)
    ]


def assert_follows(states, history, tolerance=1e-12):
    for state, expected in zip(states, history, strict=True):
        for name in state:
            np.testing.assert_allclose(
                state[name], expected[name], rtol=tolerance, atol=tolerance
            )


# Against the reference.


@pytest.mark.parametrize("case", VECTORS)
def test_the_reference_follows_the_vectors(case):
    merge, k = case
    options = {"k": k, "x": [1.0, 1.0]}
    history = reference(merge, given(VECTOR_GRADIENTS), 4, **options)
    forced = reference(merge, given(VECTOR_GRADIENTS), 4, forced=(4,), **options)
    for state, expected in zip([*history, forced[-1]], VECTORS[case], strict=True):
        for name, numbers in expected.items():
            np.testing.assert_allclose(state[name], numbers, rtol=0, atol=6e-10)


@pytest.mark.multiprocess
@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("case", VECTORS)
def test_two_ranks_follow_the_vectors(found, case, graph):
    merge, k = case
    states = of_all(found, "vectors", f"{merge} {k} {graph}")
    for state, expected in zip(states, VECTORS[case], strict=True):
        for name, numbers in expected.items():
            np.testing.assert_allclose(state[name], numbers, rtol=0, atol=6e-10)


@pytest.mark.multiprocess
@pytest.mark.parametrize("name", LONG_OPTIONS)
def test_two_ranks_follow_the_reference(found, name):
    options = {"k": LONG["k"], "x": np.ones((RANKS, 3)), **LONG_OPTIONS[name]}
    run = (options.pop("merge"), given(long_gradients()), LONG["steps"])
    history = reference(*run, forced=LONG["forced"], **options)
    last = reference(*run, forced=(*LONG["forced"], LONG["steps"]), **options)[-1]
    states = of_all(found, "long", name)
    assert_follows(states, [*history, last])
    assert all(np.isfinite(state["x"]).all() for state in states)


@pytest.mark.multiprocess
def test_equal_gradients_and_k_1_are_amsgrad_to_the_bit(found):
    x, m, v = np.ones(4), np.zeros(4), np.zeros(4)
    top = np.full(4, 1e-8)
    gradients = np.random.default_rng(3).normal(size=(12, 4))
    states = of_all(found, "equal")
    for gradient, state in zip(gradients, states[:-1], strict=True):
        m = 0.9 * m + (1 - 0.9) * gradient
        v = 0.999 * v + (1 - 0.999) * gradient**2
        top = np.maximum(top, v)
        x = x - 0.1 * (m / np.sqrt(top))
        for of_rank in state["x"]:
            np.testing.assert_array_equal(of_rank, x)


@pytest.mark.multiprocess
@pytest.mark.parametrize("merge", MODES)
def test_a_training_goes_on_between_two_merges(found, merge):
    for of_rank in found:
        states = of_rank["resume"][merge]
        assert states["resumed"] == states["whole"]


# What is exchanged.


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("merge", "merged", "tensors"),
    [(FROZEN, [1, 2, 5, 9], 2), (WEIGHTS, [4, 8], 1), (MOMENTS, [4, 8], 3)],
)
def test_merges_are_counted_with_their_bytes(found, merge, merged, tensors):
    weights = 4 * (3 * 2 + 5)
    for of_rank in found:
        counts = of_rank["counts"][merge]
        assert counts["merged"] == merged
        # Step 12 is scheduled without a frozen denominator, and forced with one. Once
        # the last step has merged, `merge` does nothing.
        ends = {"scheduled": 0, "forced": 2} if merge == FROZEN else None
        ends = ends or {"scheduled": 1, "forced": 1}
        merges = {**ends, "scheduled": len(merged) + ends["scheduled"]}
        assert counts["merges"] == merges
        exchanges = 2 if merge == FROZEN else 1
        assert len(counts["names"]) == exchanges * (len(merged) + 2)
        statistic = 4
        assert sum(counts["bytes"]) == tensors * weights * (len(merged) + 2) + statistic
        assert counts["merge_bytes"] == tensors * weights + statistic


@pytest.mark.multiprocess
@pytest.mark.parametrize("merge", MODES)
def test_float_statistics_are_averaged_and_counts_are_not(found, merge):
    for rank, of_rank in enumerate(found):
        assert of_rank["counts"][merge]["statistic"] == [1.5]
        assert of_rank["counts"][merge]["count"] == [rank]


@pytest.mark.multiprocess
@pytest.mark.parametrize("merge", MODES)
def test_replicas_are_equal_to_the_bit_after_a_merge(found, merge):
    first, second = (of_rank["replicas"][merge] for of_rank in found)
    assert first["replicated"] == second["replicated"]
    # x and s; x; x, m and v.
    count = {FROZEN: 2, WEIGHTS: 1, MOMENTS: 3}[merge]
    assert len(first["replicated"]) == count
    assert (first["m"] == second["m"]) == (merge == MOMENTS)


@pytest.mark.multiprocess
def test_rows_of_a_table_are_left_to_its_optimizer(found):
    for rank, of_rank in enumerate(found):
        row = 1.0 - 4 * 0.5 * (rank + 1.0)
        assert of_rank["table"]["rows"] == [[row, row]]
        # Adam on constant gradients moves by the learning rate.
        np.testing.assert_allclose(of_rank["table"]["weight"], 0.6, atol=1e-6)


@pytest.mark.multiprocess
def test_a_shared_denominator_keeps_three_workers_together(run_ranks):
    options = {**TOY, "x": [0.5] * 3}
    steps = options.pop("steps")
    shared = reference(FROZEN, toy_gradient, steps, **options)[-1]["x"]
    private = reference(FROZEN, toy_gradient, steps, private=True, **options)[-1]["x"]
    np.testing.assert_allclose([shared.mean(), private.mean()], [0.0014, 2.336], 0.03)
    forced = reference(FROZEN, toy_gradient, steps, forced=(steps,), **options)[-1]
    np.testing.assert_allclose(run_ranks(3, __file__, "toy"), forced["x"], rtol=1e-6)


# One process.


@pytest.mark.parametrize("k", [1, 3, 7])
@pytest.mark.parametrize("merge", MODES)
def test_alone_the_schedule_is_the_same(merge, k):
    gradients = np.random.default_rng(4).normal(size=(15, 1, 4))
    options = {"k": k, "epsilon": 1e-6}
    if merge == FROZEN:
        options["warmup_merges"] = 2
    history = reference(
        merge, given(gradients), 15, x=np.ones((1, 4)), forced=(15,), **options
    )
    optimizer = KStepAdam(0.1, merge=merge, **options)
    states = follow(optimizer, gradients[:, 0], np.ones(4))
    # Of a float32 learning rate.
    np.testing.assert_allclose(states[-1]["x"], history[-1]["x"][0], atol=1e-6)
    np.testing.assert_allclose(states[-1]["m"], history[-1]["m"][0], atol=1e-12)
    if merge != FROZEN:
        adam, variable = keras.optimizers.Adam(0.1), variable_of(np.ones(4))
        for gradient in gradients[:, 0]:
            adam.apply([tf.constant(gradient)], [variable])
        np.testing.assert_allclose(states[-1]["x"], value(variable), atol=1e-4)


def constant_steps(steps, **options):
    optimizer = KStepAdam(0.1, k=100, **options)
    variable = variable_of([0.0, 0.0], "float32")
    step = make_step(optimizer, variable)
    for _ in range(steps):
        step(tf.constant([1.0, 0.0]))
    return optimizer, variable


@pytest.mark.parametrize(("steps", "largest"), [(1, 3.2), (10, 20.6), (20, 27.8)])
def test_a_denominator_frozen_at_once_makes_large_steps(steps, largest):
    optimizer, _ = constant_steps(steps, warmup_merges=1)
    assert optimizer.take_largest_step() == pytest.approx(largest, abs=0.05)
    assert optimizer.take_largest_step() == 0.0
    optimizer, _ = constant_steps(steps)
    assert optimizer.take_largest_step() < 10


def test_a_coordinate_without_gradient_stays_finite():
    optimizer, variable = constant_steps(1, warmup_merges=1)
    assert value(by_name(optimizer, "shared_velocity"))[1] == pytest.approx(1e-8)
    optimizer.apply([tf.constant([0.0, 1.0])], [variable])
    # m / sqrt(epsilon) = 0.1 / 1e-4: large, as `warmup_merges` is to prevent.
    assert value(variable)[1] == pytest.approx(-100.0, rel=1e-4)


@pytest.mark.parametrize(
    ("options", "least", "most"),
    [
        ({"warmup_merges": 1}, 40, np.inf),
        ({}, 3, 10),
        ({"bias_correction": True}, 1, 2.4),
    ],
)
def test_warm_up_merges_bound_the_steps_of_sparse_inputs(options, least, most):
    keras.utils.set_random_seed(5)
    inputs = np.random.default_rng(5).random((200 * 64, 30)) < 0.1
    labels = inputs @ np.linspace(-1, 1, 30) > 0
    model = keras.Sequential(
        [
            keras.Input((30,)),
            keras.layers.Dense(8, "relu"),
            keras.layers.Dense(1, "sigmoid"),
        ]
    )
    optimizer = KStepAdam(1e-3, k=10, **options)
    model.compile(optimizer, "binary_crossentropy")
    model.fit(inputs.astype("float32"), labels, batch_size=64, verbose=0)
    assert least < optimizer.take_largest_step() < most


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_the_step_that_finds_the_end_of_the_data_does_not_count():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    optimizer = KStepAdam(1e-3, k=2, merge=WEIGHTS)
    model.compile(optimizer, "mean_squared_error")
    batch = (tf.ones((4, 2)), tf.ones((4, 1)))
    # Keras does not know how many batches these are.
    data = tf.data.Dataset.from_tensors(batch).repeat(5).filter(lambda *_: True)
    model.fit(data, epochs=3, shuffle=False, verbose=0)
    assert int(optimizer.iterations) == 15
    assert optimizer.merges == {"scheduled": 7, "forced": 0}


def test_forced_merges_before_the_first_step_do_nothing():
    optimizer = KStepAdam(k=3)
    optimizer.merge()
    assert optimizer.merges == {"scheduled": 0, "forced": 0}
    assert optimizer.take_largest_step() == 0.0
    optimizer.build([variable_of(1.0)])
    optimizer.merge()
    assert optimizer.merges == {"scheduled": 0, "forced": 0}


# What Keras does around an optimizer.


def test_slices_are_summed_before_they_are_squared():
    table, dense = variable_of([[1.0], [1.0]], "float32"), variable_of([[1.0], [1.0]])
    twice = tf.IndexedSlices(tf.ones((2, 1)), tf.constant([1, 1]))
    KStepAdam(0.1, k=1).apply([twice], [table])
    KStepAdam(0.1, k=1).apply([tf.constant([[0.0], [2.0]])], [dense])
    np.testing.assert_allclose(value(table), value(dense), rtol=1e-6)


@pytest.mark.parametrize(
    ("option", "clipped"),
    [
        ({"clipnorm": 1.0}, ([0.6, 0.8], [1.0])),
        ({"clipvalue": 2.0}, ([2.0, 2.0], [2.0])),
        ({"global_clipnorm": 1.3}, ([0.3, 0.4], [1.2])),
    ],
)
def test_gradients_are_clipped(option, clipped):
    variables = [variable_of([0.0, 0.0]), variable_of([0.0])]
    optimizer = KStepAdam(0.1, k=1, **option)
    optimizer.apply([tf.constant([3.0, 4.0]), tf.constant([12.0])], variables)
    momentums = [one for one in optimizer.variables if one.name.endswith("_momentum")]
    for momentum, gradient in zip(momentums, clipped, strict=True):
        np.testing.assert_allclose(value(momentum), 0.1 * np.array(gradient), 1e-6)


def test_constraints_hold_after_each_step():
    variable = keras.layers.Dense(2, kernel_constraint=keras.constraints.NonNeg())
    variable.build((None, 1))
    optimizer = KStepAdam(10.0, k=2)
    optimizer.apply([tf.ones((1, 2))], [variable.kernel])
    assert value(variable.kernel) == [[0.0, 0.0]]


def test_learning_rates_may_be_schedules_and_change():
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([0], [1.0, 0.0])
    variable = variable_of(0.0, "float32")
    optimizer = KStepAdam(schedule, k=1, merge=WEIGHTS)
    for _ in range(2):
        optimizer.apply([tf.constant(1.0)], [variable])
    assert value(variable) == pytest.approx(-1.0, abs=1e-6)
    optimizer = KStepAdam(1.0, k=1, merge=WEIGHTS)
    optimizer.learning_rate = 0.5
    optimizer.apply([tf.constant(1.0)], [variable])
    assert value(variable) == pytest.approx(-1.5, abs=1e-6)


def test_variables_without_gradient_stay_and_are_told():
    here, there = variable_of(1.0), variable_of(2.0)
    optimizer = KStepAdam(0.1, k=1)
    optimizer.apply([], [])
    with pytest.warns(UserWarning, match=r"The loss has no gradient for \['x'\]"):
        optimizer.apply([tf.constant(1.0), None], [here, there])
    assert value(here) < 1.0 and value(there) == 2.0
    optimizer.apply([tf.constant(1.0), tf.constant(1.0)])
    assert value(there) < 2.0
    assert int(optimizer.iterations) == 2


@pytest.mark.parametrize(
    "options",
    [
        {"k": 4},
        {"k": 1, "warmup_merges": 0, "bias_correction": True, "amsgrad": False},
        {"k": 3, "merge": WEIGHTS, "beta_1": 0.8, "beta_2": 0.99, "epsilon": 1e-3},
        {"k": 3, "merge": MOMENTS, "clipnorm": 1.0, "name": "mine"},
    ],
)
def test_the_config_makes_the_same_optimizer(options):
    optimizer = KStepAdam(1e-2, **options)
    config = optimizer.get_config()
    assert options.items() <= config.items()
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert isinstance(again, KStepAdam)
    assert again.get_config() == config


@pytest.mark.parametrize("merge", MODES)
def test_a_saved_model_goes_on_as_it_was(merge, tmp_path):
    inputs = np.random.default_rng(6).normal(size=(5 * 4, 2))
    labels = inputs.sum(1)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    optimizer = KStepAdam(1e-2, k=2, merge=merge)
    model.compile(optimizer, "mean_squared_error")
    model.fit(inputs, labels, batch_size=4, shuffle=False, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for one in (model, loaded):
        one.fit(inputs, labels, batch_size=4, shuffle=False, verbose=0)
        one.optimizer.merge()
    assert loaded.optimizer.merges == optimizer.merges
    assert sum(optimizer.merges.values()) >= 5
    for here, there in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(here, there)


# Refusals.

REFUSED = {
    "k": ({"k": 0}, "`k` must be a positive integer. Received: k=0."),
    "k of a float": ({"k": 2.0}, "Received: k=2.0."),
    "merge": (
        {"merge": "all"},
        "`merge` must be one of 'frozen_denominator', 'parameters', "
        "'parameters_and_moments'. Received: merge='all'.",
    ),
    "warm-up": (
        {"warmup_merges": -1},
        "`warmup_merges` must be an integer, not negative. Received: warmup_merges=-1.",
    ),
    "beta_1": (
        {"beta_1": 1.0},
        "`beta_1` must be at least 0 and below 1. Received: beta_1=1.0.",
    ),
    "beta_2": ({"beta_2": -0.5}, "Received: beta_2=-0.5."),
    "epsilon": ({"epsilon": 0.0}, "`epsilon` must be above 0. Received: epsilon=0.0."),
    "bias_correction": (
        {"merge": WEIGHTS, "bias_correction": True},
        "`bias_correction` is for merge='frozen_denominator' alone. Received: "
        "bias_correction=True and merge='parameters', which is Adam with its bias "
        "corrected. Leave it out.",
    ),
    "amsgrad": ({"merge": MOMENTS, "amsgrad": False}, "Received: amsgrad=False and"),
    "weight_decay": (
        {"weight_decay": 0.1},
        "KStepAdam does not do what `weight_decay` asks for. Received: "
        "weight_decay=0.1. Leave it out.",
    ),
    "use_ema": ({"use_ema": True}, "Received: use_ema=True. Leave it out."),
    "loss_scale_factor": ({"loss_scale_factor": 8.0}, "loss_scale_factor=8.0."),
    "accumulation": (
        {"gradient_accumulation_steps": 4},
        "Received: gradient_accumulation_steps=4. Leave it out.",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_options_that_cannot_be_are_refused(case):
    options, message = REFUSED[case]
    with pytest.raises(ValueError, match=re.escape(message)):
        KStepAdam(1e-3, **{"k": 4, **options})


def test_strategies_are_refused():
    message = (
        "KStepAdam merges ranks of `horovodrun`, not the replicas of a strategy. "
        "Received: OneDeviceStrategy. Make it outside of `strategy.scope()`."
    )
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        with pytest.raises(ValueError, match=re.escape(message)):
            KStepAdam(k=4)


def test_coarse_variables_are_refused():
    message = (
        "KStepAdam trains float32 and float64 variables; its moments need them. "
        "Received: 'x' of bfloat16. Use the policy 'mixed_bfloat16', whose variables "
        "are float32."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        KStepAdam(k=4).build([variable_of(1.0, "bfloat16")])


@pytest.mark.parametrize(
    ("gradients", "variables", "message"),
    [
        (
            [1.0],
            None,
            "KStepAdam must know its variables to apply gradients. Received: gradients "
            "only, before `build`. Say apply(gradients, variables).",
        ),
        (
            [1.0, 1.0],
            [0],
            "KStepAdam needs a gradient, or None, for each variable. Received: 2 "
            "gradients for 1 variables.",
        ),
        (
            [None, None],
            [0, 1],
            "KStepAdam needs a gradient for one variable at least. Received: None for "
            "['x', 'x']. Does the loss depend on them?",
        ),
    ],
)
def test_gradients_that_do_not_fit_are_refused(gradients, variables, message):
    known = [variable_of(1.0), variable_of(2.0)]
    with pytest.raises(ValueError, match=re.escape(message)):
        KStepAdam(k=4).apply(gradients, variables and [known[i] for i in variables])


def test_variables_of_another_model_are_refused():
    optimizer = KStepAdam(k=4)
    optimizer.build([variable_of(1.0)])
    message = (
        "KStepAdam must be applied to the variables it was built with. Received: 'x', "
        "which is none of them. Make an optimizer for it."
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        optimizer.apply([tf.constant(1.0)], [variable_of(1.0)])
