"""Requests that TensorFlow Serving answers by itself before it takes others.

It reads them as `PredictionLog` messages of tensorflow-serving-api. They are put
together here, so that an export does not need that package, and gRPC with it.
"""

import pathlib
from collections.abc import Mapping, Sequence

import tensorflow as tf

from tfctr.export.draft import EXTRA

WARM_UP = f"{EXTRA}/tf_serving_warmup_requests"


def write_warm_up(
    draft: pathlib.Path,
    requests: Sequence[tuple[str, Mapping[str, tf.Tensor]]],
    model_name: str,
) -> None:
    """Writes requests: names of signatures, and tensors by name."""
    path = draft / WARM_UP
    path.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for signature, tensors in requests:
            writer.write(prediction_log(model_name, signature, tensors))


def prediction_log(
    model_name: str, signature: str, tensors: Mapping[str, tf.Tensor]
) -> bytes:
    """Returns a serialized `PredictionLog`.

    Numbers of fields are those of tensorflow_serving/apis: prediction_log.proto,
    predict.proto and model.proto.
    """
    model = _field(1, model_name.encode()) + _field(3, signature.encode())
    request = _field(1, model)
    for name, tensor in tensors.items():
        proto = tf.make_tensor_proto(tensor).SerializeToString()
        # An entry of a map is a message of key and value.
        request += _field(2, _field(1, name.encode()) + _field(2, proto))
    return _field(6, _field(1, request))


def _field(number: int, value: bytes) -> bytes:
    """Encodes a field of bytes, a string or a message."""
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= 128:
        encoded.append(number & 127 | 128)
        number >>= 7
    return bytes([*encoded, number])
