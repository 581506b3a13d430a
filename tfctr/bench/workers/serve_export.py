"""Answers requests from a SavedModel, as a server with TensorFlow alone.

`Options.storage` has the path of the `export`; `adds_offsets`, whether the ids of all
fields share one table without gaps; and `next`, the path of another version to change
to and back `swaps` times, 0 for none.
"""

import gc
import time
from typing import Any

import numpy as np
import tensorflow as tf

from tfctr.bench.workers.loop import Cases, Step
from tfctr.bench.workers.memory import private_bytes
from tfctr.bench.workers.options import Options
from tfctr.bench.workers.tensorflow_setup import id_tensors, limit_threads
from tfctr.bench.workload import Workload

WARM_UP = 20


def open_cases(options: Options) -> Cases:
    limit_threads(options.threads)
    storage = options.storage
    before = private_bytes()
    start = time.perf_counter()
    loaded = tf.saved_model.load(storage["export"])
    facts: dict[str, Any] = {"load_seconds": time.perf_counter() - start}
    serve = loaded.signatures["serving_default"]
    steps = {
        case.name: request_step(serve, case.workload, storage["adds_offsets"])
        for case in options.cases()
    }

    def tell() -> dict[str, Any]:
        facts["loaded_bytes"] = private_bytes() - before
        if storage["swaps"]:
            requests = id_tensors(next(iter(options.workloads.values())))
            paths = [storage["export"], storage["next"]]
            facts["versions"] = change_versions(paths, requests, storage["swaps"])
        return facts

    return Cases(steps, {"tensorflow": tf.__version__}, WARM_UP, tell)


def request_step(serve: Any, workload: Workload, adds_offsets: bool) -> Step:
    """A step is a request; none of its ids are those of the one before."""
    offsets = workload.offsets() * adds_offsets
    requests = [ids + offsets for ids in id_tensors(workload)]

    def step(i: int) -> object:
        (answer,) = serve(ids=requests[i % len(requests)]).values()
        return answer.numpy()

    return step


def change_versions(
    paths: list[str], requests: list[tf.Tensor], swaps: int
) -> dict[str, float]:
    """Loads one version after the other, and asks both while both are loaded.

    Returns:
        `steady_bytes` with one version loaded, the most `bytes_while_changing`, from
        the new one being loaded to the old one being dropped; `bytes_after`; and
        `failed_requests`, of which a prediction is not finite.
    """
    gc.enable()
    loaded = tf.saved_model.load(paths[0])
    failed, most = 0, 0
    for request in requests:
        loaded.signatures["serving_default"](ids=request)
    steady = private_bytes()
    for swap in range(swaps):
        new = tf.saved_model.load(paths[(swap + 1) % 2])
        for version in (loaded, new):
            for request in requests:
                answer = version.signatures["serving_default"](ids=request)["click"]
                failed += not np.isfinite(answer).all()
        most = max(most, private_bytes())
        loaded = new
        del new, version
        gc.collect()
    return {
        "steady_bytes": steady,
        "bytes_while_changing": most,
        "bytes_after": private_bytes(),
        "failed_requests": failed,
        "swaps": swaps,
    }
