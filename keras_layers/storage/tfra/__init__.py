"""Tables of TensorFlow Recommenders Addons, which is imported when it is first used."""

import importlib
from typing import TYPE_CHECKING, Any

from keras_layers.storage.tfra.hybrid_storage import HybridStorage
from keras_layers.storage.tfra.import_guard import import_tfra
from keras_layers.storage.tfra.tfra_storage import TfraStorage

if TYPE_CHECKING:
    from keras_layers.storage.tfra.tiered_table_creator import TieredTableCreator

__all__ = ["HybridStorage", "TfraStorage", "TieredTableCreator", "import_tfra"]


def __getattr__(name: str) -> Any:
    # It is a class of TFRA's, and so needs TFRA to be defined.
    if name != "TieredTableCreator":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.tiered_table_creator")
    return module.TieredTableCreator


def __dir__() -> list[str]:
    return __all__
