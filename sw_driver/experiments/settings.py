"""What a sweep can vary, and how the values of each key are written."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import get_type_hints

from hw.axdimm.config import MODULE_PRESETS, OPTIONS, ModuleConfig
from hw.dram.config import ControllerConfig
from hw.dram.geometry import DramGeometry
from hw.dram.presets import PARTS
from hw.dram.timing import DramTiming

__all__ = ["KEYS", "Key", "SweepError", "Value", "key", "plain", "text_of"]

Value = bool | int | str

_UNITS = {"": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_INTEGER = re.compile(r"(-?\d+(?:_\d+)*)\s*(|kib|mib|gib)", re.IGNORECASE)
_SWITCH = {"true": True, "false": False}


class SweepError(ValueError):
    """A sweep that cannot be made as asked for; the message says what to change."""


@dataclass(frozen=True, kw_only=True)
class Key:
    """A key of a point."""

    name: str
    kind: type[bool] | type[int] | type[str]
    choices: tuple[str, ...] = ()
    """The names that a key of kind ``str`` may be given."""

    def parse(self, text: str) -> Value:
        """The value that ``text`` stands for.

        ``true`` or ``false``; an integer, with ``KiB``, ``MiB`` or ``GiB`` behind it if wanted; or
        one of the names. Raises :class:`SweepError` for anything else.
        """
        text = text.strip()
        if self.kind is bool:
            if text.lower() in _SWITCH:
                return _SWITCH[text.lower()]
            raise SweepError(f"{self.name} is {text!r}: expected true or false")
        if self.kind is int:
            found = _INTEGER.fullmatch(text)
            if found:
                return int(found[1]) * _UNITS[found[2].lower()]
            raise SweepError(
                f"{self.name} is {text!r}: expected an integer, or one with KiB or MiB such as "
                "16KiB"
            )
        if text in self.choices:
            return text
        raise SweepError(f"{self.name} is {text!r}: {_expected(text, self.choices)}")


def _expected(text: str, choices: Iterable[str]) -> str:
    choices = list(choices)
    near = difflib.get_close_matches(text, choices)
    expected = f"expected one of {', '.join(choices)}"
    return f"did you mean {' or '.join(near)}? {expected}" if near else expected


def _keys() -> dict[str, Key]:
    kinds: dict[str, type] = {}
    for settings in (ModuleConfig, ControllerConfig, DramTiming, DramGeometry):
        hints = get_type_hints(settings)
        kinds |= {field.name: hints[field.name] for field in fields(settings)}
    own = (
        Key(name="preset", kind=str, choices=tuple(MODULE_PRESETS)),
        Key(name="count", kind=int),
        Key(name="stagger", kind=bool),
        Key(name="part", kind=str, choices=tuple(PARTS)),
    )
    keys = {entry.name: entry for entry in own}
    for name in OPTIONS:
        if name not in keys:
            keys[name] = Key(name=name, kind=bool if kinds.get(name) is bool else int)
    return keys


KEYS = _keys()
"""All keys by name: every option of the configuration (``hw.axdimm.config.OPTIONS``), the
``preset`` that they change, ``count`` (parameters of each channel) and ``stagger`` (the driver's
placement)."""


def key(name: str) -> Key:
    """The key called ``name``; raises :class:`SweepError` with what may have been meant."""
    if name not in KEYS:
        raise SweepError(f"no key {name!r}: {_expected(name, KEYS)}")
    return KEYS[name]


def plain(value: object) -> str:
    """``value`` as options take it and tables have it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def text_of(name: str, value: Value) -> str:
    """``value`` as people write it: ``16 KiB``, ``4,000,000``, ``off``."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, str):
        return value
    if name.endswith("_bytes"):
        for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
            if value and value % size == 0:
                return f"{value // size} {unit}"
    return f"{value:,}"
