"""What a training run is told, from TOML."""

from tfctr.config.sections import (
    MODES,
    NETWORKS,
    DataConfig,
    ModelConfig,
    ProgressiveConfig,
    RunConfig,
    TablesConfig,
)
from tfctr.config.train_config import TrainConfig

__all__ = [
    "MODES",
    "NETWORKS",
    "DataConfig",
    "ModelConfig",
    "ProgressiveConfig",
    "RunConfig",
    "TablesConfig",
    "TrainConfig",
]
