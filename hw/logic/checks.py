"""Checks of configurations."""

from __future__ import annotations

from dataclasses import fields
from math import isfinite
from typing import Any

__all__ = ["check_int", "check_types", "is_int"]


def is_int(value: Any) -> bool:
    """Return whether ``value`` is an integer and not a Boolean."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_types(config: Any) -> None:
    """Raise ``ValueError`` for a dataclass field that is not the annotated int, float or bool.

    A ``float`` may be an integer, and must be finite.
    """
    for field in fields(config):
        value = getattr(config, field.name, None)
        if field.type == "int" and field.init and not is_int(value):
            raise ValueError(f"{field.name} must be an integer, got {value!r}")
        if field.type == "bool" and not isinstance(value, bool):
            raise ValueError(f"{field.name} must be True or False, got {value!r}")
        if field.type == "float" and not (
            (is_int(value) or isinstance(value, float)) and isfinite(value)
        ):
            raise ValueError(f"{field.name} must be a finite number, got {value!r}")


def check_int(name: str, value: int, low: int, high: int, *, power_of_two: bool = False) -> None:
    """Raise ``ValueError`` unless ``value`` is an integer from ``low`` to ``high``."""
    kind = "a power of two" if power_of_two else "an integer"
    if not is_int(value) or not low <= value <= high or (power_of_two and value & (value - 1)):
        raise ValueError(f"{name} must be {kind} from {low} to {high}, got {value!r}")
