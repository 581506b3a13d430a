"""`TrainConfig`: what TOML and overrides may say, and what is said to mistakes."""

import dataclasses
import json
import re

import pytest

from tfctr.config import DataConfig, ModelConfig, RunConfig, TablesConfig, TrainConfig

TOML = """
[data]
kind = "movielens"
path = "ml-1m"

[model]
hidden_units = [64, 32]
dropout = 0

[tables]
learning_rate = 1e-2

[run]
epochs = 7
"""


@pytest.fixture
def write(tmp_path):
    def write(content):
        path = tmp_path / "run.toml"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return write


def test_a_file_sets_what_it_names_and_leaves_the_rest(write):
    assert TrainConfig.load(write(TOML)) == TrainConfig(
        DataConfig(kind="movielens", path="ml-1m"),
        ModelConfig(hidden_units=(64, 32), dropout=0.0),
        TablesConfig(learning_rate=0.01),
        RunConfig(epochs=7),
    )


def test_an_empty_file_is_the_default(write):
    assert TrainConfig.load(write("")) == TrainConfig()


def test_overrides_win_over_the_file_and_the_last_over_the_others(write):
    config = TrainConfig.load(
        write(TOML), ["run.epochs=1", "run.epochs=2", "model.hidden_units=[8]"]
    )
    assert config.run.epochs == 2
    assert config.model.hidden_units == (8,)
    assert config.data.path == "ml-1m"


@pytest.mark.parametrize(
    ("override", "path"),
    [
        ("data.path=../some where/ml-1m", "../some where/ml-1m"),
        ('data.path="quoted"', "quoted"),
        ("data.path='3'", "3"),
        ("data.path=a=b", "a=b"),
        ("data.path=", ""),
        ("data.path=größe", "größe"),
        (" data.path =x", "x"),
    ],
)
def test_strings_need_no_quotes_in_an_override(override, path):
    assert TrainConfig.from_dict({}, [override]).data.path == path


def test_whole_numbers_are_numbers_too():
    rate = TrainConfig.from_dict({"run": {"learning_rate": 1}}).run.learning_rate
    assert type(rate) is float and rate == 1.0


def test_dicts_and_json_come_back():
    config = TrainConfig.from_dict({"model": {"hidden_units": [3]}}, ["data.seed=9"])
    assert TrainConfig.from_dict(config.to_dict()) == config
    assert TrainConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_every_entry_is_documented():
    for kind in (TrainConfig, DataConfig, ModelConfig, TablesConfig, RunConfig):
        for field in dataclasses.fields(kind):
            assert f"    {field.name}: " in kind.__doc__, (kind, field.name)


# Mistakes.


def assert_refused(message, sections, *overrides):
    with pytest.raises(ValueError, match=re.escape(message)):
        TrainConfig.from_dict(sections, overrides)


def test_a_missing_file_is_named(tmp_path):
    path = str(tmp_path / "no.toml")
    for place in (path, str(tmp_path)):
        message = f"must be a TOML file. Received: {place}, which is no file."
        with pytest.raises(ValueError, match=re.escape(message)):
            TrainConfig.load(place)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[run\n", "Expected ']' at the end of a table declaration (at line 1,"),
        ("[run]\nepochs = three", "Invalid value (at line 2, column 10)"),
        (b"[run]\n# \xff", "'utf-8' codec can't decode byte 0xff in position 8"),
    ],
)
def test_what_is_no_toml_is_named_with_its_place(write, content, reason):
    path = write(content)
    with pytest.raises(ValueError, match=re.escape(f"{path} is not TOML: {reason}")):
        TrainConfig.load(path)


def test_unknown_sections_are_refused():
    known = "Known here: data, model, tables, run, progressive, features."
    assert_refused(f"has no 'net'. {known}", {"net": {"dim": 3}})
    assert_refused(f"has no 'net'. {known}", {}, "net.dim=3")
    assert_refused(f"has no 'modle'. {known} Did you mean 'model'?", {"modle": {}})


