"""What tests of the callbacks share: a clock of our own."""

import pytest

from helpers.clock import Clock


@pytest.fixture
def clock():
    """To be put in the place of `time.perf_counter`."""
    return Clock()
