"""Makes what `bench serve` serves: exports of ours, and a plain Keras model's.

In the directory of `Options.storage["directory"]`: `tfctr` and `keras`, of the same
sizes; and `next`, the former with a hundredth of its rows changed by a delta.
"""

import pathlib
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_layers import DynamicEmbedding, TableConfig
from tfctr.bench.workers.loop import Cases
from tfctr.bench.workers.options import Options
from tfctr.bench.workers.tensorflow_setup import limit_threads
from tfctr.bench.workload import Workload
from tfctr.export import apply_delta, delta, saved_model

HIDDEN_UNITS = (128, 128)
CHANGED_SHARE = 0.01


def open_cases(options: Options) -> Cases:
    limit_threads(options.threads)
    (workload,) = options.workloads.values()
    directory = pathlib.Path(options.storage["directory"])
    start = time.perf_counter()
    keras_model(workload).export(str(directory / "keras"), verbose=False)
    keras.backend.clear_session()
    facts: dict[str, Any] = {
        "keras": {
            "export_seconds": time.perf_counter() - start,
            "bytes": size(directory / "keras"),
        }
    }
    model, layer = tfctr_model(workload)
    start = time.perf_counter()
    path = saved_model(model, directory / "tfctr")
    facts["tfctr"] = {
        "export_seconds": time.perf_counter() - start,
        "bytes": size(path),
    }
    if options.storage["delta"]:
        facts["delta"] = change(model, layer, workload, path)
    versions = {"tensorflow": tf.__version__, "keras": keras.__version__}
    return Cases({}, versions, facts=lambda: facts)


def change(
    model: keras.Model,
    layer: DynamicEmbedding,
    workload: Workload,
    path: pathlib.Path,
) -> dict[str, float]:
    """Changes some rows; the next version comes of a delta."""
    changed = int(workload.rows_per_field * CHANGED_SHARE)
    write_rows(layer, workload, np.arange(changed))
    later = saved_model(model, path.with_name("later"))
    start = time.perf_counter()
    difference = delta(path, later, path.with_name("delta"))
    middle = time.perf_counter()
    apply_delta(path, difference, path.with_name("next"))
    return {
        "rows": changed * workload.num_fields,
        "bytes": size(difference),
        "delta_seconds": middle - start,
        "apply_seconds": time.perf_counter() - middle,
    }


def keras_model(workload: Workload) -> keras.Model:
    ids = keras.Input((workload.num_fields,), dtype="int64", name="ids")
    vectors = keras.layers.Embedding(workload.num_rows, workload.dim)(ids)
    return keras.Model(ids, network(vectors), name="plain")


def tfctr_model(workload: Workload) -> tuple[keras.Model, DynamicEmbedding]:
    ids = keras.Input((workload.num_fields,), dtype="int64", name="ids")
    table = TableConfig("ads", workload.dim, keras.optimizers.SGD())
    layer = DynamicEmbedding(table, name="embedding")
    model = keras.Model(ids, network(layer(ids)), name="dynamic")
    write_rows(layer, workload, np.arange(workload.rows_per_field))
    return model, layer


def write_rows(layer: DynamicEmbedding, workload: Workload, ids: Any) -> None:
    rng = np.random.default_rng(0)
    for field in range(workload.num_fields):
        rows = rng.standard_normal((len(ids), workload.dim), np.float32)
        layer.write_rows(ids, rows, feature=field)


def network(vectors: Any) -> Any:
    hidden = keras.layers.Flatten()(vectors)
    for units in HIDDEN_UNITS:
        hidden = keras.layers.Dense(units, "relu")(hidden)
    return keras.layers.Dense(1, "sigmoid", name="click")(hidden)


def size(directory: pathlib.Path) -> int:
    """Bytes of all files."""
    return sum(f.stat().st_size for f in directory.rglob("*") if f.is_file())
