"""Frozen settings: checked when made, changed by copying, written as plain values and read back."""

import dataclasses
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import Self

from vitreous.base.errors import ConfigError, did_you_mean


@dataclass(frozen=True)
class Settings:
    """Base of `ViTConfig`, `Preprocess` and `Recipe`; each checks its fields in `__post_init__` with `check`."""

    called: ClassVar[str] = ""  # how messages begin, e.g. "recipe: "

    def check(self, field: str, holds: bool, wanted: str) -> None:
        """Refuse a field whose value is none of what is `wanted`.

        Raises:
            ConfigError: where the condition does not hold.
        """
        if not holds:
            raise ConfigError(f"{self.called}{field} must be {wanted}, got {getattr(self, field)!r}")

    def check_choice(self, field: str, allowed: Collection[str]) -> None:
        """Refuse a field that is none of the `allowed` words, and name the nearest.

        Raises:
            ConfigError: for another word.
        """
        value = getattr(self, field)
        if value not in allowed:
            hint = did_you_mean(str(value), allowed)
            raise ConfigError(f"{self.called}{field} must be one of {', '.join(allowed)}, got {value!r}{hint}")

    def check_counts(self, fields: Iterable[str], least: int = 1) -> None:
        """Refuse fields that are no whole number from `least` up.

        Raises:
            ConfigError: for the first such field.
        """
        for field in fields:
            self.check(field, is_count(getattr(self, field), least), f"a whole number >= {least}")

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed, checked like a new one.

        Raises:
            ConfigError: for an unknown field, with the nearest known one, or a value that cannot be.
        """
        self.check_fields(changes)
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` is the way back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The settings that `to_dict` described.

        Raises:
            ConfigError: for an unknown field, with the nearest known one, or a value that cannot be.
        """
        cls.check_fields(values)
        return cls(**values)

    @classmethod
    def check_fields(cls, values: Iterable[str]) -> None:
        """Refuse names that are no fields of these settings, and name the nearest.

        Raises:
            ConfigError: for the first unknown name.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for name in values:
            if name not in known:
                hint = did_you_mean(name, known) or f": the fields are {', '.join(known)}"
                raise ConfigError(f"{cls.called}{cls.__name__} has no field {name!r}{hint}")


def is_count(value: object, least: int = 1) -> bool:
    """Whether a value is a whole number from `least` up, and no boolean."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_number(value: object) -> bool:
    """Whether a value is a finite number, and no boolean."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
