"""The file of events: whole lines, whatever became of their writer."""

import json
import math
import re

import pytest

from tfctr.report import EventFile, EventReader

BEGIN = {"kind": "begin", "step": 0, "time": 1.5}
EPOCH = {
    "kind": "epoch",
    "step": 3,
    "time": 2.5,
    "epoch": 0,
    "steps": 3,
    "seconds": 1.0,
    "examples": None,
    "metrics": {"loss": 0.5, "auc": None},
    "tables": {"vectors/ads": {"rows": 7}},
}


def test_what_is_appended_is_read(tmp_path):
    file = EventFile(tmp_path / "deep" / "run")
    reader = EventReader(tmp_path / "deep" / "run")
    assert reader.read() == []
    file.append(BEGIN)
    assert reader.read() == [BEGIN]
    file.append(EPOCH)
    assert reader.read() == [EPOCH]
    assert reader.read() == []
    assert EventReader(tmp_path / "deep" / "run").read() == [BEGIN, EPOCH]


def test_every_beginning_of_a_line_waits_for_its_end(tmp_path):
    path = tmp_path / "events.jsonl"
    text = "".join(json.dumps(event) + "\n" for event in (BEGIN, EPOCH))
    for length in range(len(text) + 1):
        path.write_text(text[:length])
        reader = EventReader(tmp_path)
        known = [BEGIN, EPOCH][: text[:length].count("\n")]
        assert reader.read() == known
        path.write_text(text)
        assert known + reader.read() == [BEGIN, EPOCH]


def test_a_new_process_leaves_a_line_that_a_killed_one_began(tmp_path):
    EventFile(tmp_path).append(BEGIN)
    path = tmp_path / "events.jsonl"
    for cut in (b'{"kind": "epoch", "st', b'"\xff', b"17\n[]\nnull\n{}"):
        with path.open("ab") as file:
            file.write(cut)
        EventFile(tmp_path).append(EPOCH)
    assert EventReader(tmp_path).read() == [BEGIN, EPOCH, EPOCH, EPOCH]


def test_a_file_that_begins_anew_is_read_from_its_beginning(tmp_path):
    file, reader = EventFile(tmp_path), EventReader(tmp_path)
    for event in (BEGIN, EPOCH):
        file.append(event)
    assert reader.read() == [BEGIN, EPOCH]
    file.path.unlink()
    file.append(BEGIN)
    assert reader.read() == [BEGIN]


@pytest.mark.parametrize(
    "foreign",
    [
        "7",
        "[" * 100_000,
        json.dumps({"kind": "steps", "msg": "x"}),
        json.dumps({"kind": "epoch", "epoch": 1}),
        json.dumps({**EPOCH, "kind": "other"}),
        *(
            json.dumps({**EPOCH, **changed})
            for changed in (
                {"step": None},
                {"time": "now"},
                {"seconds": math.nan},
                {"examples": math.inf},
                {"metrics": None},
                {"metrics": {"loss": "small"}},
                {"tables": [1]},
                {"tables": {"vectors": 7}},
                {"tables": {"vectors": {"rows": "many"}}},
            )
        ),
    ],
)
def test_what_no_report_has_written_is_passed_over(tmp_path, foreign):
    file = EventFile(tmp_path)
    file.append(BEGIN)
    with file.path.open("a") as text:
        text.write(foreign + "\n")
    file.append(EPOCH)
    assert EventReader(tmp_path).read() == [BEGIN, EPOCH]


@pytest.mark.parametrize("is_directory", [True, False])
def test_a_run_without_events_is_told_how_to_get_them(tmp_path, is_directory):
    directory = tmp_path if is_directory else tmp_path / "none"
    which = "has none" if is_directory else "is no directory"
    message = (
        f"Received: '{directory}', which {which}. Train with it: python -m tfctr train "
        "CONFIG --set run.report=true"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        EventReader(directory)


def test_a_directory_must_be_writable(tmp_path):
    (tmp_path / "file").write_text("")
    message = f"Received: directory='{tmp_path}/file' (File exists)."
    with pytest.raises(ValueError, match=re.escape(message)):
        EventFile(tmp_path / "file")
