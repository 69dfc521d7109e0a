"""Data sets: where pictures and their classes come from, and how training draws from them."""

from vitreous.data.source import DataSet, Split, open_data

__all__ = ["DataSet", "Split", "open_data"]
