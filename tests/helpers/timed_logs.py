"""A log in the order of time, and how it is opened and trained on."""

import numpy as np

from tfctr.config import TrainConfig
from tfctr.data import FeatureDeclaration, TimeColumn, TimedLog

SECOND = 10**9
ITEM = FeatureDeclaration("item", column="ad")
FEATURES = (ITEM, FeatureDeclaration("user"))
SECTIONS = {
    "data": {"kind": "parquet"},
    "model": {"dim": 4, "hidden_units": [8]},
    "tables": {"optimizer": "adagrad", "learning_rate": 0.1},
    "run": {"mode": "progressive", "batch_size": 128, "learning_rate": 0.01},
    "progressive": {"time": "time", "item": "ad", "negatives": 2},
    "features": [{"name": "item", "column": "ad"}, {"name": "user"}],
}


def draw_log(num_rows=600, hours=4, seed=0):
    """Clicks of some hours: items come and go, and users like some more than others."""
    generator = np.random.default_rng(seed)
    times = np.sort(generator.integers(0, hours * 3600, num_rows)) + 7200
    return {
        "time": times,
        "ad": 10 * (times // 7200) + generator.geometric(0.4, num_rows),
        "user": generator.integers(0, 40, num_rows),
        "label": generator.integers(0, 2, num_rows),
        "row": np.arange(num_rows),
    }


def open_log(path, item="ad", negatives=None, features=FEATURES, unit="s"):
    return TimedLog(
        path, features, TimeColumn("time", unit), item=item, negatives=negatives
    )


def examples_of(log, name):
    """The values of a feature in the order of the log."""
    return log.examples.inputs[name]


def config(path, directory, *overrides):
    places = [f"data.path={path}", f"run.directory={directory}"]
    return TrainConfig.from_dict(SECTIONS, [*places, *overrides])
