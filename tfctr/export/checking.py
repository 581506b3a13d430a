"""`check`: whether an export predicts as the model did, where there is no tfctr."""

import json
import os
import pathlib
import subprocess
import sys
import zipfile
from typing import Any

import numpy as np

from keras_layers.number_checks import is_integer
from keras_layers.storage.byte_size import format_bytes
from tfctr.export.draft import read_manifest
from tfctr.export.rest import model_url, rest_client
from tfctr.export.saved_model import CHECKED_ROWS
from tfctr.export.serving_process import compare
from tfctr_ops import library

_PROGRAM = pathlib.Path(__file__).with_name("serving_process.py")
# Of float32 rows; sums of a graph differ by their order.
TOLERANCE = 1e-6


def check(
    directory: str | os.PathLike[str],
    data: str | os.PathLike[str] | None = None,
    threads: int = 8,
    server: str | None = None,
) -> dict[str, Any]:
    """Compares the predictions of an export with those of the model it was made from.

    All files are compared with their checksums first. Then a new process, which knows
    TensorFlow and nothing of tfctr, loads the export, predicts the whole batch and each
    row of it from several threads at once; of an export with `tables="store"`, it links
    the library of our ops besides. With `server`, a running TensorFlow Serving is asked
    instead, by REST.

    Args:
        directory: Path that `saved_model` has written.
        data: Path of an `.npz` file with the inputs of a batch, each under
            `inputs/NAME`, and what the model predicted for it, under `outputs/NAME`.
            `None` takes what `saved_model(..., examples=...)` has kept.
        threads: Integer. How many ask at the same time.
        server: URL of a TensorFlow Serving, such as `"http://localhost:8501"`, which
            is asked for the export as it names versions: `export/ads/1` is version 1 of
            model `ads`. Or the URL of a model there: `"http://HOST/v1/models/ads"`.

    Returns:
        A dict for JSON: `directory`, `server`, `model`, `quantize`, `bytes`, `tables`
        (rows of each), `coverage` (of an export with `max_bytes`), `rows` and
        `requests` that were asked for, `threads`, `max_difference` of the batch and
        `max_difference_of_threads`, both relative where a prediction is beyond 1,
        `tolerance` (`None` where not all is kept: quantized rows, or `max_bytes`),
        `latency_ms` with `p50` and `p99` of the `batch` and of a `row`, under load,
        `load_seconds` (`None` of a server) and `is_equal`.

    Raises:
        ValueError: If the export is damaged, does not take the data, or there is none;
            if the server has no such model, or refuses the requests.
        OSError: If the server cannot be reached.

    Example:

    >>> import tempfile
    >>> model = keras.Sequential([keras.Input((2,), name="x"), keras.layers.Dense(1)])
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = saved_model(model, f"{directory}/1", examples=np.ones((3, 2)))
    ...     check(path)["is_equal"]
    True
    """
    # The process has another working directory.
    path = pathlib.Path(directory).absolute()
    manifest = read_manifest(path)
    rows = path / CHECKED_ROWS if data is None else pathlib.Path(data).absolute()
    if data is None and not rows.is_file():
        raise ValueError(
            f"'{path}' has no rows to compare. Received: data=None. Export with "
            "saved_model(..., examples=batch), or name a file of rows."
        )
    _check_rows(rows, manifest)
    if not is_integer(threads) or threads < 1:
        raise ValueError(
            f"`threads` must be a positive integer. Received: threads={threads!r}."
        )
    linked = [] if manifest.get("store") is None else [str(library.path())]
    served = (
        _serve(path, rows, threads, *linked)
        if server is None
        else _ask_server(path, manifest, rows, threads, server)
    )
    exact = manifest["quantize"] is None and not manifest["coverage"]
    worst = max(served["max_difference"], served["max_difference_of_threads"])
    return {
        "directory": str(path),
        "server": server,
        "model": manifest["model"],
        "quantize": manifest["quantize"],
        "bytes": sum(file["bytes"] for file in manifest["files"].values()),
        "tables": manifest["tables"],
        "coverage": manifest["coverage"],
        **served,
        "tolerance": TOLERANCE if exact else None,
        "is_equal": not exact or worst <= TOLERANCE,
    }


