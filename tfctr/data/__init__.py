"""Click logs: readers of real data sets, and a generator of synthetic ones."""

from tfctr.data.bad_lines import BadLine
from tfctr.data.click_log import ClickLog
from tfctr.data.feature import Feature
from tfctr.data.movielens import MovieLens
from tfctr.data.position import Position
from tfctr.data.synthetic import SyntheticClickLog

__all__ = [
    "BadLine",
    "ClickLog",
    "Feature",
    "MovieLens",
    "Position",
    "SyntheticClickLog",
]
