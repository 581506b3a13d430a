"""`check`: equal exports pass, others and damaged ones do not."""

import contextlib
import io
import json
import re
import threading

import keras
import numpy as np
import pytest

from tfctr import cli
from tfctr.export import check, checking, saved_model, serving_process
from tfctr.export.checking import report
from tfctr.export.saved_model import CHECKED_ROWS


@pytest.fixture(scope="module")
def export(tmp_path_factory):
    """A small export, with rows to compare."""
    inputs = keras.Input((2,), name="x")
    model = keras.Model(inputs, keras.layers.Dense(1, name="y")(inputs), name="small")
    path = tmp_path_factory.mktemp("small") / "1"
    return saved_model(model, path, examples=np.random.default_rng(0).random((5, 2)))


def test_an_export_is_equal_to_its_model(clicks, batch, tmp_path, capsys, monkeypatch):
    folder = tmp_path / "ads"
    path = saved_model(clicks, folder / "1", examples=batch(20, largest=100))
    file = folder / "result.json"
    # Paths may be relative, though the process has a directory of its own.
    monkeypatch.chdir(folder)
    paths = ["1", "--data", f"1/{CHECKED_ROWS}", "--json", "result.json"]
    assert cli.main(["check-export", *paths]) == 0
    result = json.loads(file.read_text())
    assert result["is_equal"]
    assert max(result["max_difference"], result["max_difference_of_threads"]) < 1e-6
    assert (result["rows"], result["threads"], result["requests"]) == (20, 8, 800)
    assert result["tables"] == {"embedding/ads": 250, "embedding/films": 103}
    written = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    assert 0 < written - result["bytes"] < 4000  # Of the manifest itself.
    printed = capsys.readouterr().out
    assert "ads (clicks), " in printed and "353 rows in float32" in printed
    assert printed.endswith("equal\n") and "NOT" not in printed


@pytest.fixture
def answers(monkeypatch):
    """Answers requests in this process, which is faster; returns what was told."""

    def serve(path, rows, threads):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            serving_process.main(str(path), str(rows), threads)
        told = json.loads(printed.getvalue())
        return {name: told[name] for name in told if name != "foreign_modules"}

    monkeypatch.setattr(checking, "_serve", serve)


def test_another_prediction_is_not_equal(export, answers, tmp_path, capsys):
    with np.load(export / CHECKED_ROWS) as file:
        arrays = dict(file)
    arrays["outputs/y"][3] += 1e-4
    np.savez(tmp_path / "rows.npz", **arrays)
    rows = str(tmp_path / "rows.npz")
    assert cli.main(["check-export", str(export), "--data", rows]) == 1
    assert capsys.readouterr().out.endswith("NOT EQUAL\n")
    result = check(export, rows, threads=2)
    assert not result["is_equal"]
    assert 0.9e-4 < result["max_difference"] < 1.1e-4
    assert 0.9e-4 < result["max_difference_of_threads"] < 1.1e-4


def test_quantized_rows_are_left_to_be_judged(clicks, batch, answers, tmp_path):
    inputs = batch(20, largest=100)
    path = saved_model(clicks, tmp_path / "1", quantize="int8", examples=inputs)
    result = check(path)
    assert result["is_equal"] and result["tolerance"] is None
    assert 1e-6 < result["max_difference"] < 0.02
    assert "rows in int8" in report(result)
    for directory, name in (("clicks/1", "clicks"), ("ads/latest", "clicks")):
        assert f"  model       {name}, " in report({**result, "directory": directory})
    assert report(result).endswith("judge the difference")


def refused(message, *arguments, **options):
    with pytest.raises(ValueError, match=re.escape(message)):
        check(*arguments, **options)


def test_what_cannot_be_checked_is_refused(export, tmp_path):
    refused(f"Received: '{tmp_path}', without 'assets.extra/tfctr.json'.", tmp_path)
    refused("positive integer. Received: threads=0.", export, threads=0)
    rows = tmp_path / "rows.npz"
    np.savez(rows, x=np.ones(3))
    message = "'small' holds the arrays ['inputs/x', 'outputs/y']. Received: "
    refused(f"{message}'{rows}' with ['x']. Write it by", export, rows)
    rows.write_text("no archive")
    refused(f"{message}'{rows}' with []. Write it by", export, rows)
    np.savez(rows, **{"inputs/x": np.ones((0, 2)), "outputs/y": np.ones((0, 1))})
    refused(f"at least one. Received: '{rows}' with [0].", export, rows)


@pytest.mark.parametrize(
    "found, expected, far",
    [
        ([np.nan], [0.5], np.inf),
        ([0.5], [np.nan], np.inf),
        ([np.nan, np.inf], [np.nan, np.inf], 0.0),
        ([np.inf], [-np.inf], np.inf),
        ([110.0, 0.5], [100.0, 0.75], 0.25),
        ([], [], 0.0),
    ],
)
def test_nan_is_no_prediction(found, expected, far):
    arrays = [{"y": np.array(values, np.float32)} for values in (found, expected)]
    assert serving_process._difference(*arrays) == far


def test_an_answer_of_another_shape_is_refused():
    message = "Output 'y' must have the shape (3,). Received: (3, 1)."
    with pytest.raises(ValueError, match=re.escape(message)):
        serving_process._difference({"y": np.ones((3, 1))}, {"y": np.ones(3)})


def test_an_export_without_rows_is_refused(tmp_path):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    path = saved_model(model, tmp_path / "1")
    refused(f"'{path}' has no rows to compare. Received: data=None.", path)


def test_a_damaged_export_is_refused(export, tmp_path):
    file = export / "variables" / "variables.index"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    try:
        refused(f"'{file}' is damaged: expected {len(whole)} bytes.", export)
    finally:
        file.write_bytes(whole)


@pytest.mark.parametrize(
    "program, message",
    [
        ("raise TypeError('no such shape')", "Received: TypeError: no such shape"),
        ("raise SystemExit(3)", "Received: no message"),
        (
            'print(\'{"foreign_modules": ["horovod"]}\')',
            "Received: a process that has imported ['horovod']. Take them out",
        ),
    ],
)
def test_a_process_that_fails_is_told(export, tmp_path, monkeypatch, program, message):
    path = tmp_path / "program.py"
    path.write_text(program)
    monkeypatch.setattr(checking, "_PROGRAM", path)
    refused(message, export)


def test_a_process_tells_what_it_has_imported(export, capsys):
    serving_process.main(str(export), str(export / CHECKED_ROWS), 1)
    told = json.loads(capsys.readouterr().out)
    assert {"keras_layers", "tfctr", "tfctr_ops"} <= set(told["foreign_modules"])


def test_an_error_in_a_thread_is_that_of_the_process(export, monkeypatch):
    def fail(ask, request):
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("of a thread")
        return timed(ask, request)

    timed = serving_process._timed
    monkeypatch.setattr(serving_process, "_timed", fail)
    with pytest.raises(RuntimeError, match="of a thread"):
        serving_process.main(str(export), str(export / CHECKED_ROWS), 2)
