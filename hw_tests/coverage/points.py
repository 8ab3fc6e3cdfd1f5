"""Points that Verilator counts while a bench runs, by their place in the source."""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import amaranth
from amaranth import tracer
from amaranth.hdl._ast import Switch  # not exported

import hw
from hw.verilog import writer
from hw.verilog.text import source_place

__all__ = ["FOLDER", "HW", "Points", "merged", "record", "watch_builds"]

FOLDER = "NEARMEM_COVERAGE"
"""Environment variable with the folder of points; benches count points if it is there."""

HW = Path(next(iter(hw.__path__)))
AMARANTH = Path(amaranth.__file__).parent

Points = dict[str, Counter[str]]
"""Counts of ``lines``, ``branches`` and ``toggles`` by place: ``hw/folder/file.py:line``, for a
branch with its outcome, for a toggle with bit and direction. ``built`` has the assignments that
each clock or change carries out."""

_ARMS = {
    "if": "taken", "elsif": "taken", "else": "not taken", "case": "taken",
    "cond_then": "first value", "cond_else": "second value",
}  # fmt: skip
"""Outcomes of a branch by Verilator's name of the point."""

_SRC = re.compile(r'src = "(hw/[^"]+)"( \*\)$)?')


def read_points(file: Path) -> Iterator[tuple[dict[str, str], int]]:
    """Yield fields and count of the points in a ``coverage.dat`` of Verilator."""
    for line in file.read_text().splitlines():
        if line.startswith("C '"):
            fields, _, count = line[3:].rpartition("' ")
            parts = (field.partition("\x02") for field in fields.split("\x01") if field)
            yield {key: value for key, _, value in parts}, int(count)


def places_of(text: str) -> dict[int, str]:
    """Return the place in the source of the lines of a Verilog text, by number.

    An attribute ``src`` is that of its line, or of the next if it is alone. Verilog that is kept
    as such has places in its own file.
    """
    places: dict[int, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if match := _SRC.search(line):
            places[number + bool(match[2])] = match[1]
    for file in sorted(HW.rglob("*.v")):
        content = file.read_text()
        if (at := text.find(content)) >= 0:
            first = text.count("\n", 0, at)
            name = file.relative_to(HW.parent).as_posix()
            places |= {first + n: f"{name}:{n}" for n in range(1, content.count("\n") + 1)}
    return places


def points_of(text: str, file: Path) -> Points:
    """Return the points of a ``coverage.dat``, which a model of the Verilog ``text`` wrote."""
    places = places_of(text)
    points: Points = defaultdict(Counter)
    for fields, count in read_points(file):
        place = places.get(int(fields["l"]))
        name = fields["o"]
        if fields["t"] == "toggle":
            if place:
                bit = re.sub(r"^[^\[:]*", "", name)
                points["toggles"][f"{place} {bit}"] += count
            continue
        for line in _numbers(fields.get("S", "")):
            if line in places:
                points["lines"][places[line]] += count
        if place and name in _ARMS:
            points["branches"][f"{place} {_ARMS[name]}"] += count
    return points


def _numbers(ranges: str) -> Iterator[int]:
    for part in filter(None, ranges.split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def record(name: str, text: str, file: Path) -> None:
    """Write the points of a bench's run to the folder that ``NEARMEM_COVERAGE`` names."""
    if file.exists():
        folder = Path(os.environ[FOLDER])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.json").write_text(json.dumps(points_of(text, file)))
        (folder / f"built-{os.getpid()}.json").write_text(json.dumps({"built": _built}))


def merged(folder: Path) -> Points:
    """Return the sum of all points in ``folder``."""
    total: Points = defaultdict(Counter)
    for file in sorted(folder.glob("*.json")):
        for kind, counts in json.loads(file.read_text()).items():
            for key, count in counts.items():
                total[kind][key] += count
    return total


_built: Counter[str] = Counter()
"""Designs of this process by place: 1 or more for an assignment without a condition, which each
clock or change carries out, and 0 for one that has a condition everywhere."""


def watch_builds() -> ExitStack:
    """Have all Verilog give its places, and note the assignments in it, until it is closed."""
    netlist_of, module_text = writer.netlist_of, writer.module_text

    def watched(fragment: Any, ports: Any, name: str) -> Any:
        for place, always in _assignments(fragment):
            _built[place] += always
        return netlist_of(fragment, ports, name)

    def with_places(*arguments: Any, **options: Any) -> str:
        return module_text(*arguments, **{**options, "src": True})

    def place_outside(src_loc_at: int = 0) -> tuple[str, int]:
        # Amaranth's own place is that of the assignment to a view, wherever that is.
        frame: Any = sys._getframe(2 + src_loc_at)
        while frame.f_back and AMARANTH in Path(frame.f_code.co_filename).parents:
            frame = frame.f_back
        return frame.f_code.co_filename, frame.f_lineno

    patches = ExitStack()
    patches.enter_context(mock.patch.object(tracer, "get_src_loc", place_outside))
    patches.enter_context(mock.patch.object(writer, "netlist_of", watched))
    patches.enter_context(mock.patch.object(writer, "module_text", with_places))
    return patches


def _assignments(fragment: Any) -> Iterator[tuple[str, bool]]:
    """Yield the place of each assignment of a fragment, and True if it has no condition."""

    def inside(statements: Any, always: bool) -> Iterator[tuple[str, bool]]:
        for statement in statements:
            if isinstance(statement, Switch):
                for _, inner, _ in statement.cases:
                    yield from inside(inner, False)
            else:
                yield source_place(*statement.src_loc[:2]), always

    for statements in fragment.statements.values():
        yield from inside(statements, True)
    for inner, _, _ in fragment.subfragments:
        yield from _assignments(inner)
