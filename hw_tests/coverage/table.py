"""Table of what benches reached of the hardware, by file, and its gaps."""

from __future__ import annotations

import ast
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hw_tests.coverage.points import HW, Points

__all__ = ["GOALS_PERCENT", "Gap", "Reached", "check_gaps", "load_gaps", "reached"]

GOALS_PERCENT = {"lines": 98, "branches": 90}
"""Least share of lines and branches that benches reach, apart from gaps that are argued."""

_CONDITIONS = ("If", "Elif", "Case", "State")


@dataclass(frozen=True, kw_only=True)
class Gap:
    """A line of source that benches do not reach, and why."""

    file: str
    line: str
    """Line as it is, without its indentation."""
    why: str


@dataclass(frozen=True, kw_only=True)
class Reached:
    """Points of one kind in one file, as (line number, outcome): those reached, and the others."""

    hit: frozenset[tuple[int, str]]
    missed: frozenset[tuple[int, str]]


def load_gaps(file: Path) -> list[Gap]:
    """Return the gaps that a file argues for."""
    return [Gap(**entry) for entry in tomllib.loads(file.read_text()).get("gap", [])]


def reached(points: Points) -> dict[str, dict[str, Reached]]:
    """Return lines, branches and toggles by file of ``hw``.

    Lines are those of assignments, conditions and of Verilog that is kept as such. An assignment
    without a condition counts when a bench's design has it, any other when it took place. Code that
    is in no bench's design counts as missed.
    """
    counts: defaultdict[str, defaultdict[str, defaultdict[tuple[int, str], int]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(int))
    )
    for kind in ("lines", "branches", "toggles", "built"):
        for key, count in points[kind].items():
            place, _, outcome = key.partition(" ")
            file, _, number = place.rpartition(":")
            if file.startswith("hw/") and not file.startswith("hw/verilog/"):  # its writer
                target = "lines" if kind == "built" else kind
                counts[file][target][int(number), outcome] += count
    for path in sorted(HW.rglob("*.py")):
        file = path.relative_to(HW.parent).as_posix()
        for number, name in hardware_lines(path.read_text()):
            counts[file]["lines"][number, ""] += 0
            branches = counts[file]["branches"]
            if name != "eq" and not any(known == number for known, _ in branches):
                branches[number, "taken"] += 0
    return {
        file: {
            kind: Reached(
                hit=frozenset(key for key, count in kinds[kind].items() if count),
                missed=frozenset(key for key, count in kinds[kind].items() if not count),
            )
            for kind in ("lines", "branches", "toggles")
        }
        for file, kinds in sorted(counts.items())
        if kinds["lines"]
    }


def hardware_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield numbers of the lines with an assignment or a condition, and the method called there."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            if name == "eq":
                yield node.func.end_lineno or node.lineno, name
            elif name in _CONDITIONS and ast.unparse(node.func.value) == "m":
                yield node.lineno, name


def check_gaps(
    table: dict[str, dict[str, Reached]], gaps: list[Gap]
) -> tuple[set[tuple[str, int]], list[str]]:
    """Return the places that gaps argue for, and an error for each gap that is stale."""
    argued: set[tuple[str, int]] = set()
    errors: list[str] = []
    for gap in gaps:
        path = HW.parent / gap.file
        lines = path.read_text().splitlines() if path.is_file() else []
        same = {number for number, line in enumerate(lines, 1) if line.strip() == gap.line}
        missed = {
            (gap.file, number)
            for kind in GOALS_PERCENT
            if gap.file in table
            for number, _ in table[gap.file][kind].missed
            if number in same
        }
        if not missed:
            state = "is reached" if same else "is not there"
            errors.append(f"stale gap, {gap.line!r} of {gap.file} {state}: take it out")
        argued |= missed
    return argued, errors
