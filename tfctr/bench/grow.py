"""`bench grow`: inserting keys that were never seen: stalls, and memory per key."""

from typing import Any

import numpy as np

from tfctr.bench import report, systems
from tfctr.bench.rounds import Measurement, Turns
from tfctr.bench.session import SECONDS, Session, common_facts
from tfctr.bench.summary import median
from tfctr.bench.workers.options import Options
from tfctr.bench.workload import Workload

KEYS = 20_000_000
BATCH_SIZE = 100_000
# TFRA is several times slower, and a tenth of the keys shows how it grows.
TFRA_KEYS = 2_000_000
ROUNDS = 10
KEY_BYTES = 8


def run(
    keys: int = KEYS,
    tfra_keys: int = TFRA_KEYS,
    batch_size: int = BATCH_SIZE,
    seconds: float = SECONDS,
    wait_seconds: float = 20.0,
) -> dict[str, Any]:
    """Inserts new keys, Adagrad rows of 16 columns, and watches time and memory.

    Args:
        keys: Integer. Keys to insert into a tfctr table, beside some for warming up.
        tfra_keys: Integer. Keys to insert into TFRA's tables.
        batch_size: Integer. Keys of one timed step.
        seconds: Float. When to be done.
        wait_seconds: Float. The longest wait for a quiet machine.

    Returns:
        A dict for JSON: `rows`, one per system, with the median and the slowest batch
        in milliseconds, their ratio, keys a second, and the memory at rest over the
        payload; the `batches_ms` of each; `machine`, `versions` and `absent`.
    """
    workload = Workload(num_fields=1, batch_size=batch_size)
    turn_steps = {
        "tfctr": _steps_of_turn(keys, batch_size),
        "tfra": _steps_of_turn(tfra_keys, batch_size),
    }
    # Every batch is timed, and none between them is left out: a stall may hide there.
    turns = Turns(rounds=ROUNDS, untimed=0, fewer_steps=turn_steps)
    options = {
        name: Options({"W": workload}, ("adagrad",), steps=steps * ROUNDS)
        for name, steps in turn_steps.items()
    }
    session = Session(seconds, wait_seconds)
    measured = session.measure(
        [
            (systems.tfctr("grow_tfctr"), options["tfctr"]),
            (systems.tfra_growing(), options["tfra"]),
        ],
        turns,
    )
    batches = {system: times for (system, _), times in measured.samples.items()}
    payload = payload_bytes_per_key(workload.dim)
    return {
        **common_facts("grow", options["tfctr"], turns),
        "payload_bytes_per_key": payload,
        "rows": [
            row_of(system, times, batch_size, payload, measured)
            for system, times in batches.items()
        ],
        "batches_ms": {s: np.round(t, 3).tolist() for s, t in batches.items()},
        **session.record(),
    }


def table(result: dict[str, Any]) -> str:
    """The result as text."""
    lines = report.columns(
        [
            "system",
            "keys",
            "keys/s",
            "median ms",
            "slowest ms",
            "slowest/median",
            "bytes/key",
            "memory/payload",
        ],
        [
            [
                row["system"],
                f"{row['keys']:,}",
                f"{row['keys_per_second']:,.0f}",
                f"{row['ms']:.2f}",
                f"{row['slowest_ms']:.2f}",
                f"{row['slowest_over_median']:.2f}",
                f"{row['bytes_per_key']:.1f}",
                f"{row['memory_over_payload']:.3f}",
            ]
            for row in result["rows"]
        ],
    )
    payload = result["payload_bytes_per_key"]
    note = f"Payload of a key: {payload} bytes (key, weights and one slot)."
    return report.page(result, [*lines, note])


def payload_bytes_per_key(dim: int) -> int:
    """A key, its weights and one Adagrad slot of the same width, in float32."""
    return KEY_BYTES + 2 * 4 * dim


def row_of(
    system: str,
    times: list[float],
    batch_size: int,
    payload: int,
    measured: Measurement,
) -> dict[str, Any]:
    """One line of the result."""
    facts = measured.facts[system]
    bytes_per_key = facts["bytes_at_rest"] / facts["keys"]
    return {
        "system": system,
        "optimizer": "adagrad",
        "keys": facts["keys"],
        "ms": median(times),
        "slowest_ms": max(times),
        "slowest_batch": int(np.argmax(times)),
        "slowest_over_median": max(times) / median(times),
        "keys_per_second": batch_size * len(times) / (sum(times) / 1e3),
        "bytes_per_key": bytes_per_key,
        "memory_over_payload": bytes_per_key / payload,
        "peak_over_payload": facts["bytes_at_peak"] / facts["keys"] / payload,
    }


def _steps_of_turn(keys: int, batch_size: int) -> int:
    return max(keys // (batch_size * ROUNDS), 1)
