"""Click logs: readers of real data sets, and a generator of synthetic ones."""

from tfctr.data.bad_lines import BadLine
from tfctr.data.click_log import ClickLog
from tfctr.data.movielens import MovieLens
from tfctr.data.position import Position
from tfctr.data.synthetic import SyntheticClickLog
from tfctr.feature import Feature

__all__ = [
    "BadLine",
    "ClickLog",
    "Feature",
    "MovieLens",
    "Position",
    "SyntheticClickLog",
]
