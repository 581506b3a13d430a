"""Progressive training: each window of time is tested on, and then trained on."""

from tfctr.progressive.loop import train
from tfctr.progressive.popularity import Popularity
from tfctr.progressive.report import plot, report, to_csv

__all__ = ["Popularity", "plot", "report", "to_csv", "train"]
