"""Click-through-rate models."""

from tfctr.models.dcn import DCN
from tfctr.models.dcn_v2 import DCNv2
from tfctr.models.deep_fm import DeepFM
from tfctr.models.dlrm import DLRM
from tfctr.models.feature_vectors import DynamicTables, FeatureVectors, StaticTables
from tfctr.models.wide_deep import WideDeep

__all__ = [
    "DCN",
    "DLRM",
    "DCNv2",
    "DeepFM",
    "DynamicTables",
    "FeatureVectors",
    "StaticTables",
    "WideDeep",
]
