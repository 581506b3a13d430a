"""Brings what was learned elsewhere into tfctr."""

from tfctr.migration.tfra import import_tfra

__all__ = ["import_tfra"]
