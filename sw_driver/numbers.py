"""Names and numbers as people write them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import fields
from decimal import Decimal
from numbers import Real
from operator import index
from typing import Any

from .device.errors import InvalidArgumentError, shown

__all__ = [
    "LEAST",
    "NUMBER_FORMS",
    "check_fields",
    "check_integer",
    "check_name",
    "check_number",
    "listed",
    "parse_integer",
    "parse_number",
    "split_entries",
    "split_entry",
]

NUMBER_FORMS = "an integer, such as 4096, 1e6 or 4KiB"

LEAST = 1e-9
"""Least of a number that must not be zero, such as a rate by which is divided."""
MOST = 1e19
"""Most of any number: above what 64 bits count."""

_UNITS = {"": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_NUMBER = re.compile(
    r"([+-]?[0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?(?:e[+-]?[0-9]{1,2})?)\s*(|kib|mib|gib)", re.IGNORECASE
)


def check_name(
    what: str, name: str, known: Iterable[str], error: type[Exception] = InvalidArgumentError
) -> None:
    """Raises ``error`` if no ``what`` has that name, with those that are near."""
    known = list(known)
    if name in known:
        return
    near = difflib.get_close_matches(name, known) if isinstance(name, str) else []
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise error(f"{what} is {shown(name)}: {hint}expected one of {', '.join(known)}")


def split_entry(entry: str, option: str = "--set", form: str = "KEY=VALUE") -> tuple[str, str]:
    """Key and value of ``KEY=VALUE``. Raises :class:`InvalidArgumentError` for anything else."""
    name, equals, text = (part.strip() for part in entry.partition("="))
    if not equals or not text:
        raise InvalidArgumentError(f"{option} is {entry!r}: expected {form}")
    return name, text


def split_entries(entries: Iterable[str], option: str = "--set") -> dict[str, str]:
    """Return values by keys of some ``KEY=VALUE``; every key may be given once."""
    texts: dict[str, str] = {}
    for name, text in (split_entry(entry, option) for entry in entries):
        if name in texts:
            raise InvalidArgumentError(
                f"{option} has {name!r} twice, as {texts[name]!r} and {text!r}: give it once"
            )
        texts[name] = text
    return texts


def check_integer(
    name: str,
    value: Any,
    least: int | None = 1,
    most: int | None = None,
    error: type[Exception] = InvalidArgumentError,
) -> int:
    """``value`` as an integer; raises ``error`` unless it is one from ``least`` to ``most``."""
    if not isinstance(value, bool):
        with suppress(TypeError):
            number = index(value)
            if (least is None or number >= least) and (most is None or number <= most):
                return number
    bounds = f"of {least} or more" if most is None else f"from {least} to {most}"
    raise error(
        f"{name} is {shown(value)}: expected an integer{'' if least is None else f' {bounds}'}"
    )


def listed(name: str, values: Any, expected: str = "a list") -> tuple[Any, ...]:
    """Copy a list that the program gave.

    Raises :class:`~sw_driver.device.errors.InvalidArgumentError` for what is none.
    """
    if not (isinstance(values, str | bytes) or hasattr(values, "__array__")):
        with suppress(TypeError):
            return tuple(values)
    raise InvalidArgumentError(f"{name} is {shown(values)}: expected {expected}")


def check_number(
    name: str,
    value: Any,
    least: float = 0,
    most: float = MOST,
    error: type[Exception] = InvalidArgumentError,
) -> None:
    """Raises ``error`` unless ``value`` is a number from ``least`` to ``most``, so that what is
    reckoned with it is finite."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not least <= float(value) <= most:
        raise error(f"{name} is {shown(value)}: expected a number from {least:g} to {most:g}")


def check_fields(
    record: Any,
    *zero: str,
    least: float = LEAST,
    most: int | None = None,
    error: type[Exception] = InvalidArgumentError,
) -> None:
    """Checks what is an ``int`` or a ``float`` by the annotations of a dataclass: integers are from
    1 to ``most``, numbers ``least`` or more, and both from 0 on if they are named in ``zero``."""
    for field in fields(record):
        value, may_be_zero = getattr(record, field.name), field.name in zero
        if field.type == "int":
            check_integer(field.name, value, int(not may_be_zero), most, error)
        elif field.type == "float":
            check_number(field.name, value, 0 if may_be_zero else least, error=error)


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
