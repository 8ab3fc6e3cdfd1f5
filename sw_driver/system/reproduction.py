"""What a reproduction reports: figures of ours, and the paper's claims beside them, as data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isinf
from pathlib import Path
from typing import Any, TypeAlias

from sw_driver.numbers import MOST, check_integer, check_name, check_number
from sw_driver.report import Report, Table

__all__ = [
    "HEADING",
    "LEGEND",
    "MARKS",
    "VERDICTS",
    "Changes",
    "Claim",
    "Datum",
    "Experiment",
    "Progress",
    "Row",
    "above",
    "calibrated",
    "claims",
    "data",
    "given",
    "page",
    "predicted",
    "tally",
]

MARKS = {"given": " g", "calibrated": " c", "predicted": ""}
"""By the paper or a data sheet; fitted to the paper's figure; found with nothing fitted to it. Each
as a table shows it."""

VERDICTS = ("met", "missed")
"""Verdicts on claims."""

HEADING = ["claim", "section", "paper", "here", "deviation", "band", "verdict"]
"""Of a table with a claim a row."""

LEGEND = """\
In brackets is the paper's figure and how far ours is from it. *c* is calibrated, *g* given, all
others are predicted.
"""

Changes: TypeAlias = Mapping[str, str]
"""Of a machine or its parts, as ``--set`` has them."""

Progress: TypeAlias = Callable[[str], None]
"""Told what is being done now."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A figure of ours. With the paper's beside it, it is a claim, and judged by a band.

    Raises ``ValueError`` for a claim that has no band, or does not say where the paper has it.
    """

    ours: float
    mark: str
    """One of :data:`MARKS`."""
    value: float | None = None
    """The paper's figure, if it has one."""
    section: str = ""
    """Where the paper has it: a section, a figure or a table."""
    unit: str = ""
    band: float | tuple[float, float] | None = None
    """The share of the paper's figure that ours may be away from it; or the least and the most that
    ours may be, infinite if there is no such end."""
    digits: int = 2

    def __post_init__(self) -> None:
        check_name("mark", self.mark, MARKS, ValueError)
        check_integer("digits", self.digits, 0)
        check_number("ours", self.ours, -MOST)
        if self.value is not None:
            check_number("value", self.value, -MOST)
        if isinstance(self.band, tuple):
            if not self.band[0] <= self.band[1] or self.band == (-inf, inf):
                raise ValueError(
                    f"band is {self.band!r}: expected the least, then the most, not both infinite"
                )
        elif self.band is not None:
            check_number("band", self.band)
        if self.value is not None and not self.section.strip():
            raise ValueError(f"the claim {self.value!r} has no section: say where it is")
        if self.value is not None and self.band is None:
            raise ValueError(
                f"the claim {self.value!r} is not judged: give a band, or make it one of the "
                "paper's data, with the reason"
            )

    @property
    def verdict(self) -> str:
        """One of :data:`VERDICTS`; empty if it is no claim."""
        if self.value is None or self.band is None:
            return ""
        low, high = self.band if isinstance(self.band, tuple) else _around(self.value, self.band)
        return "met" if low <= self.ours <= high else "missed"

    @property
    def deviation(self) -> float | None:
        """From the paper's figure, as a share of it."""
        return self.ours / self.value - 1 if self.value else None

    def __str__(self) -> str:
        ours, value, deviation = self.texts
        beside = ", ".join(each for each in (value, deviation) if each)
        return f"{ours} ({beside}){self.marks}" if beside else f"{ours}{self.marks}"

    @property
    def texts(self) -> tuple[str, str, str]:
        """Ours, the paper's and the deviation, empty where there is none."""
        ours, value = (
            "" if each is None else f"{each:,.{self.digits}f}" for each in (self.ours, self.value)
        )
        return ours, value, "" if self.deviation is None else f"{self.deviation:+.1%}"

    @property
    def marks(self) -> str:
        """What follows the figure in a table."""
        return MARKS[self.mark] + " MISSED" * (self.verdict == "missed")

    @property
    def beside(self) -> list[str]:
        """A row of a table: the paper's, ours, the deviation, the band and the verdict."""
        ours, value, deviation = self.texts
        band = ""
        if isinstance(self.band, tuple):
            band = f"{self.band[0]:g} to {self.band[1]:g}"
        elif self.band is not None:
            band = f"{100 * self.band:g} %"
        paper, here = (f"{each} {self.unit * bool(each)}".strip() for each in (value, ours))
        return [paper, here + self.marks, deviation, band, self.verdict]

    def describe(self) -> dict[str, Any]:
        """As JSON has it; an end that a band does not have is null."""
        band = self.band
        if isinstance(band, tuple):
            band = [None if isinf(end) else end for end in band]
        return {
            "section": self.section,
            "paper": self.value,
            "ours": self.ours,
            "unit": self.unit,
            "mark": self.mark,
            "band": band,
            "verdict": self.verdict,
        }


def _around(value: float, share: float) -> tuple[float, float]:
    return value - share * abs(value), value + share * abs(value)


def predicted(ours: float, value: float | None = None, **how: Any) -> Claim:
    """A figure that nothing was fitted to; so for the other two marks."""
    return Claim(ours=ours, value=value, mark="predicted", **how)


def calibrated(ours: float, value: float | None = None, **how: Any) -> Claim:
    return Claim(ours=ours, value=value, mark="calibrated", **how)


def given(ours: float, value: float | None = None, **how: Any) -> Claim:
    return Claim(ours=ours, value=value, mark="given", **how)


