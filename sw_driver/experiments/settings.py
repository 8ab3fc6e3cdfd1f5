"""Settings of the module, the PIM and a sweep's points: keys, values, text forms."""

from __future__ import annotations

import ast
import inspect
import json
import re
import tomllib
import traceback
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from textwrap import dedent, wrap
from typing import Any, TypeAlias, cast, get_type_hints

import golden.rules
import hw.rules
from hw.axdimm.config import HOSTS, MEMORIES, MODULE_PRESETS, OPTIONS, ModuleConfig, configure
from hw.dram.config import ControllerConfig
from hw.dram.geometry import DramGeometry
from hw.dram.presets import PARTS, DramPart
from hw.dram.timing import DramTiming
from hw.kernel.config import SUBNORMALS
from hw.logic.clocking import CLOCKINGS
from hw.memory_node.config import MEMORY_NODE_PRESETS
from hw.narrow.formats import MIXTURES
from hw.pim.config import OPTIONS as PIM_OPTIONS
from hw.pim.config import PIM_PRESETS, PimConfig, ThermalWeights
from hw.pim.config import configure as configure_pim
from hw.rules import MISTAKES, RULES

from ..device.errors import InvalidArgumentError
from ..numbers import NUMBER_FORMS, check_name, parse_integer, parse_number, split_entry
from ..report import Report

__all__ = [
    "KEYS",
    "MODULE_KEYS",
    "PIM_KEYS",
    "Keys",
    "Value",
    "check_rule",
    "meanings",
    "module_values",
    "parse_value",
    "pim_values",
    "plain",
    "read_grid",
    "read_settings",
    "report",
    "rule_mistake",
    "settings_page",
    "text_of",
    "toml",
]

Value: TypeAlias = bool | int | float | str

Keys: TypeAlias = Mapping[str, Any]
"""Values that a key takes, by key: the type ``bool``, ``int`` or ``float``, or a set of names."""


def _keys(options: Iterable[str], holders: Iterable[type], **names: Iterable[str]) -> Keys:
    """Return the keys ``options``, with ``names`` or the types of the fields in ``holders``."""
    hints = {name: hint for holder in holders for name, hint in get_type_hints(holder).items()}
    numbers = {name: hints[name] if hints.get(name) in (bool, float) else int for name in options}
    return {"preset": names["preset"], **numbers, **names}


_MODULE = (ModuleConfig, ControllerConfig, DramPart, DramTiming, DramGeometry)
_PIM = (PimConfig, ThermalWeights)

MODULE_KEYS = _keys(
    OPTIONS,
    _MODULE,
    preset=MODULE_PRESETS,
    part=PARTS,
    memory=MEMORIES,
    rules=RULES,
    clocking=CLOCKINGS,
    subnormals=SUBNORMALS,
    host=HOSTS,
)
"""Keys of a module's configuration."""

KEYS: Keys = {**MODULE_KEYS, "count": int, "stagger": bool, "formats": MIXTURES}
"""Keys of a sweep's points: those of a module, and three more.

``count``: parameters of each channel; ``stagger``: placement by the driver; ``formats``: formats of
the tensors, in a kernel with narrow formats.
"""

PIM_KEYS = _keys(
    PIM_OPTIONS,
    _PIM,
    preset=PIM_PRESETS,
    clocking=CLOCKINGS,
)
"""Keys of a PIM's configuration."""


def check_rule(label: str, name: str, known: Iterable[str] = RULES) -> None:
    """Raise the error of a rule's file, else as :func:`~sw_driver.numbers.check_name`."""
    if name in MISTAKES:
        raise MISTAKES[name]
    check_name(label, name, known)


