"""vitreous: the classic Vision Transformer that you can trust and see through.

The public names and their homes stand in `__init__.pyi`, once for type checkers and for this module. Each is imported
when it is first used, so that `import vitreous` is quick.
"""

import lazy_loader

from vitreous.base.version import __version__

__getattr__, _names, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]


def __dir__() -> list[str]:
    return [*_names(), "__version__"]
