"""The page of a run, opened in a browser: its numbers are those of the events."""

import html.parser
import re
import shutil
import subprocess

import pytest

from tfctr.report import EventReader, History, write_page
from tfctr.report.page import render

PARTS = ("input", "lookup", "dense", "update")


class Page(html.parser.HTMLParser):
    """The elements of a page: the title, its headings, numbers and addresses."""

    def __init__(self, text):
        super().__init__()
        self.texts = {}
        self.cards, self.rows, self.parts, self.addresses = {}, [], {}, []
        self.num_plots = 0
        self._open, self._value = [], None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self._value = attributes.get("data-value", self._value)
        self.num_plots += tag == "svg"
        for name, value in attributes.items():
            if name in ("src", "href") and not value.startswith(("#", "data:")):
                self.addresses.append(value)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append([attributes.get("data-value"), ""])
        if tag == "span" and "data-part" in attributes:
            self.parts[attributes["data-part"]] = float(attributes["data-value"])
        if tag not in ("meta", "link", "path", "use"):
            self._open.append(tag)

    def handle_endtag(self, tag):
        if tag in self._open:
            while self._open.pop() != tag:
                pass

    def handle_data(self, text):
        if not self._open:
            return
        tag = self._open[-1]
        self.texts.setdefault(tag, []).append(text)
        if tag in ("td", "th"):
            self.rows[-1][-1][1] += text
        if self._open[-2:] == ["div", "span"]:
            self.cards.setdefault(text, self._value)


def total(lines, table, name):
    return sum(line["tables"][table][name] for line in lines)


@pytest.fixture
def browse(tmp_path):
    """Opens a page, and returns its elements as the browser has them."""
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip(
            "there is no chromium: tools/install_chromium.sh installs it in containers"
        )

    def open_page(path):
        process = subprocess.run(
            [
                browser,
                *("--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"),
                *("--enable-logging=stderr", "--disable-dev-shm-usage"),
                f"--user-data-dir={tmp_path}/browser",
                path.as_uri(),
            ],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert process.returncode == 0, process.stderr
        # What the policy of the page refuses, such as a request, is said here too.
        assert "CONSOLE" not in process.stderr, process.stderr
        return Page(process.stdout)

    return open_page


def write(directory):
    history = History()
    history.add(EventReader(directory).read())
    return write_page(history, directory)


def test_the_numbers_are_those_of_the_events(run, browse):
    directory, events = run
    page = browse(write(directory))
    lines = [event for event in events if event["kind"] == "steps"]
    epochs = [event for event in events if event["kind"] == "epoch"]

    assert page.texts["title"] == page.texts["h1"] == [f"Training {directory}"]
    assert page.texts["h2"] == [
        "Where the time goes",
        "Epochs",
        "Over the steps",
        "Tables",
    ]
    assert page.addresses == []
    assert page.num_plots == len(page.texts["figcaption"]) >= 10

    warm = lines[1:]
    seconds = sum(line["seconds"] for line in warm)
    assert float(page.cards["steps"]) == 600
    assert float(page.cards["examples"]) == sum(line["examples"] for line in lines)
    speed = sum(line["examples"] for line in warm) / seconds
    assert float(page.cards["examples per second"]) == pytest.approx(speed)
    assert float(page.cards["val_auc"]) == epochs[-1]["metrics"]["val_auc"]
    assert page.parts == {
        part: pytest.approx(sum(line[f"{part}_seconds"] for line in warm) / seconds)
        for part in PARTS
    }

    heads = [text for _, text in page.rows[0]]
    assert heads[:5] == ["epoch", "steps", "examples", "time", "examples/s"]
    for index, epoch in enumerate(epochs):
        cells = dict(zip(heads, page.rows[1 + index], strict=True))
        assert cells["epoch"][1] == str(epoch["epoch"] + 1)
        assert float(cells["examples"][0]) == epoch["examples"]
        assert float(cells["loss"][0]) == epoch["metrics"]["loss"]

    heads = [text for _, text in page.rows[3]]
    names = [row[0][1] for row in page.rows[4:]]
    tables = list(lines[-1]["tables"])
    assert names == [tables[0], "", tables[1], "", "all tables", ""]
    for row, name in enumerate(tables):
        ram, ssd = (
            dict(zip(heads, page.rows[4 + 2 * row + tier], strict=True))
            for tier in range(2)
        )
        last = lines[-1]["tables"][name]
        found, promoted, inserted = (
            total(lines, name, f"{what}_rows")
            for what in ("found", "promoted", "inserted")
        )
        expected = {
            "rows": last["rows"],
            "bytes": last["memory_bytes"],
            "hit rate": found / (found + promoted + inserted),
            "evictions": total(lines, name, "evicted_rows"),
            "admitted": inserted,
            "refused": total(lines, name, "refused_keys"),
            "updated": total(lines, name, "updated_rows"),
        }
        assert ram["tier"][1] == "ram"
        assert {key: float(ram[key][0]) for key in expected} == pytest.approx(expected)
        expected = {
            "rows": last["rows_on_disk_only"],
            "bytes": last["disk_bytes"],
            "hit rate": promoted / (promoted + inserted),
            "reads": total(lines, name, "rows_read"),
            "writes": total(lines, name, "rows_written"),
            "stalls": total(lines, name, "stalled_lookups"),
            "stalled": total(lines, name, "stalled_nanoseconds") * 1e-9,
        }
        assert ssd["tier"][1] == "ssd"
        assert {key: float(ssd[key][0]) for key in expected} == pytest.approx(expected)


def test_pages_with_tens_of_tables_open_as_well(tmp_path, browse, make_run):
    directory, events = make_run(tmp_path / "many", num_tables=40)
    page = browse(write(directory))
    names = {row[0][1] for row in page.rows}
    assert set(events[1]["tables"]) <= names


def test_a_run_without_steps_has_a_page(tmp_path):
    page = Page(render(History(), "a < b"))
    assert page.texts["title"] == ["Training a < b"]
    assert "No step has been told of yet." in page.texts["p"]


def test_equal_events_make_equal_pages_whose_plots_share_no_names(run):
    text = write(run[0]).read_text()
    names = re.findall(r' id="([^"]+)"', text)
    clips = [name for name in names if re.fullmatch(r"p[0-9a-f]{10}", name)]
    assert len(clips) == len(set(clips)) > 0
    assert write(run[0]).read_text() == text
