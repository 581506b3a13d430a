"""The command line: what it prints, writes and returns."""

import json
import pathlib

import pytest

from tfctr import cli

ROOT = pathlib.Path(__file__).resolve().parents[2]
SYNTHETIC = str(ROOT / "examples" / "synthetic.toml")
TINY = [
    "data.num_examples=500",
    "data.fields=2",
    "data.ids_per_field=20",
    "model.dim=2",
    "model.hidden_units=[4]",
    "run.epochs=1",
    "run.batch_size=64",
]


def sets(*overrides):
    return [word for override in overrides for word in ("--set", override)]


def assert_refused(arguments, message, capsys):
    assert cli.main(arguments) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.startswith("tfctr: ")
    assert message in streams.err


def test_train_reports_and_writes_the_result(tmp_path, capsys):
    file = tmp_path / "result.json"
    overrides = sets(*TINY, f"run.directory={tmp_path}/run")
    assert cli.main(["train", SYNTHETIC, *overrides, "--json", str(file)]) == 0
    result = json.loads(file.read_text())
    printed = capsys.readouterr().out
    assert f"  test AUC      {result['auc']:.4f}   (best reachable" in printed
    assert f"  model         {tmp_path}/run/model.keras" in printed
    assert result["config"]["data"]["num_examples"] == 500
    # What no override named is that of the file.
    assert result["config"]["model"]["dropout"] == 0.2


def test_train_writes_no_result_unless_asked(tmp_path, capsys):
    overrides = sets(*TINY, f"run.directory={tmp_path}/run")
    assert cli.main(["train", SYNTHETIC, *overrides]) == 0
    assert sorted(x.name for x in tmp_path.rglob("*.*")) == [
        "config.json",
        "model.keras",
    ]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("run.epoch=1", "has no 'run.epoch'."),
        ("run.epochs=x", "'run.epochs' must be an integer. Received: run.epochs='x'."),
        ("run.epochs", "Received: 'run.epochs'."),
        ("data.kind=csv", "Received: data.kind='csv'."),
    ],
)
def test_bad_overrides_are_refused(override, message, tmp_path, capsys):
    overrides = sets(f"run.directory={tmp_path}", override)
    assert_refused(["train", SYNTHETIC, *overrides], message, capsys)


def test_a_missing_config_is_refused(capsys):
    message = "Received: no/such.toml, which is no file."
    assert_refused(["train", "no/such.toml"], message, capsys)


def test_missing_data_is_refused(tmp_path, capsys):
    overrides = sets(
        "data.kind=movielens", f"data.path={tmp_path}/no", f"run.directory={tmp_path}"
    )
    message = f"Received: path='{tmp_path}/no', which does not exist."
    assert_refused(["train", SYNTHETIC, *overrides], message, capsys)


@pytest.mark.parametrize("command", [["train", SYNTHETIC], ["bench", "step"]])
@pytest.mark.parametrize("file", ["none/result.json", ""])
def test_json_that_cannot_be_written_is_refused_before_the_work(
    command, file, tmp_path, capsys
):
    path = str(tmp_path / file)
    message = (
        f"--json must name a file in a directory that exists. Received: --json {path}."
    )
    assert_refused([*command, "--json", path], message, capsys)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["study"], "invalid choice: 'study'"),
        (["train"], "the following arguments are required: config"),
        (["bench", "nothing"], "invalid choice: 'nothing'"),
        (["train", SYNTHETIC, "--epochs", "3"], "unrecognized arguments: --epochs 3"),
    ],
)
def test_unknown_commands_and_options_are_refused(arguments, message, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code == 2
    assert message in capsys.readouterr().err
