"""`tfctr train` under horovodrun: the result of one process, told by rank 0."""

import json
import pathlib

import keras
import numpy as np
import pytest

from tfctr import training
from tfctr.config import TrainConfig

ROOT = pathlib.Path(__file__).resolve().parents[2]
SETTINGS = ("data.num_examples=20000", "run.epochs=1", "run.batch_size=512")


@pytest.fixture
def train(horovodrun, tmp_path):
    """Trains on two ranks; returns the result, and what was printed."""

    def run(*settings):
        file = tmp_path / "result.json"
        overrides = [*SETTINGS, f"run.directory={tmp_path}", *settings]
        printed = horovodrun(
            2,
            *("-m", "tfctr", "train", "examples/synthetic.toml", "--json", file),
            *(part for setting in overrides for part in ("--set", setting)),
        )
        return json.loads(file.read_text()), printed

    return run


@pytest.mark.slow
@pytest.mark.multiprocess
def test_two_ranks_end_as_one_process(train, tmp_path):
    config = TrainConfig.load(
        ROOT / "examples/synthetic.toml",
        [*SETTINGS, f"run.directory={tmp_path}/one", "run.report=true"],
    )
    model, expected = training.train(config)
    result, output = train("run.report=true")
    assert (result["ranks"], expected["ranks"]) == (2, 1)
    assert result["rows"] == expected["rows"]
    # Of all examples of the test split, in whatever order.
    np.testing.assert_allclose(result["auc"], expected["auc"], atol=2e-3)
    np.testing.assert_allclose(result["log_loss"], expected["log_loss"], atol=2e-3)
    # Rank 0 alone tells, and saves the rows of both.
    assert output.count("test AUC") == output.count("36/36") == 1
    assert not list(tmp_path.glob("partial.*"))
    loaded = keras.models.load_model(tmp_path / "model.keras")
    labels, probabilities = training.predict_split(
        loaded, training.open_log(config), "test"
    )
    assert len(labels) == len(probabilities)
    assert training.auc(labels, probabilities) == pytest.approx(result["auc"], abs=1e-6)

    # What both ranks have counted is what one has.
    alone, both = (epoch_of(tmp_path / name) for name in ("one", "."))
    assert both["examples"] == alone["examples"] == 18_000
    assert both["steps"] == alone["steps"] == 36
    assert both["tables"].keys() == alone["tables"].keys()
    for name, table in alone["tables"].items():
        for count in ("known_rows", "found_rows", "inserted_rows", "updated_rows"):
            assert both["tables"][name][count] == table[count], (name, count)
    assert (tmp_path / "report.html").is_file()


def epoch_of(directory):
    """What the report of a run tells of its one epoch."""
    lines = (directory / "events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    assert [event["kind"] for event in events].count("begin") == 1
    (epoch,) = [event for event in events if event["kind"] == "epoch"]
    return epoch


@pytest.mark.slow
@pytest.mark.multiprocess
def test_two_ranks_merge_every_k_steps(train):
    result, _ = train("run.k_step=8", "run.merge=parameters")
    steps = -(-18_000 // 512)
    assert result["merges"]["scheduled"] == steps // 8
    assert result["auc"] > 0.55
