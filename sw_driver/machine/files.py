"""Machine files: measured figures of a machine, and the name of a base for all others.

A file has a line for a figure, by the keys of :attr:`~sw_driver.machine.machine.Machine.keys`::

    base = "rtx4090"
    gpu.memory_share = {value = 0.91, source = "nearmem measure, 2026-12-01", mark = "measured"}
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ..device.errors import InvalidArgumentError, shown
from ..numbers import check_name
from .machine import Machine
from .parts import MARKS, Figure, MachineError

__all__ = ["MachineFile", "read_machine_file"]


@dataclass(frozen=True, kw_only=True)
class MachineFile:
    """Figures of a machine, with the name of the machine that has the others.

    Examples
    --------
    >>> from sw_driver.machine.parts import measured
    >>> from sw_driver.machine.tiny import TINY
    >>> mine = MachineFile(base="tiny", figures={"ddr.read_gb_per_s": measured(5, "a stopwatch")})
    >>> mine.applied(TINY).link("ddr").read_gb_per_s.mark
    'measured'
    """

    path: Path = Path("machine.toml")
    base: str
    """Name of the other machine; empty if it is not known."""
    figures: Mapping[str, Figure] = field(default_factory=dict)

    def applied(self, base: Machine) -> Machine:
        """Return the base with these figures; its name has those of base and file.

        Raises :class:`~sw_driver.device.errors.InvalidArgumentError` for an unknown key or an
        impossible value.
        """
        try:
            machine = base.override(self.figures)
        except MachineError as error:
            raise InvalidArgumentError(f"{self.path}: {error}") from error
        return replace(machine, name=f"{base.name} ({self.path.name})")

    @property
    def text(self) -> str:
        """The file in TOML, which :func:`read_machine_file` reads."""
        lines = [f"base = {json.dumps(self.base)}"] * bool(self.base)
        for key, figure in self.figures.items():
            entries = (
                f"{part.name} = {json.dumps(getattr(figure, part.name), ensure_ascii=False)}"
                for part in fields(figure)
            )
            lines.append(f"{key} = {{{', '.join(entries)}}}")
        return "\n".join(lines) + "\n"


def read_machine_file(path: str | Path) -> MachineFile:
    """Return what a machine file has; raise ``OSError`` if it cannot be read.

    Raises :class:`~sw_driver.device.errors.InvalidArgumentError` for another form than
    :attr:`MachineFile.text` has. The base and the keys are checked where they are used.
    """
    path = Path(path)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidArgumentError(f"{path} is no TOML file: {error}") from error
    base = content.pop("base", "")
    if not isinstance(base, str):
        raise InvalidArgumentError(f"{path}: base is {shown(base)}: expected the name of a machine")
    figures = {}
    for part, entries in content.items():
        if not isinstance(entries, dict):
            raise InvalidArgumentError(
                f"{path}: {part} is {shown(entries)}: expected base, or the key of a figure, such "
                f"as gpu.gb_per_s"
            )
        for name, entry in entries.items():
            figures[f"{part}.{name}"] = _figure(f"{path}: {part}.{name}", entry)
    return MachineFile(path=path, base=base, figures=figures)


def _figure(key: str, entry: Any) -> Figure:
    expected = [field.name for field in fields(Figure)]
    if not isinstance(entry, dict) or not {*expected} <= {*entry}:
        raise InvalidArgumentError(
            f"{key} is {shown(entry)}: expected {', '.join(expected)} in braces"
        )
    for name in entry:
        check_name(f"{key}: the field", name, expected)
    check_name(f"{key}: mark", entry["mark"], MARKS)
    if not isinstance(entry["source"], str) or not entry["source"]:
        raise InvalidArgumentError(f"{key}: source is {shown(entry['source'])}: expected some text")
    return Figure(**entry)
