"""What several commands ask for, and how they write their results."""

import argparse
import json
import pathlib
from typing import TypeAlias

# argparse has no public name for it.
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", help="TOML file; see examples/")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        dest="overrides",
        help="override an entry of the file; may be repeated",
    )


def words(text: str) -> list[str]:
    return text.split(",")


def integers(text: str) -> list[int]:
    try:
        return [int(word) for word in words(text)]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected integers with commas between them, such as 128,8192, not {text}"
        ) from None


def check_json(path: str | None) -> None:
    """Finds out before the work, not after it."""
    if path is not None:
        check_file("--json", path)


def check_file(option: str, path: str) -> None:
    """Finds out before the work, not after it, whether a file may be there."""
    file = pathlib.Path(path).absolute()
    if file.is_dir() or not file.parent.is_dir():
        raise ValueError(
            f"{option} must name a file in a directory that exists. "
            f"Received: {option} {path}."
        )


def write_json(path: str | None, result: object) -> None:
    if path is not None:
        write("--json", path, json.dumps(result, indent=2) + "\n")


def write(option: str, path: str, text: str) -> None:
    try:
        pathlib.Path(path).write_text(text)
    except OSError as error:
        raise OSError(
            f"{option} must name a file that can be written. Received: "
            f"{option} {path} ({error.strerror})."
        ) from error