def test_unknown_keys_are_refused_with_a_guess():
    message = (
        "The configuration has no 'run.epoch'. Known here: run.mode, run.epochs, "
        "run.batch_size, run.learning_rate, run.warmup_epochs, run.seed, "
        "run.steps_per_execution, run.k_step, run.merge, run.directory, run.report. "
        "Did you mean 'run.epochs'?"
    )
    assert_refused(message, {"run": {"epoch": 3}})
    assert_refused(message, {}, "run.epoch=3")
    with pytest.raises(ValueError, match=r"has no 'run\.x'\. [^?]*run\.report\.$"):
        TrainConfig.from_dict({"run": {"x": 3}})


@pytest.mark.parametrize("value", [5, "x", [1], True])
def test_a_section_must_be_one(value):
    message = f"'data' must be a section of the configuration. Received: data={value!r}"
    assert_refused(message, {"data": value})
    assert_refused(message, {"data": value}, "data.kind=synthetic")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("run.epochs", "3", "an integer"),
        ("run.epochs", 3.0, "an integer"),
        ("run.epochs", True, "an integer"),
        ("run.learning_rate", "fast", "a number"),
        ("run.learning_rate", False, "a number"),
        ("data.path", 5, "a string, in quotes in TOML"),
        ("model.hidden_units", 5, "a list of integers"),
        ("model.hidden_units", "[5]", "a list of integers"),
        ("model.hidden_units", [5, 2.5], "a list of integers"),
        ("model.hidden_units", [5, True], "a list of integers"),
    ],
)
def test_wrong_types_are_refused(name, value, expected):
    section, key = name.split(".")
    message = f"'{name}' must be {expected}. Received: {name}={value!r}."
    assert_refused(message, {section: {key: value}})


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("run.epochs=0", "a positive integer. Received: run.epochs=0."),
        ("run.batch_size=-1", "a positive integer. Received: run.batch_size=-1."),
        ("run.steps_per_execution=0", "Received: run.steps_per_execution=0."),
        ("run.k_step=-1", "'run.k_step' must be 0 or more. Received: run.k_step=-1."),
        ("run.learning_rate=-0.1", "not negative. Received: run.learning_rate=-0.1."),
        ("run.learning_rate=nan", "finite number, not negative. Received: run.lear"),
        ("tables.learning_rate=inf", "Received: tables.learning_rate=inf."),
        ("run.seed=-1", "from 0 to 2**32 - 1. Received: run.seed=-1."),
        ("run.seed=4294967296", "Received: run.seed=4294967296."),
        ("run.directory=", "the name of a directory. Received: run.directory=''."),
        ("model.hidden_units=[8, 0]", "Received: model.hidden_units=[8, 0]."),
        ("model.dropout=1", "0 or more and below 1. Received: model.dropout=1.0."),
        ("model.dropout=-0.5", "Received: model.dropout=-0.5."),
        ("model.bottom_units=[0]", "Received: model.bottom_units=[0]."),
        ("model.num_cross_layers=0", "Received: model.num_cross_layers=0."),
        ("model.num_experts=0", "Received: model.num_experts=0."),
        ("model.rank=-1", "0 or more. Received: model.rank=-1."),
    ],
)
def test_values_out_of_range_are_refused(override, message):
    assert_refused(message, {}, override)


@pytest.mark.parametrize("override", ["run.epochs", "epochs=3", "run.=3", "=3", ""])
def test_overrides_of_another_form_are_refused(override):
    message = (
        "An override must look like section.key=value, for example run.epochs=3. "
        f"Received: {override!r}."
    )
    assert_refused(message, {}, override)


def test_an_override_of_the_wrong_type_is_refused():
    message = "'run.epochs' must be an integer. Received: run.epochs='three'."
    assert_refused(message, {}, "run.epochs=three")
