"""`KStepAdam` on real ranks, against the same training written in NumPy.

The numbers in `VECTORS` were worked out from the listings of the papers.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfctr import distributed
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


@pytest.fixture
def found(of_ranks):
    return of_ranks(__file__)


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


@pytest.mark.soak
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
