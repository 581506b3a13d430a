"""The job of two ranks that the tests of the optimizers share.

To start one takes longer than all that they ask of it.
"""

import importlib.util
import pathlib

import pytest

FILES = (
    "cow_clip_exchange_test.py",
    "k_step_adam_test.py",
    "k_step_exchange_test.py",
)


def scenarios():
    """What `scenarios` of each of the files finds on a rank."""
    found = {}
    for name in FILES:
        path = pathlib.Path(__file__).with_name(name)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found[name] = module.scenarios()
    return found


@pytest.fixture(scope="package")
def of_ranks(run_ranks):
    """Returns what `scenarios` of a test file has found on each of two ranks."""
    found = run_ranks(2, __file__, "scenarios")
    return lambda file: [of_rank[pathlib.Path(file).name] for of_rank in found]
