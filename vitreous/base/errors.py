"""The errors a user can meet: each says what is wrong, where, and the way out."""

import difflib
from collections.abc import Iterable


class VitreousError(ValueError):
    """Anything wrong with what the user gave: base class of all errors raised on purpose."""


class ConfigError(VitreousError):
    """A model configuration or a recipe that cannot be."""


class WeightsError(VitreousError):
    """A weight file that is broken, incomplete, or not this architecture."""


class ImageError(VitreousError):
    """A picture that cannot be read, or that the model cannot take."""


class DataError(VitreousError):
    """A data set that cannot be trained on or measured with."""


class TooLarge(VitreousError):
    """A computation that needs more memory than there is."""


class Interrupted(VitreousError):
    """A run that was asked to stop; its state is saved, and `--resume` goes on from there."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`" (did you mean 'B/16'?)"`, or nothing where no known word is near."""
    lowered = {k.lower(): k for k in known}
    near = difflib.get_close_matches(word.lower(), lowered, n=1, cutoff=0.5)
    return f" (did you mean {lowered[near[0]]!r}?)" if near else ""
