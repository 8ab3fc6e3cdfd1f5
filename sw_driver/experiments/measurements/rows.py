"""Rows of published measurements, read from a CSV file."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

__all__ = ["COLUMNS", "SHIPPED", "Row", "RowError", "read_rows"]

SHIPPED = Path(__file__).with_name("training.csv")
"""The rows that ``nearmem validate training`` takes by default."""

_NUMBER = re.compile(r"[0-9][0-9,]*(?:\.[0-9]+)?(?:e[0-9]+)?", re.IGNORECASE)
_UNKNOWN = ("", "-", "?")


class RowError(ValueError):
    """Error for a row that cannot be predicted; its message names the field and a remedy."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A measurement as its file has it: texts by column."""

    id: str
    model: str
    params: str
    layers: str
    hidden: str
    heads: str
    """Heads of attention; ``32/8 kv`` has 32 of queries and 8 of keys and values."""
    seq: str
    micro_batch: str
    """Samples of a micro-batch on one GPU."""
    accum: str
    """Micro-batches of a step."""
    gpus: str
    gpu: str
    link: str
    precision: str
    optimizer: str
    offload: str
    checkpointing: str
    metric: str
    value: str
    """A number, or two as ``1.8..2.3``."""
    unit: str
    source: str

    def number(self, column: str, *, place: int = 0) -> int | None:
        """Return the number at a place of a field, None if unknown; ``24?`` is 24.

        Raises :class:`RowError` for another text.
        """
        text = getattr(self, column)
        if text in _UNKNOWN:
            return None
        parts = text.removesuffix("kv").rstrip(" ?").split("/")
        if not all(_NUMBER.fullmatch(part.strip()) for part in parts):
            raise RowError(f"{column} is {text!r}: expected a number, or - if it is unknown")
        value = float(parts[min(place, len(parts) - 1)].replace(",", ""))
        if value < 1 or value != int(value):
            raise RowError(f"{column} is {text!r}: expected a whole number of at least 1")
        return int(value)

    def known(self, column: str, *, place: int = 0) -> int:
        """Return the number at a place of a field; raise :class:`RowError` if it is unknown."""
        if (value := self.number(column, place=place)) is None:
            raise RowError(f"{column} is not given")
        return value

    @property
    def span(self) -> tuple[float, float]:
        """Least and largest measured value."""
        ends = [part.strip(" ~") for part in re.split(r"\.\.|(?<=[0-9])-(?=[0-9])", self.value)]
        if len(ends) > 2 or not all(_NUMBER.fullmatch(end) for end in ends):
            raise RowError(f"value is {self.value!r}: expected a number, or two as 1.8..2.3")
        low, high = (float(end.replace(",", "")) for end in (ends[0], ends[-1]))
        if not 0 < low <= high:
            raise RowError(f"value is {self.value!r}: expected a number above 0, or a range")
        return low, high


COLUMNS = tuple(field.name for field in fields(Row))
"""Columns of a file of rows, in any order."""


def read_rows(path: Path) -> tuple[list[Row], list[tuple[str, str]]]:
    """Return the rows of a file, and the ids of bad rows with what is wrong.

    Raises :class:`RowError` for a file without rows or without a column, and ``OSError`` for one
    that cannot be read.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return _parsed(path, csv.DictReader(file))
    except (UnicodeDecodeError, csv.Error) as error:
        raise RowError(f"{str(path)!r} is no CSV file in UTF-8: {error}") from error


def _parsed(path: Path, reader: csv.DictReader[str]) -> tuple[list[Row], list[tuple[str, str]]]:
    if lacking := [name for name in COLUMNS if name not in (reader.fieldnames or ())]:
        raise RowError(
            f"{str(path)!r} has no column {', '.join(lacking)}: expected a first line with "
            f"{','.join(COLUMNS)}"
        )
    rows, bad = [], []
    for number, cells in enumerate(reader, 2):
        texts: Iterable[object] = [cells[name] for name in COLUMNS]
        name = str(cells["id"] or f"line {number}")
        if None in texts or None in cells:
            length = sum(text is not None for text in texts) + len(cells.get(None) or ())
            bad.append((name, f"has {length} fields of {len(COLUMNS)}: write - for an unknown one"))
        else:
            rows.append(Row(**{column: str(cells[column]).strip() for column in COLUMNS}))
    twice = [name for name, times in Counter(row.id for row in rows).items() if times > 1]
    bad += [(name, "this is the id of several rows: give each its own") for name in twice]
    rows = [row for row in rows if row.id not in twice]
    if not rows and not bad:
        raise RowError(f"{str(path)!r} has no rows: write one under the line of columns")
    return rows, bad
