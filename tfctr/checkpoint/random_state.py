"""The states of the random generators that a training may draw from."""

import random
from typing import Any

import numpy as np
import tensorflow as tf


def get_random_state() -> dict[str, Any]:
    """Returns the states of Python's, NumPy's and TensorFlow's generators, for JSON.

    Seeds of Keras layers, such as Dropout's, are variables of the model.
    """
    numpy_state = np.random.get_state(legacy=False)
    generator = tf.random.get_global_generator()
    return {
        "python": random.getstate(),
        "numpy": {
            **numpy_state,
            "state": {
                name: value.tolist() if isinstance(value, np.ndarray) else value
                for name, value in numpy_state["state"].items()
            },
        },
        "tensorflow": {
            "algorithm": int(generator.algorithm),
            "state": generator.state.numpy().tolist(),
        },
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Sets the generators to what `get_random_state` returned."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    np.random.set_state(state["numpy"])
    generator = tf.random.Generator.from_state(
        state["tensorflow"]["state"], state["tensorflow"]["algorithm"]
    )
    tf.random.set_global_generator(generator)
