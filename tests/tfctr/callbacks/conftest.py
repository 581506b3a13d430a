"""What tests of the callbacks share: a clock of our own."""

import pytest


class Clock:
    """Stands still until somebody moves it."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    """To be put in the place of `time.perf_counter`."""
    return Clock()
