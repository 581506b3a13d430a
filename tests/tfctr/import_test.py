"""`import tfctr`: everything in reach, nothing started."""

import importlib
import subprocess
import sys

import pytest

import tfctr

PARTS = [name for name in tfctr.__all__ if name != "__version__"]
LIGHT = """
import sys
import tfctr
{statement}
started = {{"tensorflow", "keras", "tf_keras"}} & set(sys.modules)
assert not started, started
"""
REACH = """
import tfctr
print(tfctr.export.vectors.__name__)
print(tfctr.optimizers.RowwiseAdagrad().learning_rate)
print(tfctr.callbacks.TrainingGuard.__name__)
"""


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_starts_neither_keras_nor_tensorflow():
    run(
        LIGHT.format(
            statement="import tfctr.cli, tfctr.commands, tfctr.config, tfctr.data"
        )
    )


def test_help_starts_neither_keras_nor_tensorflow():
    statement = """
import tfctr.cli
try:
    tfctr.cli.main(["train", "--help"])
except SystemExit as end:
    assert end.code == 0
"""
    assert "--set SECTION.KEY=VALUE" in run(LIGHT.format(statement=statement))


def test_export_optimizers_and_callbacks_are_reached_without_another_import():
    assert run(REACH).split() == ["vectors", "0.001", "TrainingGuard"]


@pytest.mark.parametrize("name", ["tfctr.data", "keras_layers.storage.tfra"])
def test_what_is_imported_when_it_is_used_is_listed(name):
    module = importlib.import_module(name)
    assert set(module.__all__) <= set(dir(module))


@pytest.mark.parametrize("part", PARTS)
def test_every_part_is_an_attribute(part):
    module = getattr(tfctr, part)
    assert module.__name__ == f"tfctr.{part}"
    assert part in dir(tfctr)


def test_names_that_do_not_exist_are_missing():
    with pytest.raises(AttributeError, match="'tfctr' has no attribute 'nothing'"):
        _ = tfctr.nothing
