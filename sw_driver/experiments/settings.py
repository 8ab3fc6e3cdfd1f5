"""What can be set of a machine and of a sweep's points, and how it is written."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, get_type_hints

from hw.axdimm.config import HOSTS, MEMORIES, MODULE_PRESETS, OPTIONS, ModuleConfig, configure
from hw.dram.config import ControllerConfig
from hw.dram.geometry import DramGeometry
from hw.dram.presets import PARTS
from hw.dram.timing import DramTiming
from hw.kernel.config import SUBNORMALS
from hw.logic.clocking import CLOCKINGS
from hw.pim.config import COUNTINGS, PIM_PRESETS, PimConfig, ThermalWeights
from hw.pim.config import OPTIONS as PIM_OPTIONS
from hw.pim.config import configure as configure_pim
from hw.rules import RULES

from ..device.errors import InvalidArgumentError
from ..numbers import NUMBER_FORMS, check_name, parse_integer, parse_number, split_entry

__all__ = [
    "KEYS",
    "MODULE_KEYS",
    "PIM_KEYS",
    "Keys",
    "Value",
    "module_values",
    "parse_value",
    "pim_values",
    "plain",
    "read_grid",
    "read_settings",
    "text_of",
    "toml",
]

Value: TypeAlias = bool | int | float | str

Keys: TypeAlias = Mapping[str, Any]
"""What keys take, by their names: a ``bool``, ``int`` or ``float``, or one of some names."""


def _keys(options: Iterable[str], holders: Iterable[type], **names: Iterable[str]) -> Keys:
    """``options`` take one of ``names``, or what they are in the configurations ``holders``."""
    hints = {name: hint for holder in holders for name, hint in get_type_hints(holder).items()}
    numbers = {name: hints[name] if hints.get(name) in (bool, float) else int for name in options}
    return {"preset": names["preset"], **numbers, **names}


MODULE_KEYS = _keys(
    OPTIONS,
    (ModuleConfig, ControllerConfig, DramTiming, DramGeometry),
    preset=MODULE_PRESETS,
    part=PARTS,
    memory=MEMORIES,
    rules=RULES,
    clocking=CLOCKINGS,
    subnormals=SUBNORMALS,
    host=HOSTS,
)
"""The keys of a module's configuration."""

KEYS: Keys = {**MODULE_KEYS, "count": int, "stagger": bool}
"""The keys of a sweep's points: also ``count`` (parameters of each channel) and ``stagger`` (the
driver's placement)."""

PIM_KEYS = _keys(
    PIM_OPTIONS,
    (PimConfig, ThermalWeights),
    preset=PIM_PRESETS,
    counting=COUNTINGS,
    clocking=CLOCKINGS,
)
"""The keys of a PIM's configuration."""


def parse_value(name: str, text: str, keys: Keys = KEYS) -> Value:
    """The value of the key ``name`` that ``text`` stands for.

    ``true`` or ``false``; a number, see :mod:`~sw_driver.numbers`; or a name, of ``rules``
    several with commas between them. Raises :class:`~sw_driver.device.errors.InvalidArgumentError`
    for anything else.
    """
    check_name("a key", name, keys)
    kind, text = keys[name], text.strip()
    if not isinstance(kind, type):
        for each in text.split(",") if name == "rules" else [text]:
            check_name(name, each, kind)
        return text
    if kind is bool:
        value, expected = {"true": True, "false": False}.get(text.lower()), "true or false"
    elif kind is int:
        value, expected = parse_integer(text), NUMBER_FORMS
    else:
        value, expected = parse_number(text), "a number"
    if value is None:
        raise InvalidArgumentError(f"{name} is {text!r}: expected {expected}")
    return value


def read_settings(config: str | None, entries: Iterable[str], keys: Keys) -> dict[str, Value]:
    """The settings of ``--config`` and ``--set``; the latter count where a file has them, too.

    ``config`` is the name of a preset or of a TOML file with a value for each key, ``entries`` are
    ``KEY=VALUE``. Raises :class:`~sw_driver.device.errors.InvalidArgumentError`.
    """
    texts = _read(config, entries, (), keys)
    return {name: parse_value(name, ",".join(each), keys) for name, each in texts.items()}


def read_grid(
    config: str | None, entries: Iterable[str], axes: Iterable[str]
) -> dict[str, list[Value]]:
    """The values of each of :data:`KEYS` that a sweep is told, as by :func:`read_settings`.

    ``axes`` are ``KEY=V1,V2,...``; in a file they are lists.
    """
    grid: dict[str, list[Value]] = {}
    for name, texts in _read(config, entries, axes, KEYS).items():
        grid[name] = []
        for text in texts:
            value = parse_value(name, text)
            if value in grid[name]:
                raise InvalidArgumentError(f"{name} has the value {text!r} twice: drop one")
            grid[name].append(value)
    return grid


def _read(
    config: str | None, entries: Iterable[str], axes: Iterable[str], keys: Keys
) -> dict[str, list[str]]:
    """The texts of each key's values."""
    named = config in keys["preset"]
    given: dict[str, list[str]] = {"preset": [str(config)]} if named else {}
    for entry in entries:
        name, text = split_entry(entry)
        _take(given, name, [text])
    for entry in axes:
        name, text = split_entry(entry, "--axis", "KEY=V1,V2,...")
        _take(given, name, text.split(","))
    return given if config is None or named else given | _read_file(config, keys["preset"]) | given


def _take(given: dict[str, list[str]], name: str, texts: list[str]) -> None:
    if name in given:
        raise InvalidArgumentError(f"{name} is given twice: give it once, all values together")
    given[name] = texts


def _read_file(path: str, presets: Iterable[str]) -> dict[str, list[str]]:
    try:
        content = tomllib.loads(Path(path).read_text())
    except FileNotFoundError:
        check_name("the configuration, which is no TOML file,", path, presets)
        raise
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidArgumentError(f"the configuration {path!r} cannot be read: {error}") from error
    for name, value in content.items():
        if isinstance(value, dict):
            raise InvalidArgumentError(
                f"the configuration {path!r} has a table [{name}]: expected KEY = VALUE lines"
            )
    return {
        name: [plain(each) for each in value] or [""] if isinstance(value, list) else [plain(value)]
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
    """The values as a TOML file, which :func:`read_settings` reads."""
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
