"""Data sets: where pictures and their classes come from, and how training draws from them."""

from vitreous.data.source import open_data
from vitreous.data.split import DataSet, Source, Split

__all__ = ["DataSet", "Source", "Split", "open_data"]
