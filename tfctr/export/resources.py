"""What a model's layers hold besides variables, such as a vocabulary's table."""

from typing import Any

import keras
import tensorflow as tf


def resources_of(model: keras.Model) -> list[Any]:
    """Returns the tables of vocabularies and the like, of all layers of a model."""
    found: dict[int, Any] = {}
    seen: set[int] = set()
    waiting: list[Any] = [model]
    while waiting:
        owner = waiting.pop()
        if id(owner) in seen:
            continue
        seen.add(id(owner))
        if isinstance(owner, tf.saved_model.experimental.TrackableResource):
            found[id(owner)] = owner
        elif isinstance(owner, keras.layers.Layer):
            waiting += vars(owner).values()
        elif isinstance(owner, dict):
            waiting += owner.values()
        elif isinstance(owner, (list, tuple)):
            waiting += owner
    return list(found.values())
