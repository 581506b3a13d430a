"""`tfctr top`: what it prints of a run."""

import importlib
import json
import re
import subprocess
import sys
import time

import pytest

from tfctr import cli
from tfctr.report import EventFile
from tfctr.report.view import sparkline


@pytest.fixture(autouse=True)
def _wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setenv("TERM", "xterm")


def test_once_prints_what_is_known(run, capsys):
    directory, events = run
    assert cli.main(["top", "--once", str(directory)]) == 0
    printed = capsys.readouterr().out
    lines = [event for event in events if event["kind"] == "steps"]
    last = lines[-1]
    examples = sum(line["examples"] for line in lines)
    mean = sum(line["examples"] for line in lines[1:]) / sum(
        line["seconds"] for line in lines[1:]
    )
    assert printed.replace("\n", "").startswith(str(directory))
    assert "\nepoch 2, step 600 on 2 ranks, told " in printed
    assert f"examples/s {last['examples'] / last['seconds'] / 1000:.2f}k" in printed
    assert f"(mean {mean / 1000:.2f}k)" in printed
    assert f"examples {examples / 1000:.1f}k" in printed
    assert "loss 0.4400" in printed and "val_auc 0.7600" in printed
    assert f"input {0.5 / 11:.1%}" in printed
    assert f"update {0.75 / 11:.1%}" in printed
    table = last["tables"]["vectors/users"]
    (row,) = [text for text in printed.splitlines() if "vectors/users" in text]
    refused = sum(line["tables"]["vectors/users"]["refused_keys"] for line in lines)
    clipped, updated = 6 * 10, sum(1000 + i for i in range(1, 7))
    assert row.split() == [
        "vectors/users",
        "ram",
        f"{table['rows'] / 1000:.2f}k",
        *(f"{table['memory_bytes'] / 1000:.0f}", "kB"),
        f"{707 / (707 + 206 + 101):.1%}",
        str(sum(20 + i for i in range(1, 7))),
        str(refused),
        f"{clipped / updated:.1%}",
    ]
    # Names are no markup.
    assert "vectors/ads & <i>sites</i>" in printed
    # All tables: bytes on disk.
    both = sum(t["disk_bytes"] for t in last["tables"].values())
    assert f"{both / 1e6:.2f} MB" in printed


def test_a_run_that_has_only_begun(tmp_path, capsys):
    EventFile(tmp_path)
    assert cli.main(["top", "--once", str(tmp_path)]) == 0
    assert "No step has been told of yet." in capsys.readouterr().out


def test_following_shows_what_comes_until_it_is_interrupted(run, capsys, monkeypatch):
    directory, events = run
    waits = []

    def sleep(seconds):
        waits.append(seconds)
        if len(waits) == 2:
            raise KeyboardInterrupt
        line = {**events[-2], "step": 123_456}
        EventFile(directory).append(line)

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setenv("FORCE_COLOR", "1")  # As on a terminal.
    assert cli.main(["top", "--interval", "0.25", str(directory)]) == 0
    assert waits == [0.25, 0.25]
    assert "step 123,456" in re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)


def test_without_a_terminal_one_frame_is_all(run, capsys):
    assert cli.main(["top", str(run[0])]) == 2
    assert "Received: standard output that is none." in capsys.readouterr().err


def test_a_directory_without_events_is_refused(tmp_path, capsys):
    assert cli.main(["top", str(tmp_path)]) == 2
    message = capsys.readouterr().err
    assert message.startswith("tfctr: A run that is watched has a file 'events.jsonl'")
    assert f"--set run.directory='{tmp_path}'" in message


@pytest.mark.parametrize("seconds", ["0", "-1", "soon", "nan"])
def test_the_interval_must_be_positive(seconds, capsys):
    with pytest.raises(SystemExit):
        cli.main(["top", "--interval", seconds, "run"])
    assert f"such as 0.5, not {seconds}" in capsys.readouterr().err


def test_without_rich_there_is_no_view(run, capsys, monkeypatch):
    load = importlib.import_module

    def missing(name, *arguments):
        if name == "rich":
            raise ImportError("No module named 'rich'")
        return load(name, *arguments)

    monkeypatch.setattr(importlib, "import_module", missing)
    assert cli.main(["top", "--once", str(run[0])]) == 2
    assert "Install it: pip install rich." in capsys.readouterr().err


def test_it_starts_neither_keras_nor_tensorflow(run):
    code = f"""
import sys
import tfctr.cli
assert tfctr.cli.main(["top", "--once", {json.dumps(str(run[0]))}]) == 0
started = {{"tensorflow", "keras", "matplotlib"}} & set(sys.modules)
assert not started, started
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_sparklines():
    assert sparkline([1.0, 2.0, None, 8.0]) == "▂▃ █"
    assert sparkline([0.0, None]) == "▁ "
