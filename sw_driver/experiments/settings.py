"""What can be set of a machine and of a sweep's points, and how it is written."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import get_type_hints

from hw.axdimm.config import HOSTS, MEMORIES, MODULE_PRESETS, OPTIONS, ModuleConfig, configure
from hw.dram.config import ControllerConfig
from hw.dram.geometry import DramGeometry
from hw.dram.presets import PARTS
from hw.dram.timing import DramTiming
from hw.kernel.config import SUBNORMALS
from hw.logic.clocking import CLOCKINGS
from hw.pim.config import COUNTINGS, PIM_PRESETS, PimConfig
from hw.pim.config import OPTIONS as PIM_OPTIONS
from hw.pim.config import configure as configure_pim
from hw.rules import RULES

from ..runtime.numbers import NUMBER_FORMS, parse_integer

__all__ = [
    "KEYS",
    "MODULE_KEYS",
    "PIM_KEYS",
    "Key",
    "SweepError",
    "Value",
    "key",
    "module_values",
    "pim_values",
    "plain",
    "read_config",
    "read_settings",
    "split_entry",
    "text_of",
    "toml",
]

Value = bool | int | float | str

_SWITCH = {"true": True, "false": False}


class SweepError(ValueError):
    """A sweep that cannot be made as asked for; the message says what to change."""


@dataclass(frozen=True, kw_only=True)
class Key:
    """A key of a point."""

    name: str
    kind: type[bool] | type[int] | type[float] | type[str]
    choices: tuple[str, ...] = ()
    """The names that a key of kind ``str`` may be given."""
    several: bool = False
    """Several of the names may be given, with commas between them."""

    def parse(self, text: str) -> Value:
        """The value that ``text`` stands for.

        ``true`` or ``false``; a number, see :mod:`~sw_driver.runtime.numbers`; or one of the
        names. Raises :class:`SweepError` for anything else.
        """
        text = text.strip()
        if self.kind is bool:
            if text.lower() in _SWITCH:
                return _SWITCH[text.lower()]
            raise SweepError(f"{self.name} is {text!r}: expected true or false")
        if self.kind is int:
            value = parse_integer(text)
            if value is not None:
                return value
            raise SweepError(f"{self.name} is {text!r}: expected {NUMBER_FORMS}")
        if self.kind is float:
            try:
                return float(text)
            except ValueError:
                raise SweepError(f"{self.name} is {text!r}: expected a number") from None
        for name in text.split(",") if self.several else [text]:
            if name not in self.choices:
                raise SweepError(f"{self.name} is {text!r}: {_expected(name, self.choices)}")
        return text


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
        Key(name="memory", kind=str, choices=MEMORIES),
        Key(name="rules", kind=str, choices=tuple(RULES), several=True),
        Key(name="clocking", kind=str, choices=CLOCKINGS),
        Key(name="subnormals", kind=str, choices=tuple(SUBNORMALS)),
        Key(name="host", kind=str, choices=HOSTS),
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


MODULE_KEYS = {name: KEYS[name] for name in ("preset", *OPTIONS)}
"""Those of a module's configuration."""


def _pim_keys() -> dict[str, Key]:
    kinds = get_type_hints(PimConfig)
    choices = {"preset": tuple(PIM_PRESETS), "counting": COUNTINGS, "clocking": CLOCKINGS}
    return {
        name: Key(name=name, kind=kinds.get(name, float), choices=choices.get(name, ()))
        for name in ("preset", *PIM_OPTIONS)
    } | {"preset": Key(name="preset", kind=str, choices=choices["preset"])}


PIM_KEYS = _pim_keys()
"""Those of a PIM's configuration, by name."""


def key(name: str, keys: Mapping[str, Key] = KEYS) -> Key:
    """The key called ``name``; raises :class:`SweepError` with what may have been meant."""
    if name not in keys:
        raise SweepError(f"no key {name!r}: {_expected(name, keys)}")
    return keys[name]


def read_settings(
    config: str | None, entries: Sequence[str], keys: Mapping[str, Key]
) -> dict[str, Value]:
    """The settings of ``--config`` and ``--set``; the latter count where both have a key.

    ``config`` is what :func:`read_config` takes, ``entries`` are ``KEY=VALUE``. Raises
    :class:`SweepError`.
    """
    values = {
        name: key(name, keys).parse(text)
        for name, text in read_config(config, keys["preset"].choices).items()
    }
    given: set[str] = set()
    for name, text in map(split_entry, entries):
        if name in given:
            raise SweepError(f"--set {name} is given twice: give it once")
        given.add(name)
        values[name] = key(name, keys).parse(text)
    return values


def split_entry(entry: str, option: str = "--set", form: str = "KEY=VALUE") -> tuple[str, str]:
    """Key and value of ``KEY=VALUE``. Raises :class:`SweepError` for anything else."""
    name, equals, text = entry.partition("=")
    if not equals or not text:
        raise SweepError(f"{option} is {entry!r}: expected {form}")
    return name.strip(), text


def read_config(config: str | None, presets: Collection[str]) -> dict[str, str]:
    """The texts of a configuration's settings, by their keys.

    ``config`` is the name of a preset or of a TOML file with a value, or on sweeps a list of them,
    for each key. Raises :class:`SweepError`.
    """
    if config is None:
        return {}
    if config in presets:
        return {"preset": config}
    try:
        content = tomllib.loads(Path(config).read_text())
    except FileNotFoundError:
        raise SweepError(
            f"no configuration {config!r}: {_expected(config, presets)}, or a TOML file"
        ) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SweepError(f"the configuration {config!r} cannot be read: {error}") from error
    for name, value in content.items():
        if isinstance(value, dict):
            raise SweepError(
                f"the configuration {config!r} has a table [{name}]: expected KEY = VALUE lines"
            )
    return {
        name: ",".join(map(plain, value)) if isinstance(value, list) else plain(value)
        for name, value in content.items()
    }


def module_values(settings: Mapping[str, Value]) -> dict[str, Value]:
    """All settings of the module that these, see :data:`MODULE_KEYS`, stand for."""
    config = configure(**settings)  # type: ignore[arg-type]
    holders = (config, config.controller, config.part.timing, config.part.geometry)
    values = {
        name: getattr(next(holder for holder in holders if hasattr(holder, name)), name)
        for name in OPTIONS
        if name != "capacity_bytes"  # which follows from the geometry
    }
    return {**values, "part": config.part.name, "rules": ",".join(config.rules)}


def pim_values(settings: Mapping[str, Value]) -> dict[str, Value]:
    """All settings of the PIM that these, see :data:`PIM_KEYS`, stand for."""
    config = configure_pim(**settings)  # type: ignore[arg-type]
    return {
        name: getattr(config if hasattr(config, name) else config.weights, name)
        for name in PIM_OPTIONS
    }


def toml(values: Mapping[str, Value]) -> str:
    """The values as a TOML file, which :func:`read_config` reads."""
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())


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
