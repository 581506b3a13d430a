"""Numbers of NumPy as arguments: taken as Python's, and kept so."""

import dataclasses
import fractions
import json

import keras
import numpy as np
import pytest

import tfctr.data.number_checks
from keras_layers import (
    BloomAdmission,
    CountAdmission,
    DynamicEmbedding,
    Expiry,
    FeatureConfig,
    ProbabilityAdmission,
    TableConfig,
    TieredStorage,
    number_checks,
)
from tfctr.optimizers import CowClip, Hyperparameters, LinearWarmup


@pytest.mark.parametrize("module", [number_checks, tfctr.data.number_checks])
def test_what_is_a_number(module):
    integers = [3, np.int8(3), np.int64(3), np.uint64(3)]
    others = [0.5, np.float16(0.5), np.float32(0.5), np.float64(0.5), np.nan]
    wrong = [True, np.True_, "3", None, 1j, np.array(3), [3], np.timedelta64(3, "s")]
    assert all(map(module.is_integer, integers))
    assert all(map(module.is_number, [*integers, *others, fractions.Fraction(1, 2)]))
    assert not any(map(module.is_integer, [*others, *wrong]))
    assert not any(map(module.is_number, wrong))


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (CountAdmission(np.int64(5)), CountAdmission(5)),
        (
            BloomAdmission(np.int32(3), np.uint64(10), np.float32(0.25)),
            BloomAdmission(3, 10, 0.25),
        ),
        (ProbabilityAdmission(np.float32(0.5)), ProbabilityAdmission(0.5)),
        (ProbabilityAdmission(np.longdouble(0.5)), ProbabilityAdmission(0.5)),
        (ProbabilityAdmission(fractions.Fraction(1, 2)), ProbabilityAdmission(0.5)),
        (
            Expiry(every=np.int64(9), min_norm=np.float32(0.5)),
            Expiry(every=9, min_norm=0.5),
        ),
        (
            Hyperparameters(np.int64(8), np.float32(0.5), np.float64(2.0)),
            Hyperparameters(8, 0.5, 2.0),
        ),
        (
            CowClip(keras.optimizers.Adam(), ratio=np.float32(0.5)).rule,
            CowClip(keras.optimizers.Adam(), ratio=0.5).rule,
        ),
    ],
)
def test_numbers_of_numpy_become_those_of_python(made, expected):
    texts = [json.dumps(dataclasses.asdict(one)) for one in (made, expected)]
    assert texts[0] == texts[1]


def test_a_schedule_keeps_plain_numbers():
    schedule = LinearWarmup(np.float32(0.5), np.int64(10))
    expected = {"learning_rate": 0.5, "warmup_steps": 10}
    assert json.dumps(schedule.get_config()) == json.dumps(expected)


def test_a_layer_of_numpy_numbers_trains_and_is_saved(tmp_path):
    def made(integer, number):
        table = TableConfig(
            "ads",
            dim=integer(2),
            optimizer=keras.optimizers.SGD(0.5),
            seed=integer(7),
            admission=CountAdmission(integer(1)),
            expiry=Expiry(every=integer(10), min_norm=number(1e-6)),
        )
        ids = keras.Input((1,), dtype="int64")
        feature = FeatureConfig(table, combiner="sum", padding_id=integer(-1))
        model = keras.Model(ids, DynamicEmbedding(feature)(ids))
        model.compile("sgd", "mean_squared_error")
        model.fit(np.array([[1], [2]]), np.ones((2, 2)), verbose=0)
        return model

    model, expected = made(np.int64, np.float32), made(int, float)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    ids = np.array([[1], [2], [3], [-1]])
    for one in (model, loaded):
        np.testing.assert_array_equal(one(ids), expected(ids))


def test_arguments_of_a_storage_are_checked_and_become_those_of_python():
    storage = TieredStorage(num_threads=np.int64(2), numa_node=np.int32(0))
    plain = TieredStorage(num_threads=2, numa_node=0)
    assert json.dumps(storage.get_config()) == json.dumps(plain.get_config())
    for wrong in (True, "2", 1.0, -1):
        with pytest.raises(ValueError, match=f"Received: num_threads={wrong!r}."):
            TieredStorage(num_threads=wrong)
