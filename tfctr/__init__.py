"""Trains click-through-rate models whose embedding tables grow with their ids.

Submodules are imported when they are first used, so that `import tfctr` starts neither
Keras nor TensorFlow.
"""

import importlib
from typing import Any

__version__ = "0.1.0.dev0"

_SUBMODULES = (
    "bench",
    "callbacks",
    "data",
    "distributed",
    "export",
    "metrics",
    "migration",
    "models",
    "optimizers",
    "progressive",
    "study",
    "topology",
    "training",
)

__all__ = ["__version__", *_SUBMODULES]


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"tfctr.{name}")
    raise AttributeError(f"module 'tfctr' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
