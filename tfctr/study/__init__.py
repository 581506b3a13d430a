"""Studies: one model trained in many ways."""

from tfctr.study.grid import RULES, Cell, scale_config
from tfctr.study.large_batch_study import large_batch
from tfctr.study.report import table
from tfctr.study.results import COLUMNS

__all__ = ["COLUMNS", "RULES", "Cell", "large_batch", "scale_config", "table"]
