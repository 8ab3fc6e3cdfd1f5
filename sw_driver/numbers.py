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
    "check_size",
    "listed",
    "parse_integer",
    "parse_number",
    "split_entries",
    "split_entry",
]

NUMBER_FORMS = "an integer, such as 4096, 1e6 or 4KiB"

LEAST = 1e-9
"""Smallest value of a number that must not be zero, such as a divisor."""
MOST = 1e19
"""Largest value of any number: more than 64 bits can count."""

_UNITS = {"": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_NUMBER = re.compile(
    r"([+-]?[0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?(?:e[+-]?[0-9]{1,2})?)\s*(|kib|mib|gib)", re.IGNORECASE
)


def check_name(
    title: str, name: str, known: Iterable[str], error: type[Exception] = InvalidArgumentError
) -> None:
    """Raise ``error`` if ``name`` is not ``known``, and suggest similar names."""
    known = list(known)
    if name in known:
        return
    near = difflib.get_close_matches(name, known) if isinstance(name, str) else []
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise error(f"{title} is {shown(name)}: {hint}expected one of {', '.join(known)}")


def split_entry(entry: str, option: str = "--set", form: str = "KEY=VALUE") -> tuple[str, str]:
    """Split ``KEY=VALUE``; raise :class:`InvalidArgumentError` for anything else."""
    name, equals, text = (part.strip() for part in entry.partition("="))
    if not equals or not text:
        raise InvalidArgumentError(f"{option} is {entry!r}: expected {form}")
    return name, text


def split_entries(entries: Iterable[str], option: str = "--set") -> dict[str, str]:
    """Return the values of ``KEY=VALUE`` entries by key; a key may be given once."""
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
    """Return ``value`` as an integer; raise ``error`` unless it is from ``least`` to ``most``."""
    if not isinstance(value, bool):
        with suppress(TypeError):
            number = index(value)
            if (least is None or number >= least) and (most is None or number <= most):
                return number
    bounds = f"of {least} or more" if most is None else f"from {least} to {most}"
    raise error(
        f"{name} is {shown(value)}: expected an integer{'' if least is None else f' {bounds}'}"
    )


def check_size(
    name: str,
    value: Any,
    least: int = 1,
    form: str = "a number of bytes, or a size such as '12GiB'",
) -> int:
    """Return a size as bytes: a number of them, or text such as ``"12GiB"``.

    Raises :class:`InvalidArgumentError`, which says that ``form`` is expected, for anything else
    and for less than ``least`` bytes.
    """
    size: Any = parse_integer(value) if isinstance(value, str) else value
    with suppress(TypeError):
        if not isinstance(size, bool) and (nbytes := index(size)) >= least:
            return nbytes
    raise InvalidArgumentError(f"{name} is {shown(value)}: expected {form}")


def listed(name: str, values: Any, expected: str = "a list") -> tuple[Any, ...]:
    """Return a list that the program gave as a tuple.

    Raises :class:`~sw_driver.device.errors.InvalidArgumentError` for text, an array or no list.
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
    """Raise ``error`` unless ``value`` is a finite number from ``least`` to ``most``."""
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
    """Check the ``int`` and ``float`` fields of a dataclass, by their annotations.

    Integers must be from 1 to ``most``, numbers at least ``least``. Fields named in ``zero`` may
    also be 0.
    """
    for field in fields(record):
        value, may_be_zero = getattr(record, field.name), field.name in zero
        if field.type == "int":
            check_integer(field.name, value, int(not may_be_zero), most, error)
        elif field.type == "float":
            check_number(field.name, value, 0 if may_be_zero else least, error=error)


def parse_integer(text: str) -> int | None:
    """Return the integer in ``text``, such as ``4096``, ``1e6`` or ``1.5MiB``, or None."""
    value = _parse(text)
    return int(value) if value is not None and value == int(value) else None


def parse_number(text: str) -> float | None:
    """Return the number in ``text``, or None; forms as in :func:`parse_integer`, also fractions."""
    value = _parse(text)
    return None if value is None else float(value)


def _parse(text: str) -> Decimal | None:
    match = _NUMBER.fullmatch(text.strip())
    if match is None or len(text) > 64:  # longer than any number in use
        return None
    return Decimal(match[1]) * _UNITS[match[2].lower()]