def report(result: dict[str, Any]) -> str:
    """The result as text."""
    quantize, tolerance = result["quantize"], result["tolerance"]
    row, batch = (result["latency_ms"][name] for name in ("row", "batch"))
    lines = {
        "model": f"{_name(result)}, {format_bytes(result['bytes'])}, "
        f"{sum(result['tables'].values()):,} rows in {quantize or 'float32'}, "
        + (
            f"loaded in {result['load_seconds']:.2f} s"
            if result["server"] is None
            else f"of {result['server']}"
        ),
        "difference": f"at most {result['max_difference']:.1e} in a batch of "
        f"{result['rows']}, {result['max_difference_of_threads']:.1e} in "
        f"{result['requests']} requests of {result['threads']} threads"
        + (f" (allowed: {tolerance:.0e})" if tolerance else ""),
        "one row": f"p50 {row['p50']:.2f} ms, p99 {row['p99']:.2f} ms, of "
        f"{result['threads']} threads at once",
        "batch": f"p50 {batch['p50']:.2f} ms, p99 {batch['p99']:.2f} ms, alone",
        "result": "equal" if result["is_equal"] else "NOT EQUAL",
    }
    if result["coverage"]:
        shares = result["coverage"].items()
        lines["coverage"] = ", ".join(f"{name} {share:.2%}" for name, share in shares)
    if result["tolerance"] is None:
        lines["result"] = "not all is kept: judge the difference"
    return "\n".join(f"  {name:<12}{text}" for name, text in lines.items())


def _name(result: dict[str, Any]) -> str:
    """As servers know it, from `MODEL/VERSION`; and as Keras does, if that differs."""
    path, model = pathlib.Path(result["directory"]), str(result["model"])
    if not path.name.isdigit() or path.parent.name == model:
        return model
    return f"{path.parent.name} ({model})"


def _check_rows(rows: pathlib.Path, manifest: dict[str, Any]) -> None:
    expected = sorted(
        [f"inputs/{name}" for name in manifest["inputs"]]
        + [f"outputs/{name}" for name in manifest["outputs"]]
    )
    found: dict[str, Any] = {}
    if zipfile.is_zipfile(rows):
        with np.load(rows) as file:
            found = dict(file)
    if sorted(found) != expected:
        raise ValueError(
            f"A file of rows for model '{manifest['model']}' holds the arrays "
            f"{expected}. Received: '{rows}' with {sorted(found)}. Write it by "
            "numpy.savez."
        )
    num_rows = {len(found[name]) for name in expected if name.startswith("outputs/")}
    if len(num_rows) > 1 or 0 in num_rows:
        raise ValueError(
            f"A file of rows has the same number of each output, and at least one. "
            f"Received: '{rows}' with {sorted(num_rows)}."
        )


def _ask_server(
    path: pathlib.Path,
    manifest: dict[str, Any],
    rows: pathlib.Path,
    threads: int,
    server: str,
) -> dict[str, Any]:
    url = model_url(server, path)
    ask = rest_client(url, manifest["outputs"])
    return {"load_seconds": None, **compare(ask, str(rows), threads)}


def _serve(
    path: pathlib.Path, rows: pathlib.Path, threads: int, *linked: str
) -> dict[str, Any]:
    # -P: nothing lies beside the program that could be imported; and no path to ours.
    env = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    arguments = [str(path), str(rows), str(threads), *linked]
    command = [sys.executable, "-P", str(_PROGRAM), *arguments]
    done = subprocess.run(
        command,
        cwd=path.parent,
        env={**env, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise ValueError(
            f"The export '{path}' must answer the rows of '{rows}'. Received: {last[0]}"
        )
    served: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if foreign := served.pop("foreign_modules"):
        raise ValueError(
            "An export is checked where there is TensorFlow alone. Received: a process "
            f"that has imported {foreign}. Take them out of what Python imports at its "
            "start, such as a sitecustomize."
        )
    return served
