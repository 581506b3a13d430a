"""A progressive run that stopped goes on as if it had not.

The oracle is the run that nobody stopped and that saved nothing. Run as a program, this
file is a run that kills itself.
"""

import os
import shutil
import signal
import subprocess
import sys

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import timed_logs
from keras_layers import DynamicEmbedding
from tfctr import cli, progressive, training
from tfctr.checkpoint import CheckpointDirectory
from tfctr.data import FeatureDeclaration
from tfctr.progressive.progress import Progress
from tfctr.progressive.saved_run import checksum, same_windows
from tfctr.report import EventReader, History
from tfctr.report.scalars import has_tensorboard

# Dropout, admission, expiry and negatives: what has a state, or hangs on the past.
ASKED = (
    *("run.batch_size=32", "model.dropout=0.2", "tables.admission=count"),
    *("tables.admission_min_count=3", "tables.expiry_every=5"),
    *("tables.expiry_max_rows=20", "progressive.window_seconds=1200"),
)
# What is not of the run, but of a process.
OF_A_PROCESS = ("memory_bytes", "seconds", "train_seconds", "table_bytes")
OF_A_PROCESS += ("admission_bytes",)


def train(log, directory, *overrides, dies_at=None, kill=None):
    """Trains, and dies in the middle of a window if it is told which."""
    lines, fitted = [], []
    fit = training.fit

    def dying_fit(*arguments, **options):
        fitted.append(1)
        fit(*arguments, **options)
        if len(fitted) == dies_at:
            kill()

    config = timed_logs.config(log, directory, *ASKED, *overrides)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "fit", dying_fit)
        model, result = progressive.train(config, lines.append)
    return model, result, lines, len(fitted)


class Crash(Exception):
    pass


def crash():
    raise Crash


def facts(result):
    """What must be equal: metrics and counts of all windows and days."""
    return [
        {name: entry[name] for name in entry if name not in OF_A_PROCESS}
        for entry in [*result["windows"], *result["days"]]
    ]


def state_of(model):
    """Rows and weights, to the bit."""
    rows = [
        (layer.name, feature, ids.tolist(), vectors.tobytes())
        for layer in model.layers
        if isinstance(layer, DynamicEmbedding)
        for feature, ids, vectors in layer.export(10**6)
    ]
    return rows, [keras.ops.convert_to_numpy(w).tobytes() for w in model.variables]


def means(result):
    return {name: result[name] for name in result if name.endswith(("auc", "loss"))}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("log")
    columns = timed_logs.draw_log(400, hours=2)
    columns["time"][columns["time"] >= 12_000] += 86_400  # Two days.
    pq.write_table(pa.table(columns), path / "0.parquet")
    model, result, lines, _ = train(path, tmp_path_factory.mktemp("run"))
    assert len(result["windows"]) == 6 and len(result["days"]) == 2
    assert result["windows"][-1]["expired_rows"] > 0 < result["windows"][-1]["auc"]
    return path, model, result, lines


def test_a_run_that_stopped_ends_as_the_whole_one(whole, tmp_path, capsys):
    log, model, expected, lines = whole
    options = ["progressive.checkpoint_every=2", "run.report=true"]
    options.append("run.steps_per_execution=3")
    with pytest.raises(Crash):
        train(log, tmp_path, *options, dies_at=4, kill=crash)
    keras.utils.set_random_seed(99)
    again, result, told, fitted = train(log, tmp_path, *options)
    assert fitted == 4  # The third window was not saved, the fourth not ended.
    assert told[0] == "goes on behind the 2 windows of an earlier run"
    assert told[-1] == lines[-1]
    assert facts(result) == facts(expected) and means(result) == means(expected)
    assert state_of(again) == state_of(model)
    check_report(tmp_path, expected)
    check_views(tmp_path, expected["windows"][-1]["auc"], capsys)
    # Once more: nothing is left to do.
    _, once_more, _, fitted = train(log, tmp_path, *options)
    assert fitted == 0 and facts(once_more) == facts(expected)
    check_report(tmp_path, expected)


