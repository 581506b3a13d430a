"""Prints requirements of pyproject.toml, one a line, in the form that pip reads.

`requirements.py EXTRA...` prints what the package and those extras need, and
`requirements.py --group GROUP` one dependency group alone.
"""

import sys
import tomllib
from pathlib import Path


def main(arguments: list[str]) -> None:
    path = Path(__file__).resolve().parent.parent / "pyproject.toml"
    settings = tomllib.loads(path.read_text())
    if arguments[:1] == ["--group"]:
        requirements = settings["dependency-groups"][arguments[1]]
    else:
        requirements = [
            *settings["build-system"]["requires"],
            *settings["project"]["dependencies"],
        ]
        for extra in arguments:
            requirements += settings["project"]["optional-dependencies"][extra]
    print("\n".join(requirements))


if __name__ == "__main__":
    main(sys.argv[1:])