def claims(
    section: str,
    unit: str,
    band: float | tuple[float, float],
    figures: Mapping[str, tuple[float, float]],
    *,
    mark: str = "predicted",
    digits: int = 2,
) -> dict[str, Claim]:
    """Return claims by their names: the paper's figures, and ours, judged by a band."""
    return {
        name: Claim(
            ours=ours, value=value, section=section, unit=unit, band=band, mark=mark, digits=digits
        )
        for name, (value, ours) in figures.items()
    }


def above(
    section: str, least: float, figures: Mapping[str, Sequence[float]], *, mark: str = "predicted"
) -> dict[str, Claim]:
    """How many are above the least, where the paper says that all are."""
    found = {}
    for name, of in figures.items():
        both = {name: (len(of), sum(each > least for each in of))}
        found |= claims(section, f"of {len(of)}", 0, both, mark=mark, digits=0)
    return found


@dataclass(frozen=True, kw_only=True)
class Datum:
    """A figure of a paper that is not judged, and why.

    Raises ``ValueError`` for one that lacks its place in the paper or the reason.
    """

    name: str
    section: str
    """Where the paper has it: a section, a figure or a table."""
    value: float
    unit: str = ""
    why: str
    """One sentence: why it cannot be judged."""
    digits: int = 2

    def __post_init__(self) -> None:
        check_number("value", self.value, -MOST)
        check_integer("digits", self.digits, 0)
        for name in ("name", "section", "why"):
            if not getattr(self, name).strip():
                raise ValueError(f"the figure {self.value!r} has no {name}: expected words")

    def __str__(self) -> str:
        return f"{self.name}: {self.value:,.{self.digits}f} {self.unit}".strip()


def data(
    section: str, unit: str, why: str, figures: Mapping[str, float], *, digits: int = 2
) -> tuple[Datum, ...]:
    """Return figures of a paper, by their names, that are not judged for one reason."""
    return tuple(
        Datum(name=name, section=section, value=value, unit=unit, why=why, digits=digits)
        for name, value in figures.items()
    )


Row: TypeAlias = Mapping[str, Claim | str]
"""A row of a table: by column a figure, or words."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or figure of a paper, made again."""

    title: str
    rows: Sequence[Row] = ()
    quoted: Mapping[str, Claim] = field(default_factory=dict)
    """By what they claim, those that are in no row: what the paper says in words."""
    notes: Sequence[str] = ()
    """What a reader has to know to judge the figures."""
    why_missed: str = ""
    """Reasons of missed claims, a note that is shown while one is missed."""
    draw: Callable[[Path], Sequence[Path]] | None = None
    """Draws its pictures, to a path without an ending, and returns their files."""

    @property
    def claims(self) -> dict[str, Claim]:
        """All claims, those of rows by the words of the row, with their columns, and the column.
        Raises ``ValueError`` for two of one name."""
        found: dict[str, Claim] = {}
        for row in [*self.rows, self.quoted]:
            words = [
                f"{name} {each}".strip() for name, each in row.items() if isinstance(each, str)
            ]
            for column, each in row.items():
                if isinstance(each, Claim) and each.verdict:
                    name = ", ".join([*words, column])
                    if name in found:
                        raise ValueError(f"{self.title}: two claims are named {name!r}: rename one")
                    found[name] = each
        return found

    @property
    def _notes(self) -> list[str]:
        missed = any(claim.verdict == "missed" for claim in self.claims.values())
        return [*self.notes, *[f"Missed: {self.why_missed}"] * (missed and bool(self.why_missed))]

    @property
    def report(self) -> Report:
        """What a page and a terminal show of it, with its claims as results."""
        claims = self.claims
        parts: list[Table | str] = []
        if self.rows:
            columns = list(dict.fromkeys(column for row in self.rows for column in row))
            cells = [[str(row.get(column, "")) for column in columns] for row in self.rows]
            parts.append(Table(headings=columns, rows=cells))
        parts += self._notes
        if self.quoted:
            rows = [[name, claim.section, *claim.beside] for name, claim in self.quoted.items()]
            parts.append(Table(headings=HEADING, rows=rows))
        if claims:
            sections = ", ".join(dict.fromkeys(claim.section for claim in claims.values()))
            parts.append(f"Claims ({sections}): {tally(claims.values())}.")
        results = [{"claim": name, **claim.describe()} for name, claim in claims.items()]
        return Report(title=self.title, parts=parts, results=results)

    def describe(self) -> dict[str, Any]:
        """All of its figures, as JSON has them."""
        return {
            "title": self.title,
            "rows": [
                {
                    name: each if isinstance(each, str) else _whole(each)
                    for name, each in row.items()
                }
                for row in self.rows
            ],
            "quoted": {name: _whole(each) for name, each in self.quoted.items()},
            "notes": self._notes,
        }


def _whole(claim: Claim) -> dict[str, Any]:
    return {**claim.describe(), "deviation": claim.deviation}


def tally(claims: Iterable[Claim]) -> str:
    """Return how many claims have which verdict."""
    found = Counter(each.verdict for each in claims)
    return ", ".join(f"{found[each]} {each}" for each in VERDICTS if found[each])


def page(
    introduction: str,
    experiments: Mapping[str, Experiment],
    pictures: Mapping[str, Sequence[str]],
    data: Sequence[Datum],
) -> str:
    """Return a page with all experiments as Markdown, with their pictures by their names."""
    claims = [each for made in experiments.values() for each in made.claims.values()]
    counted = f"**{len(claims)} claims:** {tally(claims)}."
    if data:
        counted += (
            f" Not judged are {len(data)} figures, [each with the reason](claims.md#not-judged)."
        )
    parts = [introduction.strip(), LEGEND.strip(), counted]
    for name, made in experiments.items():
        parts.append(made.report.markdown.strip())
        parts += [f"![{made.title}]({picture})" for picture in pictures.get(name, ())]
    return "\n\n".join(parts) + "\n"
