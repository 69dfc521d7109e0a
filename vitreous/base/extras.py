"""Packages that only some uses need: imported when they are needed, and asked for by the extra that brings them."""

from importlib import import_module
from types import ModuleType

from vitreous.base.errors import VitreousError


def need(module: str, *, extra: str, for_: str, error: type[VitreousError] = VitreousError) -> ModuleType:
    """Import an optional package, or say how to get it.

    Args:
        module: the name that is imported, `"pyarrow.parquet"` for example.
        extra: the extra of vitreous that brings the package.
        for_: what needs it, as the beginning of a sentence: `"Parquet"`.
        error: the class of the error.

    Returns:
        The module.

    Raises:
        VitreousError: of the class `error`, where the package is not installed.
    """
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as failure:
        if failure.name is not None and failure.name.partition(".")[0] != package:
            raise  # the package is there; something that it needs is not
        raise error(f"{for_} needs the package {package}: {install(extra)}") from None


def install(extra: str) -> str:
    """The command that brings an extra."""
    return f"pip install 'vitreous[{extra}]'"
