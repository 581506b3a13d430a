"""What `train` refuses before the first step, and what ends it later."""

import re

import pytest
import tensorflow as tf

from helpers.training_runs import TINY, train


def test_a_budget_without_eviction_stops_the_training(tmp_path):
    with pytest.raises(tf.errors.ResourceExhaustedError, match="ram=1000 bytes"):
        train(TINY, tmp_path, "tables.ram=1KB")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.kind=csv", "'movielens', 'synthetic'. Received: data.kind='csv'"),
        ("data.kind=criteo", "Received: data.path=''. Say --set data.path=path/to"),
        ("data.kind=parquet", "Received: data.path=''. Say --set data.path=path/to"),
        ("data.kind=movielens", "Received: data.path=''. Say --set data.path=path/to"),
        ("data.num_examples=5", "Received: num_examples=5."),
        (
            "model.name=fm",
            "must be one of 'wide_deep', 'deep_fm', 'dcn', 'dcn_v2', 'dlrm'. Received: "
            "model.name='fm'.",
        ),
        (
            "model.embedding=x",
            "one of 'dynamic', 'static'. Received: model.embedding='x",
        ),
        ("model.dim=0", "Received: dim=0."),
        (
            "tables.optimizer=lion",
            "must be one of 'sgd', 'adagrad', 'rowwise_adagrad', 'adam', "
            "'rowwise_adam', 'adamw', 'ftrl'. Received: tables.optimizer='lion'.",
        ),
        ("tables.ram=lots", "Received: tables.ram='lots'."),
        (
            "tables.ram=9223373TB",
            "'tables.ram' must be below 2**63 bytes. Received: tables.ram='9223373TB'. "
            "Leave it empty for no limit.",
        ),
        (
            "data.num_examples=10",
            "The test split must hold clicks and non-clicks, which AUC compares. "
            "Received: 0 clicks among 1 examples. Use a larger log.",
        ),
        ("tables.eviction_policy=fifo", "Received: eviction_policy='fifo'."),
    ],
)
def test_what_does_not_exist_is_refused(override, message, tmp_path):
    with pytest.raises(ValueError, match=re.escape(message)):
        train(TINY, tmp_path, override)
    assert list(tmp_path.iterdir()) == []


def test_a_log_without_a_test_split_is_refused(tmp_path):
    path = tmp_path / "clicks.txt"
    fields = ["3"] * 13 + ["0a"] * 26
    path.write_text("".join("\t".join([label, *fields]) + "\n" for label in "01"))
    overrides = ("data.kind=criteo", f"data.path={path}", "data.test_share=0")
    message = (
        "must have a test split, by which the model is judged. Received: none of 2 "
        "examples, with data.test_share=0.0. Set data.test_share to 0.1, for example, "
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        train(TINY, tmp_path, *overrides)


def test_a_missing_data_directory_is_named(tmp_path):
    overrides = ("data.kind=movielens", f"data.path={tmp_path}/none")
    message = f"Received: path='{tmp_path}/none', which does not exist."
    with pytest.raises(FileNotFoundError, match=re.escape(message)):
        train(TINY, tmp_path, *overrides)


def test_a_directory_that_cannot_be_made_is_refused_before_the_data_is_read(tmp_path):
    (tmp_path / "file").write_text("")
    directory = tmp_path / "file" / "run"
    message = f"Received: run.directory='{directory}' (Not a directory)."
    with pytest.raises(ValueError, match=re.escape(message)):
        train(TINY, directory, "data.kind=csv")
