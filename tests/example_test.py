"""What a reader may copy runs: the configurations of examples/, the code of README."""

import functools
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from helpers import tfra_models
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
    names = {"movielens", "synthetic", "criteo", "avazu", "parquet"}
    assert names <= {path.stem for path in CONFIGS}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_configuration_loads(path):
    config = TrainConfig.load(str(path))
    # Runs of two examples do not overwrite each other.
    assert config.run.directory == f"runs/{path.stem}"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_the_commands_in_a_configuration_name_itself(path):
    pattern = r"^#   python -m tfctr (?:train|study large-batch) (\S+)"
    commands = re.findall(pattern, path.read_text(), re.M)
    assert {ROOT / command for command in commands} == {path}


def test_the_synthetic_example_trains_by_its_command(tmp_path):
    overrides = [*SMALL, f"run.directory={tmp_path}/run"]
    command = ["-m", "tfctr", "train", "examples/synthetic.toml"]
    for override in overrides:
        command += ["--set", override]
    printed = python(*command, "--json", tmp_path / "result.json")
    result = json.loads((tmp_path / "result.json").read_text())
    assert {"auc", "log_loss", "examples_per_second", "rows"} <= result.keys()
    assert 0.6 < result["auc"] <= result["best_auc"] + 0.03
    assert "Epoch 2/2" in printed
    for line in ("test AUC", "throughput", "rows", "memory", "best reachable"):
        assert line in printed
    assert (tmp_path / "run" / "model.keras").is_file()


@pytest.fixture
def movielens_path(tmp_path):
    """Files like those of MovieLens 1M: 60 users rate 40 films."""
    users, movies = range(1, 61), range(1, 41)
    ratings = [f"{u}::{m}::{(u * 7 + m * 3) % 5 + 1}::0" for u in users for m in movies]
    lines = {
        "ratings": ratings,
        "users": [f"{u}::{'FM'[u % 2]}::{18 + u}::{u % 5}::{u:05}" for u in users],
        "movies": [f"{m}::Film (1999)::{('Drama', 'War')[m % 2]}" for m in movies],
    }
    for name in lines:
        (tmp_path / f"{name}.dat").write_text("\n".join(lines[name]) + "\n")
    return tmp_path


@pytest.mark.multiprocess
def test_the_script_for_many_ranks_goes_on_with_two_as_with_one(
    movielens_path, horovodrun
):
    alone = run_script(python, movielens_path, epochs=2, directory="alone")
    run_script(python, movielens_path, epochs=1)
    two_ranks = functools.partial(horovodrun, 2)
    resumed = run_script(two_ranks, movielens_path, epochs=2)
    assert "Epoch 2/2" in resumed and "Epoch 1/2" not in resumed
    scores = [float(score) for score in re.findall(r"test AUC (\S+)", alone + resumed)]
    assert len(scores) == 2  # Rank 0 alone prints.
    assert scores[1] == pytest.approx(scores[0], abs=0.001)


def run_script(run, path, epochs, directory="run"):
    script = [ROOT / "examples" / "horovod_movielens.py", path]
    options = ["--directory", path / directory, "--batch_size", "100"]
    return run(*script, *options, "--epochs", str(epochs))


def python(*arguments):
    """Returns what `python *arguments` printed."""
    done = subprocess.run(
        [sys.executable, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "KERAS_BACKEND": "tensorflow"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_model_of_tfra_trains_with_its_tables_on_ssd(tmp_path):
    if importlib.util.find_spec("tensorflow_recommenders_addons") is None:
        pytest.skip("this environment has no TFRA.")
    script = str(ROOT / "examples" / "tfra_tiered_table.py")
    printed = tfra_models.run(
        "run_script", tmp_path, script=script, arguments=["--epochs=2"]
    )
    numbers = dict(re.findall(r"^(\w.*?)  +([\d,.]+)$", printed, re.M))
    values = {name: float(text.replace(",", "")) for name, text in numbers.items()}
    assert values["error at last"] < 0.5 * values["error at first"]
    assert 3000 < values["users and films"] <= 5000
    # Rows of 16 floats, and as many of each slot, less what fits into memory.
    assert values["bytes on SSD"] > 3000 * 16 * 4 * 3 - 256_000
    assert re.search(r"^checkpoint +\S+checkpoint-1$", printed, re.M)


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
