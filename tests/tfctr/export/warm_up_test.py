"""Warm-up requests, as tensorflow-serving-api 2.16.1 writes them."""

import tensorflow as tf

from tfctr.export import saved_model
from tfctr.export.warm_up import WARM_UP, prediction_log

# Serialized by that package: PredictionLog(predict_log=PredictLog(request=
# PredictRequest(model_spec=ModelSpec(name="ads", signature_name="serving_default"),
# inputs={"ids": make_tensor_proto([[7, -2**40]])}))).
GOLDEN = (
    "32410a3f0a160a036164731a0f73657276696e675f64656661756c7412250a03696473121e08091208"
    "1202080112020802221007000000000000000000000000ffffff"
)


def test_requests_are_those_of_the_serving_api():
    ids = tf.constant([[7, -(2**40)]], tf.int64)
    found = prediction_log("ads", "serving_default", {"ids": ids})
    assert found.hex() == GOLDEN


def test_lengths_beyond_a_byte_are_written():
    found = prediction_log("m" * 300, "s", {})
    # 300 is 0b10_0101100: seven bits first, with a mark that more follow.
    assert b"\x0a\xac\x02" + b"m" * 300 in found


def test_the_examples_of_an_export_are_its_warm_up(clicks, batch, tmp_path):
    inputs = batch(3)
    path = saved_model(clicks, tmp_path / "ads" / "1", examples=inputs)
    [record] = tf.data.TFRecordDataset(str(path / WARM_UP))
    record = record.numpy()
    liked = inputs["liked"]
    tensors = {**inputs, "liked": liked.values, "liked_row_splits": liked.row_splits}
    for name, tensor in tensors.items():
        proto = tf.make_tensor_proto(tensor).SerializeToString()
        assert name.encode() + b"\x12" in record and proto in record
    assert b"\x0a\x03ads\x1a\x0fserving_default" in record
