"""Checks that hold for every click log. A new log is one more case in `log`."""

import gc
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tfctr.data import MovieLens, Position, SyntheticClickLog

DTYPES = {"int64": tf.int64, "string": tf.string, "float32": tf.float32}


# The others that lie in files have these ones' base, and tests in readers_test.
FILES = ["criteo", "parquet"]


@pytest.fixture(params=["movielens", "synthetic", "synthetic_dense", *FILES])
def log(request, movielens_path, open_small_log):
    if request.param in FILES:
        return open_small_log(request.param)
    if request.param == "movielens":
        return MovieLens(movielens_path)
    num_dense = 3 if request.param == "synthetic_dense" else 0
    return SyntheticClickLog(400, fields=4, ids_per_field=50, num_dense=num_dense)


def delivered(dataset):
    """Returns the batches as lists of plain Python values."""
    return [
        (
            {
                name: value.to_list()
                if isinstance(value, tf.RaggedTensor)
                else value.numpy().tolist()
                for name, value in inputs.items()
            },
            labels.numpy().tolist(),
        )
        for inputs, labels in dataset
    ]


def examples(batches):
    """Returns every example of the batches as one comparable string, in order."""
    return [
        repr([column[row] for column in inputs.values()] + [labels[row]])
        for inputs, labels in batches
        for row in range(len(labels))
    ]


def test_batches_hold_what_the_features_promise(log):
    num_examples = log.num_examples("train")
    inputs, labels = next(iter(log.batches("train", 16)))
    assert list(inputs) == [feature.name for feature in log.features]
    for feature in log.features:
        value = inputs[feature.name]
        assert value.dtype == DTYPES[feature.dtype]
        assert value.shape.as_list() == [16, *feature.shape]
        assert isinstance(value, tf.RaggedTensor) == feature.is_bag
    assert labels.shape == (16,) and labels.dtype == tf.float32
    assert set(labels.numpy()) <= {0.0, 1.0}
    assert num_examples > 4 * log.num_examples("test") > 0


def test_an_epoch_delivers_every_example_once(log):
    in_order = examples(delivered(log.batches("train", 32)))
    shuffled = examples(delivered(log.batches("train", 32, seed=1)))
    assert len(in_order) == log.num_examples("train")
    assert shuffled != in_order
    assert sorted(shuffled) == sorted(in_order)


def test_two_runs_deliver_the_same(log):
    first, second = (log.batches("train", 32, seed=5, epochs=2) for _ in range(2))
    assert delivered(first) == delivered(second)


def test_order_changes_with_seed_and_epoch(log):
    steps = log.steps_per_epoch("train", 32)
    run = delivered(log.batches("train", 32, seed=5, epochs=2))
    other = delivered(log.batches("train", 32, seed=6))
    orders = [examples(part) for part in (run[:steps], run[steps:], other)]
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_order_does_not_depend_on_the_batch_size(log):
    small, large = (
        examples(delivered(log.batches("train", size, seed=2))) for size in (7, 50)
    )
    assert small == large


def test_labels_do_not_follow_the_order(log):
    # An order drawn like the labels would put all clicks first in some epoch.
    labels = np.concatenate(
        [labels for _, labels in log.batches("train", 32, seed=0, epochs=4)]
    ).reshape(4, -1)
    half = labels.shape[1] // 2
    spread = 6 * np.sqrt(0.25 / half + 0.25 / half)  # Six standard deviations.
    gaps = labels[:, :half].mean(axis=1) - labels[:, half:].mean(axis=1)
    assert np.abs(gaps).max() < spread


@pytest.mark.parametrize("drop_remainder", [False, True])
@pytest.mark.parametrize("seed", [None, 3])
def test_a_resumed_run_delivers_the_rest_to_the_bit(log, seed, drop_remainder):
    def run(position=Position()):  # noqa: B008 (frozen)
        return log.batches(
            "train", 50, seed, position, epochs=3, drop_remainder=drop_remainder
        )

    whole = delivered(run())
    steps = log.steps_per_epoch("train", 50, drop_remainder)
    assert len(whole) == 3 * steps
    for done in (0, 1, steps - 1, steps, steps + 2, 3 * steps - 1, 3 * steps):
        position = Position().advanced(done, steps)
        rest = run(position)
        assert delivered(rest) == whole[done:]
        assert rest.cardinality() == 3 * steps - done


