"""From the inputs of a layer to flat keys, and from looked up rows to its outputs."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, cast

import keras
import tensorflow as tf

from keras_layers.pooling import pool_axis, pool_segments
from keras_layers.table_config import FeatureConfig

_INTEGERS = (
    *(tf.int8, tf.int16, tf.int32, tf.int64),
    *(tf.uint8, tf.uint16, tf.uint32, tf.uint64),
)


@dataclasses.dataclass(frozen=True)
class FlatIds:
    """The ids of one feature, flat, and how its rows become the output.

    Args:
        ids: int64 `(n,)`.
        features: int32 `(p,)` where p divides n: the number of the feature of each id
            in its table, or -1 for padding.
        finish: Function from rows `(n, dim)` to the output of the feature.
        samples: Function without arguments that returns the example which each id is
            of: int32 `(n,)`.
        may_repeat: Boolean. Whether one example may hold equal ids of one number.
    """

    ids: tf.Tensor
    features: tf.Tensor
    finish: Callable[[tf.Tensor], tf.Tensor]
    samples: Callable[[], tf.Tensor]
    may_repeat: bool


def check_id_dtype(dtype: Any, owner: str) -> None:
    """Raises `ValueError` unless ids of `dtype` are integers or strings."""
    dtype = tf.as_dtype(dtype)
    if dtype in _INTEGERS or dtype == tf.string:
        return
    why = ""
    if dtype.is_floating:
        why = (
            " keras.Input makes float32 unless told otherwise, and so does a model "
            'without one, such as a Sequential: say keras.Input(shape, dtype="int64"). '
            "Floats cannot tell large ids apart; cast whole numbers to int64."
        )
    raise ValueError(
        f"{owner} expects ids of an integer type or strings. Received: ids of dtype "
        f"{dtype.name}.{why}"
    )


def check_structure(shape: Any, single: bool, owner: str) -> None:
    """Raises `ValueError` unless `shape` is one shape, or a dict if not `single`."""
    is_dict = isinstance(shape, dict)
    is_one = not is_dict and not any(isinstance(part, (list, tuple)) for part in shape)
    if not (is_one if single else is_dict):
        expected = "one tensor of ids" if single else "a dict of ids by feature"
        raise ValueError(
            f"{owner} expects {expected}. Received: inputs of shape {shape}."
        )


def to_int64(ids: tf.Tensor, owner: str) -> tf.Tensor:
    """Returns integer or string ids as int64.

    A uint64 keeps its 64 bits. Strings become their 64-bit farmhash fingerprint: among
    n distinct strings, the odds that any two collide are about n² / 2⁶⁵, one in 37 for
    a billion strings.

    Args:
        ids: Tensor of any shape.
        owner: String. Whose ids they are, for the message.

    Raises:
        ValueError: If the ids are neither integers nor strings.
    """
    check_id_dtype(ids.dtype, owner)
    if ids.dtype == tf.string:
        prints = tf.fingerprint(tf.reshape(ids, [-1]), method="farmhash64")
        return tf.reshape(tf.bitcast(prints, tf.int64), tf.shape(ids))
    if ids.dtype == tf.uint64:
        return tf.bitcast(ids, tf.int64)
    return tf.cast(ids, tf.int64)


def flatten_feature(
    inputs: Any,
    weights: Any,
    config: FeatureConfig,
    numbers: Sequence[int],
    owner: str,
) -> FlatIds:
    """Flattens dense, ragged or sparse ids.

    Args:
        inputs: Ids as the layer received them.
        weights: Weights as the layer received them, or `None`.
        config: `FeatureConfig`.
        numbers: The number of the feature in its table; of each column if the feature
            is `per_column`.
        owner: String. Whose ids they are, for messages.

    Raises:
        ValueError: If the inputs or weights do not fit the config.
    """
    number = numbers[0]
    if isinstance(weights, (list, tuple)):
        weights = tf.constant(weights, tf.float32)
    _check_weights(weights, inputs, owner)
    if isinstance(inputs, tf.SparseTensor):
        return _flatten_sparse(inputs, weights, config, number, owner)
    if isinstance(inputs, tf.RaggedTensor):
        return _flatten_ragged(inputs, weights, config, number, owner)
    inputs = tf.convert_to_tensor(inputs)
    ids = to_int64(inputs, owner)
    is_id = _is_id(inputs, config, owner)
    features = _features(ids, is_id, number)
    unflatten = _unflatten(ids)
    combiner = config.combiner
    repeats = not config.per_column and ids.shape.rank != 1
    if combiner is None:
        if weights is not None:
            raise ValueError(
                f"{owner} expects weights only together with a combiner. Received: "
                f"weights of shape {tuple(weights.shape)}, combiner=None. Give the "
                "feature a combiner ('sum', 'mean' or 'sqrtn'), or pass no weights."
            )
        if config.per_column:
            _check_columns(ids, len(numbers), owner)
            features = tf.constant(list(numbers), tf.int32)
        return FlatIds(
            tf.reshape(ids, [-1]), features, unflatten, lambda: _samples(ids), repeats
        )
    if ids.shape.rank is not None and ids.shape.rank < 2:
        raise ValueError(
            f"{owner} pools the last axis of its ids, and expects at least shape "
            f"(batch, ids). Received: shape {tuple(ids.shape)}. Leave the combiner out "
            "for one id per example."
        )
    w = (
        tf.ones_like(ids, tf.float32)
        if weights is None
        else tf.cast(weights, "float32")
    )
    if is_id is not None:
        w = tf.where(is_id, w, 0.0)
    return FlatIds(
        tf.reshape(ids, [-1]),
        features,
        lambda rows: pool_axis(unflatten(rows), w, combiner),
        lambda: _samples(ids),
        repeats,
    )


def padding_mask(inputs: Any, config: FeatureConfig) -> tf.Tensor | None:
    """Returns where `inputs` are ids and not padding, or `None` if all are."""
    if config.padding_id is None or config.combiner is not None:
        return None
    return keras.ops.not_equal(inputs, config.padding_id)


def num_columns(shape: Any, owner: str) -> int:
    """Returns how many features a `per_column` input of this shape has.

    Raises:
        ValueError: If the shape is neither `(batch,)` nor `(batch, columns)`.
    """
    if len(shape) == 1:
        return 1
    if len(shape) == 2 and shape[1]:
        return int(shape[1])
    raise ValueError(
        f"{owner} takes each column for a feature of its own, and expects ids of shape "
        "(batch,) or (batch, features) with a static number of features, above 0. "
        f"Received: shape {tuple(shape)}. For ids of one feature, such as a sequence, "
        "pass FeatureConfig(table); for bags, a combiner."
    )


def _check_columns(ids: tf.Tensor, expected: int, owner: str) -> None:
    if num_columns(ids.shape, owner) != expected:
        raise ValueError(
            f"{owner} was built for {expected} features. Received: ids of shape "
            f"{tuple(ids.shape)}."
        )


def _flatten_ragged(
    inputs: tf.RaggedTensor,
    weights: Any,
    config: FeatureConfig,
    number: int,
    owner: str,
) -> FlatIds:
    if config.combiner is None or inputs.shape.rank != 2:
        raise ValueError(
            f"{owner} takes ragged ids of shape (batch, None) together with a "
            f"combiner. Received: shape {tuple(inputs.shape)}, combiner="
            f"{config.combiner!r}. Give the feature a combiner ('sum', 'mean' or "
            "'sqrtn'), or pad the ids: ids.to_tensor(padding_id)."
        )
    if weights is not None:
        _assert_same_layout(weights.row_splits, inputs.row_splits, owner)
        weights = weights.flat_values
    return _flatten_bags(
        (inputs.flat_values, inputs.value_rowids(), inputs.nrows()),
        weights,
        config,
        number,
        owner,
    )


def _flatten_sparse(
    inputs: tf.SparseTensor,
    weights: Any,
    config: FeatureConfig,
    number: int,
    owner: str,
) -> FlatIds:
    if config.combiner is None or inputs.shape.rank != 2:
        raise ValueError(
            f"{owner} takes sparse ids of shape (batch, ids) together with a "
            f"combiner. Received: shape {tuple(inputs.shape)}, combiner="
            f"{config.combiner!r}. Give the feature a combiner: 'sum', 'mean' or "
            "'sqrtn'."
        )
    if weights is not None:
        _assert_same_layout(weights.indices, inputs.indices, owner)
        weights = weights.values
    return _flatten_bags(
        (inputs.values, inputs.indices[:, 0], inputs.dense_shape[0]),
        weights,
        config,
        number,
        owner,
    )


def _flatten_bags(
    bags: tuple[tf.Tensor, tf.Tensor, tf.Tensor],
    weights: tf.Tensor | None,
    config: FeatureConfig,
    number: int,
    owner: str,
) -> FlatIds:
    values, segments, num_segments = bags
    combiner = cast(str, config.combiner)  # Both callers refuse `None`.
    ids = to_int64(values, owner)
    is_id = _is_id(values, config, owner)
    if weights is not None:
        weights = tf.cast(weights, tf.float32)
    if is_id is not None:
        ones = tf.ones_like(ids, tf.float32)
        weights = tf.where(is_id, ones if weights is None else weights, 0.0)
    return FlatIds(
        ids,
        _features(ids, is_id, number),
        lambda rows: pool_segments(rows, weights, segments, num_segments, combiner),
        lambda: tf.cast(segments, tf.int32),
        may_repeat=True,
    )


def _check_weights(weights: Any, ids: Any, owner: str) -> None:
    kinds = (tf.RaggedTensor, tf.SparseTensor)
    if weights is None or (
        [isinstance(weights, kind) for kind in kinds]
        == [isinstance(ids, kind) for kind in kinds]
        and tf.TensorShape(weights.shape).is_compatible_with(ids.shape)
    ):
        return
    raise ValueError(
        f"{owner} expects one weight per id, in the same layout. Received: ids of type "
        f"{type(ids).__name__} and shape {tuple(ids.shape)}, weights of type "
        f"{type(weights).__name__} and shape {tuple(weights.shape)}."
    )


def _assert_same_layout(weights: tf.Tensor, ids: tf.Tensor, owner: str) -> None:
    """Compares what says which value belongs to which bag."""
    weights, ids = tf.cast(weights, tf.int64), tf.cast(ids, tf.int64)
    same_size = tf.equal(tf.size(weights), tf.size(ids))
    tf.debugging.Assert(
        tf.logical_and(same_size, tf.reduce_all(weights == ids)),
        [f"{owner} expects one weight per id, in the same layout. Received:"]
        + ["ids at", ids, "weights at", weights],
    )


def _is_id(ids: tf.Tensor, config: FeatureConfig, owner: str) -> tf.Tensor | None:
    if config.padding_id is None:
        return None
    if isinstance(config.padding_id, str) != (ids.dtype == tf.string):
        raise ValueError(
            f"{owner} expects a padding_id of the type of its ids. Received: "
            f"padding_id={config.padding_id!r}, ids of dtype {ids.dtype.name}."
        )
    comparable = ids if ids.dtype == tf.string else to_int64(ids, owner)
    return tf.not_equal(comparable, config.padding_id)


def _features(ids: tf.Tensor, is_id: tf.Tensor | None, number: int) -> tf.Tensor:
    if is_id is None:
        return tf.constant([number], tf.int32)
    return tf.reshape(tf.where(is_id, number, -1), [-1])


def _samples(ids: tf.Tensor) -> tf.Tensor:
    """Returns where each id stands on the first axis: int32 `(n,)`."""
    num_samples = tf.shape(ids)[0] if ids.shape.rank != 0 else 1
    per_sample = tf.size(ids) // tf.maximum(num_samples, 1)
    return tf.repeat(tf.range(num_samples), per_sample)


def _unflatten(ids: tf.Tensor) -> Callable[[tf.Tensor], tf.Tensor]:
    def unflatten(rows: tf.Tensor) -> tf.Tensor:
        dim = rows.shape[-1]
        output = tf.reshape(rows, tf.concat([tf.shape(ids), [dim]], axis=0))
        output.set_shape(ids.shape.concatenate([dim]))
        return output

    return unflatten
