"""Numbers as people write them."""

from __future__ import annotations

import re
from decimal import Decimal

__all__ = ["NUMBER_FORMS", "parse_integer", "parse_number"]

NUMBER_FORMS = "an integer, such as 4096, 1e6 or 4KiB"

_UNITS = {"": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_NUMBER = re.compile(
    r"(-?[0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?(?:e-?[0-9]{1,2})?)\s*(|kib|mib|gib)", re.IGNORECASE
)


def parse_integer(text: str) -> int | None:
    """The integer that ``text`` stands for: ``4096``, ``1_000``, ``1e6``, ``1.5MiB``; else None."""
    value = _parse(text)
    return int(value) if value is not None and value == int(value) else None


def parse_number(text: str) -> float | None:
    """The number that ``text`` stands for, as for :func:`parse_integer` but not only whole ones."""
    value = _parse(text)
    return None if value is None else float(value)


def _parse(text: str) -> Decimal | None:
    found = _NUMBER.fullmatch(text.strip())
    if found is None or len(text) > 64:  # more digits than any number of ours has
        return None
    return Decimal(found[1]) * _UNITS[found[2].lower()]
