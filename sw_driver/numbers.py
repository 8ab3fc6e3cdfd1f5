"""Names and numbers as people write them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from decimal import Decimal

from .device.errors import InvalidArgumentError

__all__ = [
    "NUMBER_FORMS",
    "check_name",
    "parse_integer",
    "parse_number",
    "split_entry",
]

NUMBER_FORMS = "an integer, such as 4096, 1e6 or 4KiB"

_UNITS = {"": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_NUMBER = re.compile(
    r"(-?[0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?(?:e-?[0-9]{1,2})?)\s*(|kib|mib|gib)", re.IGNORECASE
)


def check_name(
    what: str, name: str, known: Iterable[str], error: type[ValueError] = InvalidArgumentError
) -> None:
    """Raises ``error`` if no ``what`` has that name, with those that are near."""
    known = list(known)
    if name in known:
        return
    near = difflib.get_close_matches(name, known)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise error(f"{what} is {name!r}: {hint}expected one of {', '.join(known)}")


def split_entry(entry: str, option: str = "--set", form: str = "KEY=VALUE") -> tuple[str, str]:
    """Key and value of ``KEY=VALUE``. Raises :class:`InvalidArgumentError` for anything else."""
    name, equals, text = (part.strip() for part in entry.partition("="))
    if not equals or not text:
        raise InvalidArgumentError(f"{option} is {entry!r}: expected {form}")
    return name, text


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
