"""Inserts new keys into a tfctr table by training on them: lookup and update."""

from typing import Any

import keras
import tensorflow as tf

from tfctr.bench.workers import memory
from tfctr.bench.workers.loop import Cases
from tfctr.bench.workers.new_keys import new_keys
from tfctr.bench.workers.options import Options
from tfctr.bench.workers.tensorflow_setup import limit_threads
from tfctr.bench.workers.tfctr_layer import make_layer, make_train

WARM_UP = 3


def open_cases(options: Options) -> Cases:
    limit_threads(options.threads)
    (case,) = options.cases()
    batch_size, dim = case.workload.batch_size, case.workload.dim
    layer = make_layer("grow", dim, case.optimizer)
    train = make_train(layer)
    keys = new_keys((options.steps + WARM_UP) * batch_size).reshape(-1, batch_size, 1)
    gradient = tf.random.normal((batch_size, 1, dim), stddev=0.01)
    # Traced, but not run: what TensorFlow needs for the graph is no row's memory.
    train.get_concrete_function(tf.constant(keys[0]), gradient)
    before = memory.resident_bytes()
    done = []

    def step(i: int) -> None:
        train(tf.constant(keys[i]), gradient)
        done.append(i)

    def forecast(num_keys: int) -> int:
        return layer.forecast(num_keys)["grow"].ram_bytes

    def facts() -> dict[str, Any]:
        num_keys = len(done) * batch_size
        return {
            "keys": num_keys,
            "bytes_at_rest": memory.resident_bytes() - before,
            "bytes_at_peak": memory.peak_resident_bytes() - before,
            "table_bytes": layer.stats()["grow"]["memory_bytes"],
            "forecast_bytes": forecast(num_keys),
            "forecast_bytes_at_100m": forecast(100_000_000),
        }

    return Cases(
        steps={case.name: step},
        versions={"tensorflow": tf.__version__, "keras": keras.__version__},
        warm_up=WARM_UP,
        facts=facts,
    )
