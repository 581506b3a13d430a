"""Runs one worker module: `python -P launch.py MODULE OPTIONS [--alone]`.

`--alone` hides tfctr's own `__init__`: `tfctr.bench` is imported as if `tfctr` were an
empty package. So a peer's interpreter needs no tfctr, and a peer in our interpreter
is not slowed down, or patched, by ours.
"""

import importlib
import json
import pathlib
import sys
import types


def hide_tfctr() -> None:
    """Puts an empty package in the place of `tfctr`, with the same folder."""
    package = types.ModuleType("tfctr")
    package.__path__ = [str(pathlib.Path(__file__).resolve().parents[2])]
    sys.modules["tfctr"] = package


def main(arguments: list[str]) -> None:
    if "--alone" in arguments:
        hide_tfctr()
    from tfctr.bench.workers import loop, options

    # Frameworks print while they are imported; the answers need a clean channel.
    channel = loop.Channel.take_stdout()
    try:
        module = importlib.import_module(f"tfctr.bench.workers.{arguments[0]}")
        asked = options.Options.from_json(json.loads(arguments[1]))
        cases = module.open_cases(asked)
    except Exception as error:
        channel.send({"error": f"{type(error).__name__}: {error}"})
        raise
    loop.serve(cases, channel)


if __name__ == "__main__":
    main(sys.argv[1:])
