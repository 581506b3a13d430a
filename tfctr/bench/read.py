"""`bench read`: rows a second from files into batches."""

import functools
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from tfctr.bench import machine, report
from tfctr.bench.session import own_versions
from tfctr.bench.summary import median, ratio, ratio_interval
from tfctr.data import ClickLog, Criteo, ParquetLog, TFRecordLog, synthesize
from tfctr.data.criteo import CATEGORIES, CRITEO_FEATURES, NUMBERS
from tfctr.data.synthesis import SyntheticStream

# Rows that are drawn, and how many names their files get: drawing takes longer than
# reading. Writing `tf.train.Example`s takes longer still, so that there are fewer.
DRAWN_ROWS = 262_144
COPIES = {"parquet": 8, "criteo_tsv": 8, "tfrecord": 1}
DRAWN_SHARE = {"parquet": 1.0, "criteo_tsv": 1.0, "tfrecord": 0.25}
MAX_IDS = 1_000_000
BATCH_SIZE = 4096
ROUNDS = 5
_WRITTEN = {"parquet": "parquet", "criteo_tsv": "tsv", "tfrecord": "tfrecord"}

Reader = Callable[[], int]


def run(
    drawn_rows: int = DRAWN_ROWS,
    rounds: int = ROUNDS,
    wait_seconds: float = machine.WAIT_SECONDS,
) -> dict[str, Any]:
    """Reads a drawn log of Criteo's shape in three formats, by turns.

    The files are in the page cache. tfctr delivers shuffled batches of 4,096 examples,
    with the features of `Criteo`; its log is opened before. pyarrow alone makes Arrow
    tables of the same columns, and leaves categories of TSV as texts. tf.data reads
    records in order, and parses batches of them.

    Args:
        drawn_rows: Integer. Rows of a file.
        rounds: Integer. Timed passes of each system over each format.
        wait_seconds: Float. The longest wait for a quiet machine.

    Returns:
        A dict for JSON: `rows`, the median `rows_per_second` of each `system` and
        `format`, the `ratios` of ours to each other, their bootstrap `intervals`,
        `machine` and `versions`.
    """
    with tempfile.TemporaryDirectory(prefix="tfctr-bench-") as made:
        directory = pathlib.Path(made)
        for name in _WRITTEN:
            _write(directory / name, name, drawn_rows)
        readers = dict(_readers(directory))
        for read in readers.values():  # Caches fill, and functions are traced.
            read()
        wait = machine.wait_for_quiet(wait_seconds)
        meter = machine.LoadMeter()
        speeds: dict[tuple[str, str], list[float]] = {key: [] for key in readers}
        for _ in range(rounds):
            for key, read in readers.items():
                start = time.perf_counter()
                num_rows = read()
                speeds[key].append(num_rows / (time.perf_counter() - start))
        during = meter.share()
    pairs = {
        f"tfctr_{name}/{system}_{other}": (speeds["tfctr", name], speeds[system, other])
        for name in ("parquet", "criteo_tsv", "tfrecord")
        for system, other in speeds
        if system != "tfctr" and (name == other or system == "tf.data")
    }
    return {
        "command": "read",
        "drawn_rows": drawn_rows,
        "copies": COPIES,
        "batch_size": BATCH_SIZE,
        "rounds": rounds,
        "rows": [
            {"system": system, "format": name, "rows_per_second": median(some)}
            for (system, name), some in speeds.items()
        ],
        "ratios": {name: ratio(*pair) for name, pair in pairs.items()},
        "intervals": {name: ratio_interval(*pair) for name, pair in pairs.items()},
        "machine": {
            **machine.describe(),
            "other_cpu_share_before": wait.share,
            "other_cpu_share_during": during,
            "quiet_at_start": wait.is_quiet,
            "waited_seconds": wait.seconds,
        },
        "versions": own_versions(),
        "absent": [],
    }


def table(result: dict[str, Any]) -> str:
    """The result as text."""
    lines = report.columns(
        ["system", "format", "rows/s"],
        [
            [row["system"], row["format"], f"{row['rows_per_second']:,.0f}"]
            for row in result["rows"]
        ],
    )
    ratios = report.ratio_lines(result["ratios"], result["intervals"])
    return report.page(result, lines, ratios)


def _write(directory: pathlib.Path, name: str, drawn_rows: int) -> None:
    num_rows = max(int(drawn_rows * DRAWN_SHARE[name]), 1)
    synthesize(SyntheticStream(num_rows, max_ids=MAX_IDS), directory, _WRITTEN[name])
    (path,) = directory.iterdir()
    for copy in range(1, COPIES[name]):
        os.link(path, directory / f"copy-{copy}{path.suffix}")


def _readers(directory: pathlib.Path) -> Iterator[tuple[tuple[str, str], Reader]]:
    logs: dict[str, ClickLog] = {
        "parquet": ParquetLog(directory / "parquet", CRITEO_FEATURES, test=0),
        "criteo_tsv": Criteo(directory / "criteo_tsv", test=0),
        "tfrecord": TFRecordLog(directory / "tfrecord", CRITEO_FEATURES, test=0),
    }
    for name, log in logs.items():
        yield ("tfctr", name), functools.partial(_shuffled, log)
    yield ("pyarrow", "parquet"), lambda: _arrow_parquet(directory / "parquet")
    yield ("pyarrow", "criteo_tsv"), lambda: _arrow_csv(directory / "criteo_tsv")
    yield ("tf.data", "tfrecord"), lambda: _tf_records(directory / "tfrecord")


def _shuffled(log: ClickLog) -> int:
    return _count(log.batches("train", BATCH_SIZE, seed=1))


def _count(batches: Any) -> int:
    return sum(len(labels) for _, labels in batches)


def _arrow_parquet(directory: pathlib.Path) -> int:
    from pyarrow import parquet

    num_rows = 0
    for path in sorted(directory.iterdir()):
        with parquet.ParquetFile(path) as file:
            for number in range(file.num_row_groups):
                num_rows += file.read_row_group(number).num_rows
    return num_rows


def _arrow_csv(directory: pathlib.Path) -> int:
    import pyarrow as pa
    from pyarrow import csv

    types = {
        "label": pa.int8(),
        **dict.fromkeys(NUMBERS, pa.int32()),
        **dict.fromkeys(CATEGORIES, pa.string()),
    }
    num_rows = 0
    for path in sorted(directory.iterdir()):
        batches = csv.open_csv(
            path,
            csv.ReadOptions(column_names=list(types), block_size=8 << 20),
            csv.ParseOptions(delimiter="\t", quote_char=False),
            csv.ConvertOptions(column_types=types),
        )
        num_rows += sum(batch.num_rows for batch in batches)
    return num_rows


def _tf_records(directory: pathlib.Path) -> int:
    import tensorflow as tf

    spec = {
        name: tf.io.FixedLenFeature([], tf.int64, default_value=-1)
        for name in ("label", *NUMBERS, *CATEGORIES)
    }

    def parse(records: Any) -> Any:
        parsed = tf.io.parse_example(records, spec)
        numbers = tf.stack([parsed[name] for name in NUMBERS], axis=1)
        ids = tf.stack([parsed[name] for name in CATEGORIES], axis=1)
        return {"numbers": numbers, "categories": ids}, parsed["label"]

    files = [str(path) for path in sorted(directory.iterdir())]
    batches = tf.data.TFRecordDataset(files).batch(BATCH_SIZE)
    batches = batches.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    return _count(batches.prefetch(tf.data.AUTOTUNE))
