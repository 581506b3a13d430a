"""The reference of docs/ has every public name; `make docs` checks all links."""

import importlib
import pathlib
import re

import pytest

import keras_layers
import tfctr
from tfctr import cli

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs" / "reference").glob("*.md"))
# Lines of the pages that are replaced by a docstring.
NAMED = [
    name
    for page in PAGES
    for name in re.findall(r"^::: (\S+)$", page.read_text(), re.M)
]
WITHOUT_PAGE = {"__version__", "bench"}  # A command, and no library.
PACKAGES = [
    "keras_layers",
    "keras_layers.storage.tfra",
    "tfctr_ops",
    *(f"tfctr.{name}" for name in tfctr.__all__ if name not in WITHOUT_PAGE),
]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_in_the_reference(package):
    module = importlib.import_module(package)
    public = set(getattr(module, "__all__", ()))
    if package == "keras_layers.storage.tfra":
        public -= set(keras_layers.__all__)
    named = {name.rpartition(".")[2] for name in NAMED if is_of(name, package)}
    assert named, f"docs/reference/ has no page with names of {package}."
    # A module without `__all__` says by its page what is public.
    assert not public or named == public, (
        "A page of docs/reference/ must have a line `::: package.name` for each name "
        f"in the `__all__` of {package}, and no other."
    )


def is_of(name, package):
    return name.rpartition(".")[0] == package


def test_every_name_in_the_reference_exists_and_stands_there_once():
    assert len(NAMED) == len(set(NAMED))
    for name in NAMED:
        package, _, attribute = name.rpartition(".")
        module = importlib.import_module(package)
        # What is imported when it is first asked for may need a missing package.
        assert attribute in {*dir(module), *getattr(module, "__all__", ())}, name


def test_every_command_is_in_the_reference(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    commands = re.findall(r"^    ([a-z][a-z-]+)\b", capsys.readouterr().out, re.M)
    page = (ROOT / "docs" / "reference" / "commands.md").read_text()
    assert sorted(commands) == sorted(re.findall(r"^\| `([a-z-]+)` \|", page, re.M))
