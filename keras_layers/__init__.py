"""Keras 3 layers for click-through-rate models, and where their tables live."""

import keras

if keras.backend.backend() != "tensorflow":
    raise ImportError(
        "tfctr runs on the TensorFlow backend of Keras: its tables are TensorFlow "
        f"resources. Received: KERAS_BACKEND={keras.backend.backend()!r}. Set the "
        "environment variable KERAS_BACKEND=tensorflow before Keras is imported."
    )

# ruff: noqa: E402  The check comes first: without the backend nothing below works.
from keras_layers.admission import (
    BloomAdmission,
    CountAdmission,
    ProbabilityAdmission,
)
from keras_layers.cross_network import CrossNetwork
from keras_layers.dot_interaction import DotInteraction
from keras_layers.dynamic_embedding import DynamicEmbedding
from keras_layers.expiry import Expiry
from keras_layers.factorization_machine import FactorizationMachine
from keras_layers.storage.storage import Forecast, Storage, Table
from keras_layers.storage.tfra import HybridStorage, TfraStorage
from keras_layers.storage.tiered_storage import TieredStorage
from keras_layers.table_config import FeatureConfig, TableConfig

__all__ = [
    "BloomAdmission",
    "CountAdmission",
    "CrossNetwork",
    "DotInteraction",
    "DynamicEmbedding",
    "Expiry",
    "FactorizationMachine",
    "FeatureConfig",
    "Forecast",
    "HybridStorage",
    "ProbabilityAdmission",
    "Storage",
    "Table",
    "TableConfig",
    "TfraStorage",
    "TieredStorage",
]
