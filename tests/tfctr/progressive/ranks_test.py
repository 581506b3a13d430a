"""Progressive training under horovodrun: every window as in one process."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tfctr import progressive
from tfctr.checkpoint import CheckpointDirectory
from tfctr.config import TrainConfig

# Of each window. Batches of 16 are full, short, and of a single row: one rank has none.
ROWS = (20, 1, 17, 3)
TOML = """
data.kind = "parquet"
model.dim = 4
model.hidden_units = [8]
tables.learning_rate = 0.1
run.batch_size = 16
progressive.time = "time"
progressive.item = "ad"
[[features]]
name = "ad"
[[features]]
name = "user"
"""


def of_windows(result, name):
    return [window[name] for window in result["windows"]]


@pytest.mark.slow
@pytest.mark.multiprocess
def test_two_ranks_go_through_the_windows_as_one_process(horovodrun, tmp_path):
    random = np.random.default_rng(0)
    num_rows = sum(ROWS)
    columns = {
        "time": np.repeat(np.arange(len(ROWS)) * 3600, ROWS),
        "ad": random.integers(0, 9, num_rows),
        "user": random.integers(0, 30, num_rows),
        "label": np.arange(num_rows) % 2,
    }
    pq.write_table(pa.table(columns), tmp_path / "0.parquet")
    toml, file = tmp_path / "config.toml", tmp_path / "result.json"
    toml.write_text(TOML)
    overrides = [
        *(f"data.path={tmp_path}/0.parquet", "run.mode=progressive"),
        f"run.directory={tmp_path}/run",
    ]
    _, alone = progressive.train(TrainConfig.load(toml, overrides))
    save = "progressive.checkpoint_every=1"
    printed = horovodrun(
        2,
        *("-m", "tfctr", "train", toml, "--json", file, "--set", save),
        *(part for override in overrides for part in ("--set", override)),
    )
    both = json.loads(file.read_text())
    assert (alone["ranks"], both["ranks"]) == (1, 2)
    assert of_windows(alone, "examples") == list(ROWS)
    check_equal(both, alone)
    # Rank 0 alone tells.
    assert printed.count("day 1:") == 1
    # One process goes on with what two have saved.
    checkpoints = CheckpointDirectory(tmp_path / "run/checkpoints")
    checkpoints.remove(checkpoints.steps()[-1])
    lines = []
    asked = TrainConfig.load(toml, [*overrides, save])
    _, resumed = progressive.train(asked, lines.append)
    assert lines[0] == "goes on behind the 3 windows of an earlier run"
    check_equal(resumed, alone)


def check_equal(both, alone):
    for name in ("start", "examples", "tested_examples", "table_rows", "new_rows"):
        assert of_windows(both, name) == of_windows(alone, name), name
    for name in ("auc", "popularity_auc", "log_loss"):
        # `None`, of one row, becomes NaN.
        found, expected = (
            np.array(of_windows(result, name), float) for result in (both, alone)
        )
        np.testing.assert_allclose(found, expected, rtol=1e-5, err_msg=name)
