"""Choice of the operations of a profiled step that are offered to the PIMs.

As in Liu et al. (III-C), operations are sorted by time, and by accesses to main memory, both in
descending order. Then they are sorted by the sum of their places in both lists. The first of these
that make 90 % of the step's time are chosen. The paper leaves ties open. Here, operations that are
equal in a list have the same place in it. Of equal sums the longer time goes first, then the name.
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
"""Share of the step's time of the chosen operations, in the paper's evaluation."""

_COLUMNS = ["operation", "time", "accesses", "kind"]


@dataclass(frozen=True, kw_only=True)
class Profiled:
    """Time and accesses of an operation in the profiled step.

    Examples
    --------
    >>> times = {"conv": (80, 900), "relu": (5, 300), "copy": (15, 20)}
    >>> rows = [Profiled(operation=name, time=t, accesses=n) for name, (t, n) in times.items()]
    >>> [row.operation for row in ranking(rows)]
    ['conv', 'copy', 'relu']
    """

    operation: str
    """Unique name."""
    time: float
    """Time, in any unit that is the same for all."""
    accesses: float
    """Accesses to main memory."""
    kind: str = ""
    """Type, such as ``Conv2D``; the name if it is empty."""

    def __post_init__(self) -> None:
        if not self.operation:
            raise InvalidArgumentError("the name of an operation is empty: expected a text")
        check_fields(self, "time", "accesses")


def ranking(rows: Iterable[Profiled]) -> list[Profiled]:
    """Return the operations by the sum of their places, those to offload first."""
    rows = list(rows)
    by_time, by_accesses = (
        {value: place for place, value in reversed([*enumerate(sorted(values, reverse=True))])}
        for values in ([row.time for row in rows], [row.accesses for row in rows])
    )
    return sorted(
        rows,
        key=lambda row: (by_time[row.time] + by_accesses[row.accesses], -row.time, row.operation),
    )


def chosen(rows: Iterable[Profiled], share: float = SHARE) -> list[Profiled]:
    """Return the first operations of the ranking, as few as make a share of the time.

    ``share`` is from 0 to 1. Raises :class:`~sw_driver.device.errors.InvalidArgumentError` if
    nothing takes any time.
    """
    check_number("share", share, 0, 1)
    ranked = ranking(rows)
    if not any(row.time for row in ranked):
        raise InvalidArgumentError(f"none of {len(ranked)} operations takes time: profile a step")
    lacking = _exact(share) * sum(_exact(row.time) for row in ranked)
    picked = []
    for row in ranked:
        if lacking <= 0:
            break
        picked.append(row)
        lacking -= _exact(row.time)
    return picked


def _exact(number: float) -> Fraction:
    """Return a number as it is written: nine times 0.1 is 90 % of ten times 0.1."""
    return Fraction(str(number))


def by_type(rows: Iterable[Profiled]) -> list[Profiled]:
    """Return one row for each type, with the sums of its operations."""
    grouped: dict[str, list[Profiled]] = {}
    for row in rows:
        grouped.setdefault(row.kind or row.operation, []).append(row)
    return [
        Profiled(
            operation=kind,
            time=float(sum(_exact(row.time) for row in group)),
            accesses=float(sum(_exact(row.accesses) for row in group)),
            kind=kind,
        )
        for kind, group in grouped.items()
    ]


def read_profile(path: Path) -> list[Profiled]:
    """Read a profile from a CSV file.

    Its columns are ``operation``, ``time``, ``accesses`` and, if types are known, ``kind``. Raises
    :class:`~sw_driver.device.errors.InvalidArgumentError` with the line for an invalid file, and
    for two operations of one name; and ``OSError`` for a file that cannot be read.
    """
    rows: dict[str, Profiled] = {}
    where = "line 1"
    try:
        lines = csv.reader(StringIO(path.read_text(encoding="utf-8-sig"), newline=""), strict=True)
        header = [name.strip() for name in next(lines, [])]
        if sorted(header) not in (sorted(_COLUMNS), sorted(_COLUMNS[:3])):
            raise ValueError(f"its columns are {header}: expected {_COLUMNS}, or all but kind")
        for cells in filter(None, lines):
            where = f"line {lines.line_num}"
            if len(cells) != len(header):
                raise ValueError(f"it has {len(cells)} fields: expected {len(header)}, {header}")
            fields: dict[str, Any] = dict(zip(header, map(str.strip, cells), strict=True))
            if fields["operation"] in rows:
                raise ValueError(
                    f"a second operation is named {fields['operation']!r}: number them, and give "
                    "what they have in common as kind"
                )
            for name in ("time", "accesses"):
                with suppress(ValueError):
                    fields[name] = float(fields[name])
            rows[fields["operation"]] = Profiled(**fields)
    except (ValueError, csv.Error) as error:  # also invalid UTF-8
        raise InvalidArgumentError(f"{path}, {where}: {error}") from error
    return list(rows.values())


def write_profile(path: Path, rows: Iterable[Profiled]) -> None:
    """Write a profile for :func:`read_profile`."""
    text = StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    writer.writerows([getattr(row, name) for name in _COLUMNS] for row in rows)
    write_whole(path, text.getvalue())
