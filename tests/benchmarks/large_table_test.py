"""The large table, small: its NumPy model, its arguments, and a run."""

import importlib.util
import json
import pathlib
import shutil
from collections import namedtuple

import numpy as np
import pytest

PATH = pathlib.Path(__file__).resolve().parents[2] / "benchmarks" / "large_table.py"
SPEC = importlib.util.spec_from_file_location("large_table", PATH)
large_table = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(large_table)

SMALL = ["--gigabytes", "0.002", "--ram", "100KB", "--dim", "4"]
SMALL += ["--batch-size", "1000", "--report", "10", "--sample", "500"]


def test_ids_are_all_different():
    ids = large_table.ids_of(np.arange(100_000))
    assert np.unique(ids).size == ids.size
    assert (ids < 0).mean() == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("dim", [1, 4, 18])
def test_gradients_differ_and_have_sums_that_are_exact(dim):
    gradient = large_table.gradient_of(large_table.ids_of(np.arange(1000)), dim)
    assert gradient.shape == (1000, dim)
    assert gradient.dtype == np.float32
    np.testing.assert_array_equal(gradient * 512, np.round(gradient * 512))
    assert np.abs(gradient).max() < 0.5
    assert gradient.std() == pytest.approx(0.29, abs=0.03)
    # The columns differ as well.
    assert len(np.unique(gradient[:, 0])) > 200
    assert dim == 1 or not np.allclose(gradient[:, 0], gradient[:, -1])


def test_batches_bring_new_numbers_and_old_ones_again():
    batches = large_table.Batches(batch_size=1000, fresh=400, seed=0)
    for step in range(5):
        numbers = batches.next()
        assert len(numbers) == 1000
        np.testing.assert_array_equal(
            numbers[:400], np.arange(step * 400, step * 400 + 400)
        )
        assert numbers.min() >= 0
        assert numbers.max() < batches.seen == (step + 1) * 400
    # Half of the old ones are among the first √2000.
    assert (numbers[400:] < 45).mean() == pytest.approx(0.5, abs=0.1)


def test_sample_is_trained_like_each_row_alone():
    sample = large_table.Sample(np.array([2, 5, 9]), dim=3)
    batches = [np.array([5, 1, 5, 9]), np.array([9, 9, 9]), np.array([7, 100])]
    for batch in batches:
        sample.train(batch)
    assert sample.updates.tolist() == [0, 1, 2]
    f = np.float32
    for place, counts in enumerate([[], [2], [1, 3]]):
        for column in range(3):
            step = large_table.gradient_of(sample.ids, 3)[place, column]
            weight, accumulator = f(0), f(0.1)
            for count in counts:
                accumulator += f(count) * step * (f(count) * step)
                weight -= f(0.01) * (f(count) * step) / np.sqrt(accumulator + f(1e-7))
            assert sample.weights[place, column] == weight


def test_run_checks_rows_memory_and_writes_json(tmp_path, capsys):
    file = tmp_path / "result.json"
    arguments = [*SMALL, "--ssd", str(tmp_path / "ssd"), "--json", str(file)]
    # A table as small as this takes more than its bound: the system's pages.
    assert large_table.main(arguments) in (0, 1)
    result = json.loads(file.read_text())
    assert result["rows"] == result["rows_expected"] == 500 * result["steps"]
    assert result["table_bytes"] == pytest.approx(2e6, rel=0.02)
    assert result["rows_checked"] > 1000
    assert (result["rows_wrong"], result["ids_wrong"]) == (0, [])
    assert result["most_updates_checked"] == result["steps"]
    last = result["reports"][-1]
    assert (last["step"], last["rows"]) == (result["steps"], result["rows"])
    assert last["rows_read"] > 0 and last["disk_bytes"] > 1e6
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split() == large_table.HEADER.split()
    assert len(printed) == 1 + len(result["reports"]) + 1
    assert printed[-1].endswith("0 wrong.")


def test_a_wrong_row_is_found(tmp_path, monkeypatch):
    train = large_table.Sample.train

    def train_otherwise(self, batch):
        train(self, batch)
        self.weights[-1, 0] = np.nextafter(self.weights[-1, 0], np.float32(1))

    monkeypatch.setattr(large_table.Sample, "train", train_otherwise)
    options = large_table.parse([*SMALL, "--ssd", str(tmp_path)])
    result = large_table.run(options)
    numbers = large_table.sampled_numbers(result["rows"], options)
    assert result["rows_wrong"] == 1
    assert result["ids_wrong"] == large_table.ids_of(numbers[-1:]).tolist()
    assert not large_table.is_right(result)


@pytest.mark.parametrize(
    ("change", "right"),
    [({}, True), ({"rows": 9}, False), ({"memory_over_bound": 1.1}, False)],
)
def test_right_is_every_row_within_the_bound(change, right):
    result = {
        "rows": 10,
        "rows_expected": 10,
        "rows_wrong": 0,
        "memory_over_bound": 1.0,
    }
    assert large_table.is_right({**result, **change}) == right


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gigabytes", "0"], "--gigabytes must be above 0. Received: --gigabytes 0."),
        (["--batch-size", "-1"], "--batch-size must be above 0. Received: --batch-si"),
        (["--fresh", "1.5"], "--fresh must lie in (0, 1]. Received: --fresh 1.5."),
        (["--json", "none/x.json"], "that exists. Received: --json none/x.json."),
        (["--ram", "much"], "Received: ram='much'"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message, tmp_path, capsys):
    assert large_table.main([*SMALL, "--ssd", str(tmp_path), *arguments]) == 2
    streams = capsys.readouterr()
    assert streams.err.startswith("large_table: ")
    assert message in streams.err


def test_a_disk_without_room_is_refused(tmp_path, monkeypatch, capsys):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, int(22e9)))
    arguments = ["--gigabytes", "20", "--ssd", str(tmp_path)]
    assert large_table.main(arguments) == 2
    assert capsys.readouterr().err == (
        "large_table: A table of 20.0 GB needs 44.0 GB of disk. Received: --ssd "
        f"{tmp_path} with 22.0 GB free. Name another disk, or at most --gigabytes "
        "10.0.\n"
    )
