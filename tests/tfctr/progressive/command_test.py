"""`tfctr train --mode progressive`: the files it writes."""

import csv
import errno
import io
import json
import os
import pathlib
import sys

import pytest

from helpers import timed_logs
from tfctr import cli, progressive, training


@pytest.fixture
def command(write_log, tmp_path):
    path = write_log(timed_logs.draw_log(300, hours=2))
    lines = ['run.mode = "epochs"']  # --mode wins.
    for section, entries in timed_logs.SECTIONS.items():
        if section != "features":
            values = {k: v for k, v in entries.items() if k != "mode"}
            lines += [f"{section}.{k} = {json.dumps(v)}" for k, v in values.items()]
    for feature in timed_logs.SECTIONS["features"]:
        lines += ["[[features]]", *(f'{k} = "{v}"' for k, v in feature.items())]
    toml = tmp_path / "config.toml"
    toml.write_text("\n".join(lines))
    command = ["train", str(toml), "--set", f"data.path={path}"]
    return [*command, f"--set=run.directory={tmp_path}/run", "--mode", "progressive"]


def test_the_command_writes_results_windows_and_plot(command, tmp_path, capsys):
    output = tmp_path / "windows.csv"
    command += ["--json", f"{tmp_path}/result.json", "--output", str(output)]
    assert cli.main(command) == 0
    printed = capsys.readouterr().out
    assert "AUC of recent popularity" in printed and "day 1" in printed
    result = json.loads((tmp_path / "result.json").read_text())
    with output.open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == list(result["windows"][0])
    assert [float(row["auc"]) for row in rows] == pytest.approx(
        [window["auc"] for window in result["windows"]], rel=1e-5
    )
    assert output.with_suffix(".svg").read_text().count("<svg") == 1
    assert (tmp_path / "run" / "model.keras").is_file()


class FullDisk(io.StringIO):
    """Has room for the days, and none for the report."""

    def write(self, text):
        if "AUC of" in text:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(text)


@pytest.mark.parametrize("json_is_full", [False, True])
def test_no_result_is_lost_where_another_cannot_be_written(
    json_is_full, command, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(sys, "stdout", FullDisk())
    file = "/dev/full" if json_is_full else f"{tmp_path}/result.json"
    assert cli.main([*command, "--json", file]) == 2
    # Of several errors, that of the last to be written.
    told = "[Errno 28] No space left on device"
    if json_is_full:
        told = (
            "--json must name a file that can be written. Received: --json /dev/full "
            "(No space left on device)."
        )
    assert capsys.readouterr().err == f"tfctr: {told}\n"
    assert sys.stdout.getvalue().startswith("day 1")
    directory = tmp_path / "run"
    with (directory / "windows.csv").open() as rows:
        windows = list(csv.DictReader(rows))
    assert windows and (directory / "windows.svg").is_file()
    assert (directory / "model.keras").is_file()
    if not json_is_full:
        result = json.loads(pathlib.Path(file).read_text())
        assert len(result["windows"]) == len(windows)


def test_a_plot_that_cannot_be_written_is_told(command, tmp_path, capsys):
    (tmp_path / "windows.svg").mkdir()
    output = f"{tmp_path}/windows.csv"
    assert cli.main([*command, "--output", output]) == 2
    assert capsys.readouterr().err == (
        "tfctr: The plot of the windows must be written beside their table. Received: "
        f"'{tmp_path}/windows.svg' (Is a directory). Name another table: --output "
        "FILE.csv.\n"
    )


def test_without_matplotlib_there_is_no_plot(tmp_path, monkeypatch, capsys):
    def missing(windows, path):
        raise ImportError("No module named 'matplotlib'")

    windows = [{"start": "1970-01-01T00:00:00+00:00", "auc": 0.5}]
    result = {"windows": windows, "auc": 0.5}
    monkeypatch.setattr(progressive, "train", lambda config: (None, result))
    monkeypatch.setattr(progressive, "report", lambda result: "")
    monkeypatch.setattr(progressive, "plot", missing)
    monkeypatch.setattr(training, "save", lambda model, config: tmp_path)
    toml = tmp_path / "config.toml"
    toml.write_text("")
    command = ["train", str(toml), "--mode", "progressive"]
    assert cli.main([*command, "--output", str(tmp_path / "windows.csv")]) == 0
    expected = (
        "no plot: No module named 'matplotlib'. Install it: pip install matplotlib"
    )
    assert expected in capsys.readouterr().out
    assert (tmp_path / "windows.csv").read_text().startswith("start,auc\n1970")


def fails(capsys, command):
    assert cli.main(command) == 2
    return capsys.readouterr().err


def test_output_must_fit(write_log, tmp_path, capsys):
    toml = tmp_path / "config.toml"
    toml.write_text("")
    train = ["train", str(toml), "--output"]
    assert "Add --mode progressive" in fails(capsys, [*train, "x.csv"])
    train.insert(2, "--mode=progressive")
    assert "must end in .csv" in fails(capsys, [*train, "x.txt"])
    missing = str(tmp_path / "none" / "x.csv")
    assert "--output must name a file" in fails(capsys, [*train, missing])
