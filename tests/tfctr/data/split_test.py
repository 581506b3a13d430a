"""Which examples are for the test: the last ones, those of other files, or any."""

import json
import re

import numpy as np
import pytest
import tensorflow as tf

from helpers import log_files
from tfctr.builders import open_log
from tfctr.config import TrainConfig
from tfctr.data import (
    Criteo,
    FeatureDeclaration,
    Position,
    RandomSplit,
    SyntheticClickLog,
)

NUMBER = [FeatureDeclaration("number", column="I1")]


def listed(value):
    return value.to_list() if isinstance(value, tf.RaggedTensor) else value.numpy()


def rows_of(log, split, **options):
    rows = []
    for inputs, _ in log.batches(split, 100, **options):
        columns = [map(str, listed(value)) for value in inputs.values()]
        rows += map(" ".join, zip(*columns, strict=True))
    return rows


@pytest.mark.parametrize("kind", ["criteo", "avazu", "parquet", "tfrecord"])
def test_a_random_split_parts_the_examples_and_stays_as_it_is(open_small_log, kind):
    log = open_small_log(kind, test=RandomSplit(0.3))
    parts = [rows_of(log, split) for split in ("train", "test")]
    everything = rows_of(open_small_log(kind, test=0), "train")
    assert sorted(parts[0] + parts[1]) == sorted(everything)
    assert [len(part) for part in parts] == [
        log.num_examples(split) for split in ("train", "test")
    ]
    # Five standard deviations of a binomial number.
    assert abs(len(parts[1]) - 120) < 5 * np.sqrt(400 * 0.3 * 0.7)
    again = open_small_log(kind, test=RandomSplit(0.3))
    shuffled = rows_of(again, "test", seed=5)
    assert shuffled != parts[1] and sorted(shuffled) == sorted(parts[1])
    assert sorted(rows_of(again, "train", seed=5)) == sorted(parts[0])


@pytest.mark.usefixtures("small_blocks")
def test_a_random_split_hits_all_of_the_log_and_does_not_change_as_it_grows(tmp_path):
    lines = [line.split("\t") for line in log_files.criteo_lines(500)]
    for number, fields in enumerate(lines):
        fields[1] = str(number)
    lines = ["\t".join(fields) for fields in lines]
    tests = []
    for name, some in (("short", lines[:300]), ("long", ["bad", *lines])):
        path = log_files.write_lines(tmp_path / name, some)
        log = Criteo(path, NUMBER, RandomSplit(0.2), "skip", shuffle_rows=100)
        numbers = [
            np.concatenate([x["number"] for x, _ in log.batches(split, 50)]).tolist()
            for split in ("train", "test")
        ]
        assert sorted(numbers[0] + numbers[1]) == list(range(len(set(some) - {"bad"})))
        tests.append(numbers[1])
    short, long = tests
    assert [number for number in long if number < 300] == short
    assert all(
        5 <= sum(a <= n < a + 100 for n in long) <= 35 for a in range(0, 500, 100)
    )


def test_a_random_split_is_resumed_like_any(open_small_log):
    log = open_small_log("criteo", test=RandomSplit(0.3))
    whole = rows_of(log, "train", seed=3)
    assert rows_of(log, "train", seed=3, position=Position(0, 2)) == whole[200:]


@pytest.mark.parametrize("share", [1.0, -0.1, "0.1"])
def test_wrong_shares_are_refused(share):
    with pytest.raises(ValueError, match=re.escape(f"Received: share={share!r}. A us")):
        RandomSplit(share)


def test_a_share_is_a_number_of_any_kind():
    split = RandomSplit(np.float32(0.25))
    assert repr(split) == "RandomSplit(share=0.25)"
    assert split == RandomSplit(np.float64(0.25)) == RandomSplit(0.25)
    for share in (False, "0.1", np.float32(1.0), np.nan):
        with pytest.raises(ValueError, match=re.escape(f"share={share!r}. A usual sh")):
            RandomSplit(share)


@pytest.mark.parametrize("kind", ["criteo", "synthetic"])
def test_counts_may_be_numbers_of_numpy(open_small_log, kind):
    log = SyntheticClickLog(400) if kind == "synthetic" else open_small_log(kind)
    for number in (np.int64, np.int32, np.uint8):
        options = {"seed": number(3), "epochs": number(2)}
        batches = log.batches("train", number(100), **options)
        expected = log.batches("train", 100, seed=3, epochs=2)
        assert len(batches) == len(expected)
        for (_, found), (_, labels) in zip(batches, expected, strict=True):
            np.testing.assert_array_equal(found, labels)
    position = Position(np.int64(1), np.int64(2))
    assert json.dumps(position.to_dict()) == '{"epoch": 1, "batch": 2}'


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"test_share": -1},
            "'data.test_share' must be 0 or more and below 1. Received: "
            "data.test_share=-1.0.",
        ),
        (
            {"test_split": "first"},
            "must be 'last' or 'random'. Received: data.test_spl",
        ),
        (
            {"test_split": "random", "test_path": "day_23"},
            "'data.test_path' must be empty where data.test_split is 'random'.",
        ),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        TrainConfig.from_dict({"data": settings})


@pytest.mark.parametrize("kind", ["movielens", "synthetic"])
@pytest.mark.parametrize(
    "settings", [{"test_split": "random"}, {"test_path": "day"}, {"test_share": 0.2}]
)
def test_logs_with_a_test_split_of_their_own_take_no_other(kind, settings):
    config = TrainConfig.from_dict({"data": {"kind": kind, "path": "ml", **settings}})
    with pytest.raises(ValueError, match=f"'{kind}' has a test split of its own"):
        open_log(config)


def test_a_configuration_names_the_split(tmp_path):
    path = log_files.write_lines(tmp_path / "train.txt", log_files.criteo_lines(200))
    settings = {"kind": "criteo", "path": str(path), "test_split": "random"}
    log = open_log(TrainConfig.from_dict({"data": settings}))
    expected = Criteo(path, test=RandomSplit(0.1))
    assert rows_of(log, "test") == rows_of(expected, "test")
    assert rows_of(log, "test") != rows_of(Criteo(path), "test")
