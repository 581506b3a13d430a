"""The results of a study: rows of a CSV file that a later call goes on with."""

import csv
import io
import json
import os
import pathlib
from collections.abc import Iterable
from typing import Any

from tfctr.config import TrainConfig
from tfctr.study.grid import Cell

COLUMNS = (
    "network",
    "batch_size",
    "rule",
    "auc",
    "log_loss",
    "minutes",
    "clipped_share",
)


def open_results(path: pathlib.Path, config: TrainConfig) -> list[dict[str, Any]]:
    """Returns the rows of an earlier run of the same study, if there was one.

    The config stands beside the CSV file: rows of two configs are not to be compared.

    Raises:
        ValueError: If the file is of another config.
    """
    # Where things are does not change results.
    own: dict[str, Any] = config.to_dict()
    del own["data"]["path"], own["run"]["directory"], own["model"]["name"]
    own = json.loads(json.dumps(own))  # With lists for tuples, as it is read.
    beside = path.with_suffix(".json")
    if not path.exists():
        write_text(beside, json.dumps(own, indent=2) + "\n")
        return []
    earlier = json.loads(beside.read_text()) if beside.exists() else {}
    for section, entries in own.items():
        for key, value in entries.items():
            before = earlier.get(section, {}).get(key)
            if before != value:
                raise ValueError(
                    f"The study in '{path}' must go on with its own config, which "
                    f"stands in '{beside}': {section}.{key}={before!r}. Received: "
                    f"{section}.{key}={value!r}. Name another --output, or remove "
                    "both files."
                )
    with path.open(newline="") as file:
        return [
            {
                "network": row["network"],
                "batch_size": int(row["batch_size"]),
                "rule": row["rule"],
                **{name: float(row[name]) for name in COLUMNS[3:]},
            }
            for row in csv.DictReader(file)
        ]


def cell_of(row: dict[str, Any]) -> Cell:
    """Returns which run a row tells of."""
    return Cell(row["network"], row["batch_size"], row["rule"])


def to_csv(rows: Iterable[dict[str, Any]]) -> str:
    """Returns the rows as the text of the file."""
    file = io.StringIO()
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        texts = {name: f"{row[name]:.6g}" for name in COLUMNS[3:]}
        writer.writerow({**row, **texts})
    return file.getvalue()


def write_text(path: pathlib.Path, text: str) -> None:
    """Writes a file beside `path` first, so that an interruption leaves the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"partial.{path.name}")
    partial.write_text(text)
    os.replace(partial, path)
