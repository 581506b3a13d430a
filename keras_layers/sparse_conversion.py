"""Turns Keras optimizers and initializers into what the store does by itself."""

import random
from typing import Any, TypedDict

import keras

from tfctr_ops import RowInitializer, SparseOptimizer

# Options of a Keras optimizer that a fused update does not have, and the value at which
# they do nothing. It cannot honour them, so it must not ignore them.
_IDLE_OPTIONS = {
    "amsgrad": False,
    "clipnorm": None,
    "clipvalue": None,
    "global_clipnorm": None,
    "gradient_accumulation_steps": None,
    "loss_scale_factor": None,
    "momentum": 0.0,
    "use_ema": False,
}
_SUPPORTED = (
    "keras.optimizers.SGD, Adagrad, Adam, AdamW and Ftrl; a tfctr_ops.SparseOptimizer; "
    "or an object with a method sparse_optimizer()"
)


def to_sparse_optimizer(optimizer: Any) -> SparseOptimizer:
    """Returns the fused update that means the same as `optimizer`.

    Args:
        optimizer: Keras optimizer, `SparseOptimizer`, or object with a method
            `sparse_optimizer()`.

    Raises:
        TypeError: If there is no fused update for this kind of optimizer.
        ValueError: If the optimizer has an option that the fused update cannot honour.
    """
    if isinstance(optimizer, SparseOptimizer):
        return optimizer
    if callable(getattr(optimizer, "sparse_optimizer", None)):
        described: SparseOptimizer = optimizer.sparse_optimizer()
        return described
    kind = type(optimizer)
    converters = {
        keras.optimizers.SGD: _sgd,
        keras.optimizers.Adagrad: _adagrad,
        keras.optimizers.Adam: _adam,
        keras.optimizers.AdamW: _adam,
        keras.optimizers.Ftrl: _ftrl,
    }
    # The exact class: a subclass may do anything in its update_step.
    if kind not in converters:
        raise TypeError(
            f"The optimizer of a table must be one of {_SUPPORTED}. "
            f"Received: optimizer={optimizer!r}."
        )
    for option, idle in _IDLE_OPTIONS.items():
        value = getattr(optimizer, option, idle)
        if value != idle and value:
            raise ValueError(
                f"The optimizer of a table cannot use `{option}`, which a fused update "
                f"does not have. Received: {kind.__name__}({option}={value!r}). Leave "
                f"`{option}` out for the table; the optimizer in model.compile may "
                "keep it."
            )
    return converters[kind](optimizer)


def to_row_initializer(initializer: Any) -> RowInitializer:
    """Returns the law of first weights that means the same as `initializer`.

    Args:
        initializer: Keras initializer, its name, or `RowInitializer`.

    Raises:
        ValueError: If there is no such law.
    """
    if isinstance(initializer, RowInitializer):
        return initializer
    # Of a name Keras makes one with a seed that it draws, here for nothing. How often a
    # storage asks must not change what is drawn next.
    state = random.getstate()
    found = keras.initializers.get(initializer)
    random.setstate(state)
    config = found.get_config() if hasattr(found, "get_config") else {}
    kind = type(found)
    if kind is keras.initializers.RandomUniform:
        low, high = config["minval"], config["maxval"]
        return RowInitializer("uniform", low, high - low)
    if kind is keras.initializers.RandomNormal:
        return RowInitializer("normal", config["mean"], config["stddev"])
    if kind is keras.initializers.TruncatedNormal:
        return RowInitializer("truncated_normal", config["mean"], config["stddev"])
    if kind is keras.initializers.Zeros:
        return RowInitializer("constant", 0.0)
    if kind is keras.initializers.Ones:
        return RowInitializer("constant", 1.0)
    if kind is keras.initializers.Constant:
        return RowInitializer("constant", float(config["value"]))
    raise ValueError(
        "`initializer` must be RandomUniform, RandomNormal, TruncatedNormal, Zeros, "
        "Ones or Constant: a row must start from its id alone, and laws that look at "
        f"the shape of a table have none to look at. Received: initializer="
        f"{initializer!r}."
    )


class _Common(TypedDict):
    learning_rate: float
    weight_decay: float


def _common(optimizer: Any) -> _Common:
    schedule = optimizer.get_config()["learning_rate"]
    return {
        # Of a schedule, each step's value is read from the optimizer itself.
        "learning_rate": 0.0 if isinstance(schedule, dict) else float(schedule),
        "weight_decay": float(optimizer.weight_decay or 0.0),
    }


def _sgd(optimizer: Any) -> SparseOptimizer:
    return SparseOptimizer("sgd", **_common(optimizer))


def _adagrad(optimizer: Any) -> SparseOptimizer:
    return SparseOptimizer(
        "adagrad",
        epsilon=optimizer.epsilon,
        initial_accumulator_value=optimizer.initial_accumulator_value,
        **_common(optimizer),
    )


def _adam(optimizer: Any) -> SparseOptimizer:
    return SparseOptimizer(
        "adam",
        beta_1=optimizer.beta_1,
        beta_2=optimizer.beta_2,
        epsilon=optimizer.epsilon,
        **_common(optimizer),
    )


def _ftrl(optimizer: Any) -> SparseOptimizer:
    return SparseOptimizer(
        "ftrl",
        initial_accumulator_value=optimizer.initial_accumulator_value,
        learning_rate_power=optimizer.learning_rate_power,
        l1=optimizer.l1_regularization_strength,
        l2=optimizer.l2_regularization_strength,
        l2_shrinkage=optimizer.l2_shrinkage_regularization_strength,
        beta=optimizer.beta,
        **_common(optimizer),
    )
