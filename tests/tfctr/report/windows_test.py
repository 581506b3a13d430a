"""Windows of a progressive run, on the page and in its plots."""

import math

import numpy as np
import pytest

from tfctr.report import History, page, panels
from tfctr.report.events import EventFile, EventReader
from tfctr.report.numbers import moment

NUM = 700
AUCS = [None if i == 3 else 0.5 + i / 2000 for i in range(NUM)]


def make_events():
    events = [{"kind": "begin", "time": 0.0, "step": 0, "window": 0, "ranks": 1}]
    for i in range(NUM):
        tables = {"ads": {"known_rows": 10 * i, "refused_keys": i, "expired_rows": 3}}
        rest = {"step": i + 1, "epoch": i, "steps": 1, "seconds": 2.0, "examples": 8}
        rest |= {"time": 1.0 * i, "tables": tables}
        events.append({"kind": "steps", "metrics": {"loss": 0.7}, **rest})
        metrics = {"auc": AUCS[i], "trend_auc": 0.5, "log_loss": 0.25, "loss": 0.7}
        rest |= {"start": 3600.0 * i}
        events.append({"kind": "window", "metrics": metrics, **rest})
    return events


@pytest.fixture(scope="module")
def history():
    history = History()
    history.add(make_events())
    return history


def test_windows_are_read_with_their_beginning_and_not_without(tmp_path):
    [_, _, window, *_] = make_events()
    file = EventFile(tmp_path)
    file.append({name: window[name] for name in window if name != "start"})
    file.append(window)
    assert EventReader(tmp_path).read() == [window]


def test_the_page_has_the_last_windows(history, monkeypatch):
    monkeypatch.setattr(page, "panels", lambda history: [])
    text = page.render(history, "run")
    assert "<h2>The last 100 of 700 windows</h2>" in text
    assert text.count('<th scope="row">1970-01') == 100
    assert f'<th scope="row">{moment(3600 * 699)}</th>' in text
    assert '<td data-column="refused" data-value="699">699</td>' in text
    assert '<td data-column="rows" data-value="6990">6.99k</td>' in text


def test_plots_of_many_windows_are_means_of_what_is_known(history, monkeypatch):
    drawn = {}

    def draw(name, steps, lines, *arguments, **options):
        drawn[name] = steps, lines
        return ""

    monkeypatch.setattr(panels, "draw", draw)
    titles = [panel.title for panel in panels.panels(history)]
    assert titles[:2] == ["AUC of the windows", "Log loss of the windows"]
    steps, lines = drawn["window AUC"]
    assert list(lines) == ["auc", "trend"]
    assert steps == [*range(3, NUM, 3), NUM]
    aucs = np.array([math.nan if auc is None else auc for auc in AUCS])
    parts = np.split(aucs, range(3, NUM, 3))
    np.testing.assert_allclose(lines["auc"], [np.nanmean(part) for part in parts])


def test_moments():
    assert moment(0) == "1970-01-01 00:00"
    assert moment(1_506_826_799.9) == "2017-10-01 02:59"