def rule_mistake(error: Exception) -> str | None:
    """Return the message for a mistake in a rule's file, with file and line.

    Return None if ``error`` has another cause.
    """
    if isinstance(error, (golden.rules.UnknownRuleError, hw.rules.RuleFileError)):
        return str(error)
    folders = {Path(package.__file__ or "").parent for package in (hw.rules, golden.rules)}
    places = [(place.filename, place.lineno) for place in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        places.append((error.filename or "", error.lineno))
    for file, line in reversed(places):
        path = Path(file)
        if path.parent in folders and path.stem not in ("__init__", "update_rule"):
            message = error.msg if isinstance(error, SyntaxError) else error
            return f"{file}:{line}: {type(error).__name__}: {message}"
    return None


def parse_value(name: str, text: str, keys: Keys = KEYS) -> Value:
    """Return the value of the key ``name`` from its ``text``.

    The text is ``true`` or ``false``; a number, see :mod:`~sw_driver.numbers`; or a name (for
    ``rules`` also several, with commas between them). Raise
    :class:`~sw_driver.device.errors.InvalidArgumentError` for anything else.
    """
    check_name("a key", name, keys)
    kind, text = keys[name], text.strip()
    if not isinstance(kind, type):
        check = check_rule if name == "rules" else check_name
        for word in text.split(",") if name == "rules" else [text]:
            check(name, word, kind)
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
    """Return the settings of ``--config`` and ``--set``; the latter override a file.

    ``config`` is the name of a preset or of a TOML file with a value for each key. ``entries`` are
    ``KEY=VALUE``. Raise :class:`~sw_driver.device.errors.InvalidArgumentError` for bad input.
    """
    texts = _read(config, entries, (), keys)
    return {name: parse_value(name, ",".join(words), keys) for name, words in texts.items()}


def read_grid(
    config: str | None, entries: Iterable[str], axes: Iterable[str]
) -> dict[str, list[Value]]:
    """Return a sweep's values by key (see :data:`KEYS`); else as :func:`read_settings`.

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
    """Return the texts of the values, by key."""
    named = config in keys["preset"]
    given: dict[str, list[str]] = {"preset": [str(config)]} if named else {}
    for entry in entries:
        name, text = split_entry(entry)
        _take(given, name, [text])
    for entry in axes:
        name, text = split_entry(entry, "--axis", "KEY=V1,V2,...")
        _take(given, name, text.split(","))
    if {"rows", "capacity_bytes"} <= given.keys():
        raise InvalidArgumentError("rows and capacity_bytes set the same thing: leave one out")
    return given if config is None or named else given | _read_file(config, keys["preset"]) | given


def _take(given: dict[str, list[str]], name: str, texts: list[str]) -> None:
    if name in given:
        raise InvalidArgumentError(f"{name} is given twice: give it once, all values together")
    given[name] = texts


def _read_file(path: str, presets: Iterable[str]) -> dict[str, list[str]]:
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        check_name("the configuration, which is not a TOML file,", path, presets)
        raise
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidArgumentError(f"the configuration {path!r} cannot be read: {error}") from error
    for name, value in content.items():
        if isinstance(value, dict):
            raise InvalidArgumentError(
                f"the configuration {path!r} has a table [{name}]: expected KEY = VALUE lines"
            )
    return {
        name: [plain(item) for item in value] or [""] if isinstance(value, list) else [plain(value)]
        for name, value in content.items()
    }


def module_values(settings: Mapping[str, Value]) -> dict[str, Value]:
    """Return all settings of the module with ``settings``; see :data:`MODULE_KEYS`."""
    config = configure(**settings)  # type: ignore[arg-type]
    part = config.part
    holders = (config, config.controller, part, part.timing, part.geometry)
    values = {
        name: getattr(next(holder for holder in holders if hasattr(holder, name)), name)
        for name in OPTIONS
        if name != "capacity_bytes"  # it follows from the geometry
    }
    return {**values, "part": part.base, "rules": ",".join(config.rules)}


def pim_values(settings: Mapping[str, Value]) -> dict[str, Value]:
    """Return all settings of the PIM with ``settings``; see :data:`PIM_KEYS`."""
    config = configure_pim(**settings)  # type: ignore[arg-type]
    return {
        name: getattr(config if hasattr(config, name) else config.weights, name)
        for name in PIM_OPTIONS
    }


def report(preset: str | None = None, entries: Iterable[str] = ()) -> Report:
    """Report the names of all presets, or one configuration as a TOML file.

    ``entries`` are changes, as for :func:`read_settings`. Raise ``ValueError`` for an impossible
    configuration.
    """
    if preset is None:
        known = {"module": MODULE_PRESETS, "pim": PIM_PRESETS, "memory-node": MEMORY_NODE_PRESETS}
        names = {name: list(presets) for name, presets in known.items()}
        return Report(results=names, parts=[f"{k}: {', '.join(names[k])}" for k in names])
    if not Path(preset).exists():
        known_presets = {**MODULE_PRESETS, **PIM_PRESETS}
        check_name("the configuration, which is not a TOML file,", preset, known_presets)
    # Module and PIM both have a preset `tiny`: take the module's.
    pim = preset in PIM_PRESETS and preset not in MODULE_PRESETS
    keys = PIM_KEYS if pim else MODULE_KEYS
    settings = read_settings(preset, entries, keys)
    values = pim_values(settings) if pim else module_values(settings)
    parts = toml(values, meanings(keys)).splitlines()
    return Report(results=values, parts=parts)


def toml(values: Mapping[str, Value], meanings: Mapping[str, str] | None = None) -> str:
    """Return a TOML file that :func:`read_settings` reads; ``meanings`` become comments."""
    lines = []
    for name, value in values.items():
        text = (meanings or {}).get(name)
        if text:
            lines += ["", *wrap(text, 100, initial_indent="# ", subsequent_indent="# ")]
        lines.append(f"{name} = {json.dumps(value)}")
    return "\n".join(lines).strip() + "\n"


def meanings(keys: Keys) -> dict[str, str]:
    """Return the meanings of :data:`MODULE_KEYS` or :data:`PIM_KEYS`, with the names they take.

    The texts are the docstrings of the configurations' fields.
    """
    docstrings: dict[str, str] = {}
    for holder in _PIM if keys is PIM_KEYS else _MODULE:
        for name, text in _field_docstrings(holder).items():
            docstrings.setdefault(name, text)
    texts = {}
    for name, kind in keys.items():
        text = _REFERENCE.sub("", docstrings.get(name, "")).rstrip(".")
        choices = [] if isinstance(kind, type) else list(kind)
        if choices and name != "preset":
            text += f". One of {', '.join(choices)}" if text else f"One of {', '.join(choices)}"
        texts[name] = f"{text}." if text else ""
    return texts


def settings_page() -> str:
    """Return a Markdown page of all settings with defaults and meanings."""
    lines = ["# Settings", ""]
    for title, keys, values in (
        ("The AXDIMM module", MODULE_KEYS, module_values({"preset": "axdimm"})),
        ("The PIM", PIM_KEYS, pim_values({"preset": "paper"})),
    ):
        texts = meanings(keys)
        presets = ", ".join(f"`{name}`" for name in keys["preset"])
        lines += [f"## {title}", "", f"Presets: {presets}; the values are those of the first.", ""]
        lines += ["| setting | value | meaning |", "|---|--:|---|"]
        for name, value in values.items():
            lines.append(
                f"| `{name}` | {plain(value)} | {texts[name].replace('|', chr(92) + '|')} |"
            )
        lines.append("")
    return "\n".join(lines)


_REFERENCE = re.compile(r"[;,] (?:see|one of) :\w+:`[^`]+`|:\w+:`(?:[^`]*\.)?(?=[^`]+`)|`")


def _field_docstrings(holder: type) -> dict[str, str]:
    """Return the docstrings of the fields of a class and its bases."""
    docstrings = {}
    for base in reversed(holder.__mro__[:-1]):
        body = cast(ast.ClassDef, ast.parse(dedent(inspect.getsource(base))).body[0]).body
        for field, text in pairwise(body):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
            ):
                docstrings[field.target.id] = " ".join(str(text.value.value).split())
    return docstrings


def plain(value: object) -> str:
    """Return ``value`` as text for options and tables: ``true``, ``4096``."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def text_of(name: str, value: Value) -> str:
    """Return ``value`` as text for readers: ``16 KiB``, ``4,000,000``, ``off``."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, str):
        return value
    if name.endswith("_bytes"):
        for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
            if value and value % size == 0:
                return f"{value // size} {unit}"
    return f"{value:,}"
