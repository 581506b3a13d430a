"""The command line: finds the command, and says in a line what a user got wrong."""

import argparse
import os
import re
import sys
from collections.abc import Sequence

from tfctr.commands import (
    apply_delta,
    bench,
    check_export,
    data,
    export,
    export_delta,
    import_tfra,
    inspect,
    run,
    study,
    top,
    topology,
    train,
)

_COMMANDS = (
    train,
    top,
    inspect,
    export,
    check_export,
    export_delta,
    apply_delta,
    data,
    import_tfra,
    study,
    topology,
    run,
    bench,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code.

    Args:
        arguments: Strings. `None` means those of the process.
    """
    options = _parser().parse_args(arguments)
    # TensorFlow logs errors at every start, about CUDA plug-ins that are registered
    # twice; what goes wrong later reaches us as exceptions.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        code = int(options.run(options))
        print(end="", flush=True)  # At the exit nobody would catch its error.
        return code
    except BrokenPipeError:
        # Who read has seen enough, as in `tfctr inspect runs | head`: that is no error.
        return 141  # As shells have it of a program that SIGPIPE ends.
    except KeyboardInterrupt:
        print("\ntfctr: interrupted.", file=sys.stderr)
        return 130  # As shells have it.
    except Exception as error:
        if not _is_mistake(error):
            raise
        print(f"tfctr: {_reason(error)}", file=sys.stderr)
        return 2
    finally:
        _drop_unwritten()


def _drop_unwritten() -> None:
    """Gives up what standard output does not take: it would fail again at the exit."""
    try:
        print(end="", flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tfctr",
        description="Trains click-through-rate models and measures the speed of tfctr.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in _COMMANDS:
        command.add_parser(commands)
    return parser


def _is_mistake(error: Exception) -> bool:
    """Whether it is what wrong arguments end in. All else is an error of ours."""
    import tensorflow as tf

    if isinstance(error, ImportError):
        # One that tells what to install has that of Python as its cause.
        return isinstance(error.__cause__, ImportError)
    mistakes = (ValueError, OSError, MemoryError, OverflowError, tf.errors.OpError)
    return isinstance(error, mistakes)


def _reason(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return f"The memory of this machine does not suffice. {error}".rstrip()
    # TensorFlow puts a heading before a message, and the op behind it or its place in
    # the graph, and of an error in a reader that it called the whole traceback.
    text = str(getattr(error, "message", error))
    text = text.removeprefix("Graph execution error:").partition("\n\t [[")[0]
    text = text.partition(" [Op:")[0]
    text = text.partition("\nTraceback (most recent call last):")[0]
    text = re.sub(r"^\s*\{\{.*?\}\}\s*(\w+Error: )?", "", text).strip()
    return " ".join([text, *getattr(error, "__notes__", ())])
