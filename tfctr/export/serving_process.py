"""Answers requests from an export; run as a program that knows TensorFlow alone.

    serving_process.py EXPORT REQUESTS THREADS [LIBRARY]

REQUESTS is an `.npz` file of `inputs/NAME` and `outputs/NAME`; what came of it is
printed as one line of JSON. LIBRARY has ops that the server links.
"""

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

FOREIGN = (
    "horovod",
    "keras_layers",
    "tensorflow_recommenders_addons",
    "tfctr",
    "tfctr_ops",
)
SPLITS = "_row_splits"
# How often the whole batch is asked for, to time it; and single rows by each thread.
BATCH_CALLS = 20
ROW_CALLS = 100

Arrays = dict[str, Any]


Ask = Callable[[Arrays], Arrays]


def main(
    export: str, requests: str, num_threads: int, library: str | None = None
) -> None:
    """Prints the differences, and the times in milliseconds."""
    if library is not None:
        tf.load_op_library(library)
    start = time.perf_counter()
    loaded = tf.saved_model.load(export)
    load_seconds = time.perf_counter() - start
    serve = loaded.signatures["serving_default"]

    def ask(request: Arrays) -> Arrays:
        tensors = {name: tf.constant(array) for name, array in request.items()}
        return {name: output.numpy() for name, output in serve(**tensors).items()}

    result = {
        "load_seconds": load_seconds,
        **compare(ask, requests, num_threads),
        "foreign_modules": sorted(set(FOREIGN) & set(sys.modules)),
    }
    print(json.dumps(result))


def compare(ask: Ask, requests: str, num_threads: int) -> dict[str, Any]:
    """Asks for a batch, and for each row of it from several threads.

    Args:
        ask: Function that answers a request.
        requests: Path of the requests.
        num_threads: Integer. How many ask at the same time.

    Returns:
        What `tfctr.export.check` says of it.
    """
    with np.load(requests) as file:
        inputs = _part(file, "inputs/")
        expected = _part(file, "outputs/")
    num_rows = len(next(iter(expected.values())))
    found, _ = _timed(ask, inputs)
    rows = [_row(inputs, row) for row in range(num_rows)]
    answers = _ask_together(ask, rows, num_threads)
    batch_times = [_timed(ask, inputs)[1] for _ in range(BATCH_CALLS)]
    return {
        "rows": num_rows,
        "max_difference": _difference(found, expected),
        "threads": num_threads,
        "requests": len(answers),
        "max_difference_of_threads": max(
            _difference(answer, {n: v[row : row + 1] for n, v in expected.items()})
            for row, answer, _ in answers
        ),
        "latency_ms": {
            "batch": _percentiles(batch_times),
            "row": _percentiles([taken for _, _, taken in answers]),
        },
    }


def _part(file: Any, prefix: str) -> Arrays:
    return {n[len(prefix) :]: file[n] for n in file.files if n.startswith(prefix)}


def _timed(ask: Ask, request: Arrays) -> tuple[Arrays, float]:
    """Returns the answer, and the seconds it took."""
    start = time.perf_counter()
    answer = ask(request)
    return answer, time.perf_counter() - start


def _row(inputs: Arrays, row: int) -> Arrays:
    """Returns the request for one row of a batch."""
    request = {}
    for name, array in inputs.items():
        splits = inputs.get(name + SPLITS)
        if splits is not None:
            request[name] = array[splits[row] : splits[row + 1]]
        elif name.endswith(SPLITS) and name.removesuffix(SPLITS) in inputs:
            request[name] = array[row : row + 2] - array[row]
        else:
            request[name] = array[row : row + 1]
    return request


def _ask_together(
    ask: Ask, rows: list[Arrays], num_threads: int
) -> list[tuple[int, Arrays, float]]:
    """Asks for single rows from several threads: row, answer and seconds of each."""
    answers: list[tuple[int, Arrays, float]] = []
    errors: list[Exception] = []
    ready = threading.Barrier(num_threads)
    ask(rows[0])  # The first call of a shape is slower.

    def client(number: int) -> None:
        try:
            ready.wait()
            for call in range(ROW_CALLS):
                row = (number * ROW_CALLS + call) % len(rows)
                answers.append((row, *_timed(ask, rows[row])))
        except Exception as error:  # For the main thread.
            errors.append(error)

    threads = [threading.Thread(target=client, args=[n]) for n in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return answers


def _difference(found: Arrays, expected: Arrays) -> float:
    """Returns the largest one, relative where numbers are beyond 1.

    NaN is equal to NaN alone, and infinity to itself; from others they are infinitely
    far.
    """
    largest = 0.0
    for name, wanted in expected.items():
        answer = found[name]
        if answer.shape != wanted.shape:
            raise ValueError(
                f"Output '{name}' must have the shape {wanted.shape}. Received: "
                f"{answer.shape}."
            )
        differs = ~((answer == wanted) | (np.isnan(answer) & np.isnan(wanted)))
        answer, wanted = answer[differs].astype(np.float64), wanted[differs]
        with np.errstate(invalid="ignore"):
            far = np.abs(answer - wanted) / np.maximum(np.abs(wanted), 1)
        far = np.where(np.isfinite(far), far, np.inf)
        largest = max(largest, float(far.max(initial=0)))
    return largest


def _percentiles(seconds: list[float]) -> dict[str, float]:
    p50, p99 = np.percentile(seconds, [50, 99]) * 1000
    return {"p50": float(p50), "p99": float(p99)}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