def check_report(directory, expected):
    history = History()
    history.add(EventReader(directory).read())
    assert [window["epoch"] for window in history.windows] == list(range(6))
    for told, window in zip(history.windows, expected["windows"], strict=True):
        for name in ("auc", "log_loss", "popularity_auc", "trend_auc"):
            assert told["metrics"][name] == window[name]
        assert told["examples"] == window["examples"]
        tables = told["tables"].values()

        def total(name, tables=tables):
            return sum(table.get(name, 0) for table in tables)

        assert total("known_rows") == window["table_rows"]
        assert total("inserted_rows") == window["new_rows"]
        assert total("expired_rows") == window["expired_rows"]
        assert total("refused_keys") == window["refused_lookups"]
    steps = [line["steps"] for line in history.intervals]
    assert sum(steps) == history.windows[-1]["step"]
    assert not list(directory.glob("earlier-*"))


def check_views(directory, auc, capsys):
    assert cli.main(["top", "--once", str(directory)]) == 0
    shown = capsys.readouterr().out
    assert "window 6, step" in shown and f"auc {auc:.4f}" in shown
    assert "window of 1970-01-02 03:40" in shown
    assert "refused" in shown and "writes" not in shown  # There is no disk.
    page = (directory / "report.html").read_text()
    assert "<h2>Windows</h2>" in page and "AUC of the windows" in page
    assert page.count('data-column="trend_auc"') == 6
    assert f'data-column="auc" data-value="{auc}"' in page
    if has_tensorboard():
        assert list((directory / "tensorboard").iterdir())


def test_a_run_goes_on_when_its_log_has_grown(whole, tmp_path, write_log):
    log, model, expected, _ = whole
    columns = pq.read_table(log).to_pydict()
    num_rows = sum(time < 10_800 for time in columns["time"])
    option = "progressive.checkpoint_every=9"
    begun = write_log({name: values[:num_rows] for name, values in columns.items()})
    _, _, _, fitted = train(begun, tmp_path, option)
    assert fitted == 3
    grown = write_log(columns)
    again, result, told, fitted = train(grown, tmp_path, option)
    assert told[0] == "goes on behind the 3 windows of an earlier run" and fitted == 3
    assert facts(result) == facts(expected) and means(result) == means(expected)
    assert state_of(again) == state_of(model)


def test_a_run_of_half_a_window_goes_on_without_its_newest_checkpoint(
    whole, tmp_path, write_log
):
    log, model, expected, _ = whole
    columns = pq.read_table(log).to_pydict()
    num_rows = sum(time < 10_200 for time in columns["time"])
    option = "progressive.checkpoint_every=2"
    begun = write_log({name: values[:num_rows] for name, values in columns.items()})
    _, _, _, fitted = train(begun, tmp_path, option)
    assert fitted == 3
    grown = write_log(columns)
    with pytest.raises(ValueError, match="remove its newest checkpoint, to go back"):
        train(grown, tmp_path, option)
    [_, newest] = sorted((tmp_path / "checkpoints").glob("step-*"))
    shutil.rmtree(newest)
    again, result, _, fitted = train(grown, tmp_path, option)
    assert fitted == 4
    assert facts(result) == facts(expected) and state_of(again) == state_of(model)


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on(whole, tmp_path):
    log, model, expected, _ = whole
    command = [sys.executable, __file__, str(log), str(tmp_path), "4"]
    killed = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stdout
    option = "progressive.checkpoint_every=1"
    again, result, _, fitted = train(log, tmp_path, option)
    assert fitted in (3, 4)  # The third may not have been written to its end.
    assert facts(result) == facts(expected)
    assert state_of(again) == state_of(model)
    assert not list((tmp_path / "checkpoints").glob("*.draft"))


@pytest.fixture(scope="module")
def stopped(whole, tmp_path_factory):
    """The directory of a run that stopped in its second window."""
    directory = tmp_path_factory.mktemp("stopped")
    with pytest.raises(Crash):
        options = {"dies_at": 2, "kill": crash}
        train(whole[0], directory, "progressive.checkpoint_every=1", **options)
    return directory


def test_a_run_goes_on_as_it_began(whole, stopped):
    message = (
        "holds the checkpoints of one. Expected: model.dim=4, run.seed=1. Received: "
        "model.dim=8, run.seed=2. Set that back"
    )
    changed = ["model.dim=8", "run.seed=2", "progressive.checkpoint_every=3"]
    with pytest.raises(ValueError, match=message):
        train(whole[0], stopped, *changed)


