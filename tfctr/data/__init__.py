"""Click logs: readers of real data sets, and a generator of synthetic ones."""

from typing import TYPE_CHECKING, Any

from tfctr.data.avazu import Avazu
from tfctr.data.bad_lines import BadLine
from tfctr.data.click_log import ClickLog
from tfctr.data.conversion import convert, synthesize
from tfctr.data.criteo import Criteo
from tfctr.data.movielens import MovieLens
from tfctr.data.negative_sampler import NegativeSampling
from tfctr.data.parquet import ParquetLog
from tfctr.data.position import Position
from tfctr.data.split import RandomSplit
from tfctr.data.synthesis import SyntheticStream
from tfctr.data.synthetic import SyntheticClickLog
from tfctr.data.tf_record import TFRecordLog
from tfctr.data.time_column import TimeColumn
from tfctr.data.timed_log import TimedLog, TimeWindow
from tfctr.declaration import FeatureDeclaration
from tfctr.feature import Feature

if TYPE_CHECKING:
    from tfctr.data.lookahead_stage import lookahead

__all__ = [
    "Avazu",
    "BadLine",
    "ClickLog",
    "Criteo",
    "Feature",
    "FeatureDeclaration",
    "MovieLens",
    "NegativeSampling",
    "ParquetLog",
    "Position",
    "RandomSplit",
    "SyntheticClickLog",
    "SyntheticStream",
    "TFRecordLog",
    "TimeColumn",
    "TimeWindow",
    "TimedLog",
    "convert",
    "lookahead",
    "synthesize",
]


def __getattr__(name: str) -> Any:
    # The one that needs TensorFlow at once; readers start it when they read.
    if name == "lookahead":
        from tfctr.data.lookahead_stage import lookahead

        return lookahead
    raise AttributeError(f"module 'tfctr.data' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
