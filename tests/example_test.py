"""What a reader may copy runs: the configurations of examples/, the code of README."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from tfctr.config import TrainConfig

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONFIGS = sorted((ROOT / "examples").glob("*.toml"))
README = ROOT / "README.md"
SMALL = (
    "data.num_examples=20000",
    "data.ids_per_field=500",
    "model.hidden_units=[16]",
    "tables.learning_rate=0.01",
)


def test_there_are_examples():
    assert {"movielens.toml", "synthetic.toml"} <= {path.name for path in CONFIGS}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_configuration_loads(path):
    config = TrainConfig.load(str(path))
    # Runs of two examples do not overwrite each other.
    assert config.run.directory == f"runs/{path.stem}"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_the_commands_in_a_configuration_name_itself(path):
    (command,) = re.findall(r"^#   python -m tfctr train (\S+)", path.read_text(), re.M)
    assert ROOT / command == path


def test_the_synthetic_example_trains_by_its_command(tmp_path):
    overrides = [*SMALL, f"run.directory={tmp_path}/run"]
    command = [sys.executable, "-m", "tfctr", "train", "examples/synthetic.toml"]
    for override in overrides:
        command += ["--set", override]
    command += ["--json", str(tmp_path / "result.json")]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "KERAS_BACKEND": "tensorflow"},
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert {"auc", "log_loss", "examples_per_second", "rows"} <= result.keys()
    assert 0.6 < result["auc"] <= result["best_auc"] + 0.03
    assert "Epoch 2/2" in done.stdout
    for line in ("test AUC", "throughput", "rows", "memory", "best reachable"):
        assert line in done.stdout
    assert (tmp_path / "run" / "model.keras").is_file()


def test_the_code_in_readme_runs():
    if not README.is_file():
        pytest.skip("there is no README.md.")
    text = README.read_text()
    blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.M | re.S))
    assert blocks
    names = {"__name__": "readme"}
    for block in blocks:
        # Lines are counted as in the file, so that a traceback leads there.
        before = "\n" * text[: block.start(1)].count("\n")
        exec(compile(before + block[1], str(README), "exec"), names)