@pytest.mark.parametrize(("drop_remainder", "expected"), [(False, None), (True, 50)])
def test_batch_size_is_static_where_it_is_fixed(log, drop_remainder, expected):
    dataset = log.batches("train", 50, drop_remainder=drop_remainder)
    inputs, labels = dataset.element_spec
    assert labels.shape[0] == expected
    for feature in log.features:
        if not feature.is_bag:  # TensorFlow's ragged gather forgets the batch size.
            assert inputs[feature.name].shape.as_list() == [expected, *feature.shape]


def test_iterator_outlives_its_dataset(log):
    iterator = iter(log.batches("train", 50, seed=1, epochs=20))
    gc.collect()
    assert len(list(iterator)) == 20 * log.steps_per_epoch("train", 50)


def test_vocabulary_is_what_both_splits_deliver(log):
    batches = [
        *delivered(log.batches("train", 64)),
        *delivered(log.batches("test", 64)),
    ]
    for feature in log.features:
        if feature.is_dense:
            continue
        column = [value for inputs, _ in batches for value in inputs[feature.name]]
        if feature.shape:
            column = [value for values in column for value in values]
        if feature.dtype == "string":
            column = [value.decode() for value in column]
        assert log.vocabulary(feature.name).tolist() == sorted(set(column))


def test_wrong_arguments_are_refused(log):
    num_train = log.num_examples("train")
    steps = log.steps_per_epoch("train", 32)
    for match, kwargs in [
        ("Received: split='valid'. For validation", {"split": "valid"}),
        ("Received: batch_size=0. A usual", {"batch_size": 0}),
        ("Received: batch_size=32.0. A usual", {"batch_size": 32.0}),
        ("Received: seed=-1. Use None", {"seed": -1}),
        (f"Received: seed={2**63}. Use None", {"seed": 2**63}),
        ("Received: seed=1.5. Use None", {"seed": 1.5}),
        ("Received: epochs=0. Use epochs=1", {"epochs": 0}),
        (
            rf"below the {steps} batches of an epoch. Received: position=Position\("
            rf"epoch=0, batch={steps}\). Resume with the batch size",
            {"position": Position(0, steps)},
        ),
        (
            r"end of the run, epochs=1. Received: position=Position\(epoch=1, batch=1"
            r"\). Raise `epochs`, which counts from the start, to 2 or more",
            {"position": Position(1, 1)},
        ),
        (
            r"Received: position=Position\(epoch=2, batch=0\). Raise `epochs`",
            {"position": Position(2, 0)},
        ),
        (
            f"Received: batch_size={num_train + 1}, drop_remainder=True, and "
            f"{num_train} examples in split 'train'. Lower `batch_size` to {num_train}",
            {"batch_size": num_train + 1, "drop_remainder": True},
        ),
    ]:
        with pytest.raises(ValueError, match=match):
            log.batches(**{"split": "train", "batch_size": 32, **kwargs})


def test_position_must_be_a_position(log):
    with pytest.raises(TypeError, match=r"Received: position=\{'epoch': 0.*from_dict"):
        log.batches("train", 32, position={"epoch": 0, "batch": 0})


def test_unknown_split_and_feature_are_refused(log):
    with pytest.raises(ValueError, match="Received: split='dev'. For validation"):
        log.num_examples("dev")
    with pytest.raises(ValueError, match="must be one of '.*Received: 'nobody'"):
        log.vocabulary("nobody")


def test_steps_per_epoch_count_the_remainder_if_it_is_kept(log):
    num_examples = log.num_examples("train")
    assert log.steps_per_epoch("train", num_examples - 1) == 2
    assert log.steps_per_epoch("train", num_examples - 1, drop_remainder=True) == 1
    assert log.steps_per_epoch("train", num_examples) == 1
    assert log.steps_per_epoch("train", num_examples + 1) == 1


def test_importing_the_logs_does_not_start_tensorflow():
    code = "import sys, tfctr.data; sys.exit('tensorflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