def test_a_setting_that_the_checkpoint_does_not_know_was_at_its_default(
    whole, stopped, tmp_path
):
    of_stopped = CheckpointDirectory(stopped / "checkpoints")
    config = of_stopped.read_state(of_stopped.steps()[-1])["config"]
    for name in ("model.dropout", "tables.expiry_unused_steps"):
        config.pop(name)
    directory = CheckpointDirectory(tmp_path / "checkpoints")
    directory.draft(3)
    directory.commit(3, {"config": config})
    message = "Expected: model.dropout=0.0. Received: model.dropout=0.2. Set that back"
    with pytest.raises(ValueError, match=message):
        train(whole[0], tmp_path, "progressive.checkpoint_every=1")


@pytest.mark.parametrize("rows", [slice(1, None), slice(0, 9)])
def test_a_run_goes_on_with_its_log(stopped, write_log, rows):
    columns = timed_logs.draw_log(400, hours=2)
    log = write_log({name: values[rows] for name, values in columns.items()})
    message = (
        "A run goes on with the log that it began with.* This is the last window that "
        "was trained, and rows that are added to it are refused: give the run whole "
        "windows only, or remove its newest checkpoint, to go back to the one before "
        "it, or to the beginning.$"
    )
    with pytest.raises(ValueError, match=message):
        train(log, stopped, "progressive.checkpoint_every=1")


def progress_of(windows):
    progress = Progress()
    for window in windows:
        entry = {"start": window.start, "examples": len(window.labels)}
        progress.windows.append({**entry, "clicks": int(window.labels.sum())})
        progress.checksums.append(checksum(window))
    return progress


@pytest.mark.parametrize("changed", ["time", "ad", "user", "label", "order"])
def test_other_rows_of_a_window_are_refused(write_log, changed):
    columns = timed_logs.draw_log(100, hours=2)
    log = timed_logs.open_log(write_log(columns))
    progress = progress_of(log.windows(1200))
    assert len(list(same_windows(progress, log.windows(1200)))) == 6
    # Two rows of a click and of none, in the second window.
    times, labels = columns["time"], columns["label"]
    [row, *_] = [
        row
        for row in np.flatnonzero(times[:-1] >= 8400)
        if labels[row] != labels[row + 1] and times[row] != times[row + 1]
    ]
    assert times[row + 1] < 9600
    if changed == "time":
        times[row] = times[row + 1]
    elif changed in ("label", "order"):  # As many clicks.
        for name in ["label"] if changed == "label" else ["ad", "user", "label"]:
            columns[name][[row, row + 1]] = columns[name][[row + 1, row]]
    else:
        columns[changed][row] += 1
    counts = r"(\d+ examples and \d+ clicks), of checksum "
    where = ", in the window from 8,400,000,000,000 ns since 1970 on. "
    message = (
        f"Expected: {counts}[0-9a-f]{{8}}{where}Received: \\1.*{where}Restore the "
        "files, add rows behind the last window only, or name another run.directory to "
        "begin anew.$"
    )
    windows = timed_logs.open_log(write_log(columns)).windows(1200)
    with pytest.raises(ValueError, match=message):
        list(same_windows(progress, windows))


def test_texts_and_lists_are_compared(write_log):
    features = [
        FeatureDeclaration("word", kind="string"),
        FeatureDeclaration("bag", kind="ids"),
    ]
    found = set()
    for words in (["a", "bc"], ["ab", "c"]):
        for bags in ([[1], [2, 3]], [[1, 2], [3]], [[1], [2, 4]]):
            columns = {"time": [0, 1], "label": [0, 1], "word": words, "bag": bags}
            log = write_log(columns)
            opened = timed_logs.open_log(log, item="", features=features)
            found.add(checksum(next(opened.windows(60))))
    assert len(found) == 6


def test_a_log_that_ends_early_is_told(whole, stopped, monkeypatch):
    log = timed_logs.open_log(whole[0])
    monkeypatch.setattr(type(log), "windows", lambda self, seconds: iter(()))
    with pytest.raises(ValueError, match="Received: the end of the log. Restore"):
        train(whole[0], stopped, "progressive.checkpoint_every=1")


def test_a_checkpoint_of_another_training_is_refused(whole, tmp_path):
    directory = CheckpointDirectory(tmp_path / "checkpoints")
    directory.draft(3)
    directory.commit(3, {})
    with pytest.raises(ValueError, match="of another training. Name another run.dir"):
        train(whole[0], tmp_path, "progressive.checkpoint_every=1")


def main(log, directory, dies_at):
    def kill():
        os.kill(os.getpid(), signal.SIGKILL)

    option = "progressive.checkpoint_every=1"
    train(log, directory, option, dies_at=int(dies_at), kill=kill)


if __name__ == "__main__":
    main(*sys.argv[1:])
