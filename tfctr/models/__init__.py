"""Click-through-rate models."""

from tfctr.models.deep_fm import DeepFM
from tfctr.models.feature_vectors import DynamicTables, FeatureVectors, StaticTables

__all__ = ["DeepFM", "DynamicTables", "FeatureVectors", "StaticTables"]
