"""What the random generators draw after their states were set."""

import json
import random

import numpy as np
import tensorflow as tf

from tfctr.checkpoint import get_random_state, set_random_state


def draws():
    """Of each generator, the normal ones being those that keep half a pair back."""
    generator = tf.random.get_global_generator()
    return [
        [random.random(), random.gauss(0.0, 1.0), random.getrandbits(62)],
        [np.random.normal(), *np.random.randint(0, 2**31, 5).tolist()],
        generator.normal([3]).numpy().tolist(),
    ]


def test_all_generators_draw_again_what_they_drew():
    tf.random.set_global_generator(tf.random.Generator.from_seed(5))
    draws()
    state = get_random_state()
    first = draws()
    second = draws()
    assert first != second
    # As JSON, which is how it is kept.
    set_random_state(json.loads(json.dumps(state)))
    assert draws() == first
    assert draws() == second


def test_looking_at_the_state_draws_nothing():
    state = get_random_state()
    assert get_random_state() == state
    draws()
    changed = get_random_state()
    for name in ("python", "numpy", "tensorflow"):
        assert changed[name] != state[name]
