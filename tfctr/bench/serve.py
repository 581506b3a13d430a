"""`bench serve`: requests to an export, beside a plain Keras `Embedding` model's.

Both are SavedModels, each loaded by a process that knows TensorFlow alone: ours of
`tfctr.export.saved_model`, with ids that are looked up by their whole keys, the other
of `model.export`, with rows numbered without gaps. The network is the same.
"""

import dataclasses
import pathlib
from typing import Any

from tfctr.bench import report, systems
from tfctr.bench.disk import scratch
from tfctr.bench.rounds import Measurement, Turns
from tfctr.bench.session import Request, Session, common_facts
from tfctr.bench.summary import median, percentile, ratio, ratio_interval
from tfctr.bench.worker import Worker
from tfctr.bench.workers.options import Options
from tfctr.bench.workload import Workload

BATCH_SIZES = (1, 512)
SYSTEMS = ("tfctr", "keras")
# Requests enough that none comes twice soon.
SMALL = Workload(rows_per_field=20_000, num_batches=200)
LARGE = Workload(rows_per_field=385_000, num_batches=200)  # 10 million rows.
TURNS = Turns(rounds=8, steps=60, untimed=5)
SWAPS = 10
SECONDS = 900.0
# Of that, of one table: more, and something hangs.
_MAKING_SECONDS = 600.0
_KIND, _SIGNATURE = "request", "serving_default"
# Exports of both models, of the later one, its delta and the next version.
_COPIES = 6


def run(
    tables: dict[str, Workload] | None = None,
    turns: Turns = TURNS,
    directory: str | None = None,
    seconds: float = SECONDS,
    wait_seconds: float = 20.0,
) -> dict[str, Any]:
    """Measures the latency of requests, what exports take, and loading them.

    Args:
        tables: Workloads by name, of which the first gets its next version by a delta.
            `None` means `small`, of half a million rows, and `large`, of ten million.
        turns: How often and how long each is measured; a step is a request.
        directory: Where to keep the exports. `None` means the current directory.
        seconds: Float. When to be done.
        wait_seconds: Float. The longest wait for a quiet machine, of each table.

    Returns:
        A dict for JSON: `rows` with `p50_ms` and `p99_ms` of each system, table and
        batch size; `ratios` of our median to the other's, their bootstrap `intervals`;
        `facts` of each table: seconds and bytes of exports, of loading them, of the
        delta, and the memory of a process that changes versions ten times; `machine`
        and `versions`.

    Raises:
        ValueError: If the disk has too little room.
    """
    tables = {"small": SMALL, "large": LARGE} if tables is None else tables
    session = Session(seconds, wait_seconds)
    rows: list[dict[str, Any]] = []
    facts: dict[str, Any] = {}
    pairs: dict[str, tuple[list[float], list[float]]] = {}
    for name, workload in tables.items():
        num_bytes = _COPIES * workload.num_rows * (4 * workload.dim + 21)
        is_first = not facts
        with scratch(directory, num_bytes) as place:
            made = _make(workload, place, is_first)
            requests = _requests(workload, place, SWAPS if is_first else 0)
            measured = session.measure(requests, turns)
        facts[name] = {"exports": made, "servers": measured.facts}
        rows += _rows(name, measured)
        for size in BATCH_SIZES:
            ours, plain = (measured.samples.get((s, _case(size))) for s in SYSTEMS)
            if ours and plain:
                pairs[f"{name}/batch_{size}"] = (ours, plain)
    return {
        **common_facts("serve", requests[0][1], turns),
        "workloads": {n: dataclasses.asdict(each) for n, each in tables.items()},
        "rows": rows,
        "ratios": {name: ratio(*pair) for name, pair in pairs.items()},
        "intervals": {name: ratio_interval(*pair) for name, pair in pairs.items()},
        "facts": facts,
        **session.record(),
    }


def table(result: dict[str, Any]) -> str:
    """The result as text."""
    lines = report.columns(
        ["table", "batch", "system", "p50 ms", "p99 ms", "requests"],
        [
            [
                row["table"],
                str(row["batch_size"]),
                row["system"],
                f"{row['p50_ms']:.3f}",
                f"{row['p99_ms']:.3f}",
                str(row["requests"]),
            ]
            for row in result["rows"]
        ],
    )
    exports = report.columns(
        ["table", "system", "GB", "exported s", "loaded s", "GB in memory"],
        [
            [
                name,
                system,
                f"{facts['exports'][system]['bytes'] / 1e9:.3f}",
                f"{facts['exports'][system]['export_seconds']:.1f}",
                f"{served['load_seconds']:.2f}",
                f"{served['loaded_bytes'] / 1e9:.3f}",
            ]
            for name, facts in result["facts"].items()
            for system, served in facts["servers"].items()
        ],
    )
    ratios = report.ratio_lines(result["ratios"], result["intervals"])
    return report.page(result, lines, ratios, exports, _delta_lines(result["facts"]))


def _delta_lines(facts: dict[str, Any]) -> list[str]:
    lines = []
    for name, each in facts.items():
        if "delta" in each["exports"]:
            delta = each["exports"]["delta"]
            lines.append(
                f"{name}: a delta of {delta['rows']:,} rows is "
                f"{delta['bytes'] / 1e6:.1f} MB, made in {delta['delta_seconds']:.1f} "
                f"s and applied in {delta['apply_seconds']:.1f} s"
            )
            versions = each["servers"]["tfctr"]["versions"]
            steady = versions["steady_bytes"]
            lines.append(
                f"{name}: {versions['swaps']} versions one after the other: at most "
                f"{versions['bytes_while_changing'] / steady:.2f} times the "
                f"{steady / 1e6:.0f} MB of one, with both loaded; "
                f"{versions['bytes_after'] / steady:.2f} times at the end"
            )
    return lines


def _make(workload: Workload, place: pathlib.Path, has_delta: bool) -> dict[str, Any]:
    """Makes the exports in a process of their own; what they took."""
    storage = {"directory": str(place), "delta": has_delta}
    options = Options({"rows": workload}, (), (), storage=storage)
    worker = Worker(systems.tfctr("make_exports"), options)
    try:
        worker.start(_MAKING_SECONDS)
        return worker.facts(_MAKING_SECONDS)
    finally:
        worker.close()


def _requests(workload: Workload, place: pathlib.Path, swaps: int) -> list[Request]:
    workloads = {
        str(size): dataclasses.replace(workload, batch_size=size)
        for size in BATCH_SIZES
    }
    requests = []
    for name in SYSTEMS:
        storage = {
            "export": str(place / name),
            "next": str(place / "next"),
            "adds_offsets": name == "keras",
            "swaps": swaps if name == "tfctr" else 0,
        }
        options = Options(workloads, (_SIGNATURE,), (_KIND,), storage=storage)
        requests.append((systems.saved_model(name), options))
    return requests


def _case(batch_size: int) -> str:
    return f"{_KIND}/{batch_size}/{_SIGNATURE}"


def _rows(name: str, measured: Measurement) -> list[dict[str, Any]]:
    return [
        {
            "table": name,
            "batch_size": size,
            "system": system,
            "p50_ms": median(times),
            "p99_ms": percentile(times, 99),
            "requests": len(times),
        }
        for size in BATCH_SIZES
        for system in SYSTEMS
        if (times := measured.samples.get((system, _case(size))))
    ]
