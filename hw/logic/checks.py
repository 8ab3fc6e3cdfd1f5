"""Checks of configurations."""

from __future__ import annotations

__all__ = ["check_int"]


def check_int(name: str, value: int, low: int, high: int, *, power_of_two: bool = False) -> None:
    """Raises ``ValueError`` unless ``value`` is an integer from ``low`` to ``high``."""
    kind = "a power of two" if power_of_two else "an integer"
    if (
        not isinstance(value, int)
        or isinstance(value, bool)
        or not low <= value <= high
        or (power_of_two and value & (value - 1))
    ):
        raise ValueError(f"{name} must be {kind} from {low} to {high}, got {value!r}")
