"""Docstrings of public classes: examples run, arguments are the real ones."""

import doctest
import inspect
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_layers
import tfctr
import tfctr_ops

PACKAGES = (
    tfctr_ops,
    keras_layers,
    tfctr.callbacks,
    tfctr.data,
    tfctr.distributed,
    tfctr.export,
    tfctr.metrics,
    tfctr.migration,
    tfctr.models,
    tfctr.optimizers,
    tfctr.topology,
)
PUBLIC = {
    name: getattr(package, name) for package in PACKAGES for name in package.__all__
}
ALL = pytest.mark.parametrize("obj", PUBLIC.values(), ids=PUBLIC)


def documented_names(obj):
    """The names in the `Args:` section, or `Attributes:` for what is only data."""
    doc = inspect.getdoc(obj) or ""
    section = re.search(r"^(?:Args|Attributes):\n((?:    .*\n|\n)*)", doc + "\n", re.M)
    return re.findall(r"^    (\w+): ", section[1], re.M) if section else []


@ALL
def test_examples_run(obj, capsys):
    names = {"np": np, "tf": tf, "keras": keras, **PUBLIC}
    found = doctest.DocTestFinder().find(obj, obj.__name__, globs=names)
    examples = [test for test in found if test.examples]
    # What is abstract has its examples in the classes that are not.
    assert examples or inspect.isabstract(obj), (
        f"{obj.__name__} has no `>>>` example in its docstring."
    )
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for test in examples:
        runner.run(test)
    assert runner.failures == 0, capsys.readouterr().out


@ALL
def test_arguments_are_documented(obj):
    if isinstance(obj, type) and issubclass(obj, Exception):
        return  # Made by us alone; Python knows no signature of it.
    arguments = [
        name
        for name, parameter in inspect.signature(obj).parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    assert documented_names(obj) == arguments, (
        f"The `Args:` of {obj.__name__} must name all arguments, in order."
    )


def test_no_public_name_means_two_things():
    assert len(PUBLIC) == sum(len(package.__all__) for package in PACKAGES)
