"""The results of a study: rows of a CSV file that a later call goes on with."""

import csv
import io
import json
import os
import pathlib
from collections.abc import Iterable
from typing import Any

from tfctr.config import TrainConfig
from tfctr.study.grid import Cell, scale_config

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
        ValueError: If the file is of another config, or not as it was written.
    """
    beside = path.with_suffix(".json")
    if not path.exists():
        write_text(beside, json.dumps(_own(config), indent=2) + "\n")
        return []
    own, earlier = _entries(_own(config)), _entries(_own(_read_config(beside)))
    for name, value in own.items():
        before = earlier[name]
        if before != value:
            raise ValueError(
                f"The study in '{path}' must go on with its own config, which stands "
                f"in '{beside}': {name}={before!r}. Received: {name}={value!r}. Name "
                "another --output, or remove both files."
            )
    with path.open(newline="") as file:
        lines = csv.DictReader(file)
        return [
            _read_row(line, f"'{path}', line {lines.line_num}", config)
            for line in lines
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


def _own(config: TrainConfig) -> dict[str, Any]:
    """Returns the sections of a config, without what may differ in one study."""
    own = config.to_dict()
    # Where things are does not change results.
    del own["data"]["path"], own["run"]["directory"], own["model"]["name"]
    return own


def _entries(sections: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for section, entries in sections.items():
        if isinstance(entries, dict):
            found |= {f"{section}.{key}": value for key, value in entries.items()}
        else:  # A list of sections: [[features]].
            found[section] = entries
    return found


def _read_config(path: pathlib.Path) -> TrainConfig:
    """Returns the config in a file; what the file does not name has its default."""
    try:
        return TrainConfig.from_dict(json.loads(path.read_text()))
    except (FileNotFoundError, ValueError) as error:
        raise ValueError(
            f"'{path}' must hold the config of the rows beside it. Received: {error}. "
            "Name another --output, or remove both files."
        ) from error


def _read_row(line: dict[str, Any], where: str, config: TrainConfig) -> dict[str, Any]:
    try:
        row: dict[str, Any] = {
            "network": line["network"],
            "batch_size": int(line["batch_size"]),
            "rule": line["rule"],
            **{name: float(line[name]) for name in COLUMNS[3:]},
        }
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{where} must be as a study wrote it: {','.join(COLUMNS)}. Received: "
            f"{','.join(map(str, line.values()))}. Mend the line, or remove it, and "
            "its run is done again."
        ) from error
    try:
        scale_config(config, cell_of(row))
    except ValueError as error:
        raise ValueError(
            f"{where} must tell of a run of this study. Received: "
            f"{','.join(map(str, line.values()))}. {error} Mend the line, or remove it."
        ) from error
    return row
