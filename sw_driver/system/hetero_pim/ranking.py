"""Which operations of a profiled step are offered to the PIMs.

As Liu et al. have it (III-C): operations are sorted by time, and by accesses to main memory, both
in descending order; by the sum of their places in both lists; and the first of these that make 90 %
of the step's time are chosen. What the paper leaves open is decided so: operations that are equal
in a list have the same place in it, and of equal sums the longer time goes first, then the name.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from io import StringIO
from pathlib import Path
from typing import Any

from sw_driver.device.errors import InvalidArgumentError
from sw_driver.files import write_whole
from sw_driver.numbers import check_fields, check_number

__all__ = ["SHARE", "Profiled", "by_type", "chosen", "ranking", "read_profile", "write_profile"]

SHARE = 0.9
"""Of the step's time, that the chosen operations make in the paper's evaluation."""

_COLUMNS = ["operation", "time", "accesses", "kind"]


@dataclass(frozen=True, kw_only=True)
class Profiled:
    """What an operation took in the profiled step."""

    operation: str
    """Its name, which no other has."""
    time: float
    """In any unit, for all the same."""
    accesses: float
    """To main memory."""
    kind: str = ""
    """Its type, such as ``Conv2D``; the name if it is empty."""

    def __post_init__(self) -> None:
        if not self.operation:
            raise InvalidArgumentError("the name of an operation is empty: expected a text")
        check_fields(self, "time", "accesses")


def ranking(rows: Iterable[Profiled]) -> list[Profiled]:
    """The operations by the sum of their places, those to offload first."""
    rows = list(rows)
    by_time, by_accesses = (
        {value: place for place, value in reversed([*enumerate(sorted(values, reverse=True))])}
        for values in ([each.time for each in rows], [each.accesses for each in rows])
    )
    return sorted(
        rows,
        key=lambda row: (by_time[row.time] + by_accesses[row.accesses], -row.time, row.operation),
    )


def chosen(rows: Iterable[Profiled], share: float = SHARE) -> list[Profiled]:
    """The first of the ranking, as few as make this share of the time, from 0 to 1.

    Raises :class:`~sw_driver.device.errors.InvalidArgumentError` if nothing takes any time.
    """
    check_number("share", share, 0, 1)
    ranked = ranking(rows)
    if not any(each.time for each in ranked):
        raise InvalidArgumentError(f"none of {len(ranked)} operations takes time: profile a step")
    lacking = _exact(share) * sum(_exact(each.time) for each in ranked)
    found = []
    for each in ranked:
        if lacking <= 0:
            break
        found.append(each)
        lacking -= _exact(each.time)
    return found


def _exact(number: float) -> Fraction:
    """As it is written: nine times 0.1 are 90 % of ten times that."""
    return Fraction(str(number))


def by_type(rows: Iterable[Profiled]) -> list[Profiled]:
    """One of each type, with what all of it took."""
    found: dict[str, list[Profiled]] = {}
    for each in rows:
        found.setdefault(each.kind or each.operation, []).append(each)
    return [
        Profiled(
            operation=kind,
            time=float(sum(_exact(each.time) for each in of)),
            accesses=float(sum(_exact(each.accesses) for each in of)),
            kind=kind,
        )
        for kind, of in found.items()
    ]


def read_profile(path: Path) -> list[Profiled]:
    """The operations in a CSV file with the columns ``operation``, ``time``, ``accesses`` and, if
    types are known, ``kind``.

    Raises :class:`~sw_driver.device.errors.InvalidArgumentError` with the line for what is none,
    and for two operations of a name; and ``OSError`` for a file that cannot be read.
    """
    rows: dict[str, Profiled] = {}
    where = "line 1"
    try:
        lines = csv.reader(StringIO(path.read_text(encoding="utf-8-sig"), newline=""), strict=True)
        header = [each.strip() for each in next(lines, [])]
        if sorted(header) not in (sorted(_COLUMNS), sorted(_COLUMNS[:3])):
            raise ValueError(f"its columns are {header}: expected {_COLUMNS}, or all but kind")
        for cells in filter(None, lines):
            where = f"line {lines.line_num}"
            if len(cells) != len(header):
                raise ValueError(f"it has {len(cells)} fields: expected {len(header)}, {header}")
            found: dict[str, Any] = dict(zip(header, map(str.strip, cells), strict=True))
            if found["operation"] in rows:
                raise ValueError(
                    f"a second operation is named {found['operation']!r}: number them, and give "
                    "what they have in common as kind"
                )
            for name in ("time", "accesses"):
                with suppress(ValueError):
                    found[name] = float(found[name])
            rows[found["operation"]] = Profiled(**found)
    except (ValueError, csv.Error) as error:  # no UTF-8 is such, too
        raise InvalidArgumentError(f"{path}, {where}: {error}") from error
    return list(rows.values())


def write_profile(path: Path, rows: Iterable[Profiled]) -> None:
    """Writes what :func:`read_profile` reads."""
    text = StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    writer.writerows([getattr(each, name) for name in _COLUMNS] for each in rows)
    write_whole(path, text.getvalue())
