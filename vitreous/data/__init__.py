"""Data sets: where pictures and their classes come from, what may be wrong with them, and how training draws them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
