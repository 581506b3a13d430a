"""`train` with `run.report`: told, and trained no differently."""

import json

import pytest

from tfctr import cli, training
from tfctr.config import TrainConfig
from tfctr.report import EventReader, History

TINY = {
    "data": {"num_examples": 500, "fields": 2, "ids_per_field": 20},
    "model": {"dim": 2, "hidden_units": [4]},
    "run": {"epochs": 2, "batch_size": 64, "steps_per_execution": 3},
}


def train(directory, *overrides):
    overrides = [f"run.directory={directory}", *overrides]
    return training.train(TrainConfig.from_dict(TINY, overrides))[1]


def test_a_report_changes_no_result_and_tells_of_all_epochs(tmp_path, capsys):
    plain = train(tmp_path / "plain")
    told = train(tmp_path / "told", "run.report=true")
    assert told["auc"] == plain["auc"] and told["log_loss"] == plain["log_loss"]
    assert list((tmp_path / "plain").iterdir()) == []
    names = {path.name for path in (tmp_path / "told").iterdir()}
    assert names - {"tensorboard"} == {"events.jsonl", "report.html"}

    history = History()
    history.add(EventReader(tmp_path / "told").read())
    whole = history.total()
    assert whole["examples"] == 2 * 450
    assert [epoch["epoch"] for epoch in history.epochs] == [0, 1]
    assert [epoch["step"] for epoch in history.epochs] == [8, 16]
    # Each epoch is a `fit` of its own, and yet the run begins once.
    text = (tmp_path / "told" / "events.jsonl").read_text()
    assert text.count('"kind": "begin"') == 1
    assert whole["tables"].keys() == told["tables"].keys()
    for name, table in told["tables"].items():
        for count in ("rows", "found_rows", "inserted_rows", "updated_rows"):
            assert whole["tables"][name][count] == table[count]
    assert cli.main(["top", "--once", str(tmp_path / "told")]) == 0
    assert "epoch 2, step 16" in capsys.readouterr().out


@pytest.mark.parametrize("value", ["1", "'yes'"])
def test_whether_to_report_is_true_or_false(value, tmp_path):
    message = "'run.report' must be true or false. Received: run.report="
    with pytest.raises(ValueError, match=message):
        TrainConfig.from_dict({}, [f"run.report={value}"])
    config = TrainConfig.from_dict({}, ["run.report=true"])
    assert TrainConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
