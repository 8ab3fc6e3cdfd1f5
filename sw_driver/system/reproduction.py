"""Results of a reproduction as data: our figures, with the paper's claims beside them."""

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

MARKS = {"given": " g", "calibrated": " c", "assumed": " a", "predicted": ""}
"""Suffix in tables of each kind of figure.

A given figure is from the paper or a data sheet. A calibrated one is fitted to the paper's figure.
An assumed one rests on figures without such a source. A predicted one has nothing fitted to it.
"""

VERDICTS = ("met", "missed")
"""Verdicts on claims, within the band or not."""

HEADING = ["claim", "section", "paper", "here", "deviation", "band", "verdict"]
"""Headings of a table with one claim a row."""

LEGEND = """\
Brackets hold the paper's figure and our deviation from it. *c* is calibrated, *g* given, all others
are predicted.
"""

Changes: TypeAlias = Mapping[str, str]
"""Changes of a machine or its parts, as ``--set`` has them."""

Progress: TypeAlias = Callable[[str], None]
"""Function called with a text for each thing that begins."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A figure of ours; with the paper's figure beside it, a claim that is judged by a band.

    Raises ``ValueError`` for a claim that has no band, or no place in the paper.
    """

    ours: float
    mark: str
    """One of :data:`MARKS`."""
    value: float | None = None
    """The paper's figure, if it has one."""
    section: str = ""
    """Place in the paper: a section, a figure or a table."""
    unit: str = ""
    band: float | tuple[float, float] | None = None
    """Allowed deviation as a share of the paper's figure, or the least and the most of ours.

    An open end of the range is infinite.
    """
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
        """Deviation from the paper's figure, as a share of it; None without one."""
        return self.ours / self.value - 1 if self.value else None

    def __str__(self) -> str:
        ours, value, deviation = self.texts
        beside = ", ".join(text for text in (value, deviation) if text)
        return f"{ours} ({beside}){self.marks}" if beside else f"{ours}{self.marks}"

    @property
    def texts(self) -> tuple[str, str, str]:
        """Texts of our figure, the paper's and the deviation, empty where there is none."""
        ours, value = (
            "" if figure is None else f"{figure:,.{self.digits}f}"
            for figure in (self.ours, self.value)
        )
        return ours, value, "" if self.deviation is None else f"{self.deviation:+.1%}"

    @property
    def marks(self) -> str:
        """Suffix of the figure in a table."""
        return MARKS[self.mark] + " MISSED" * (self.verdict == "missed")

    @property
    def beside(self) -> list[str]:
        """Table cells: the paper's figure, ours, the deviation, the band and the verdict."""
        ours, value, deviation = self.texts
        band = ""
        if isinstance(self.band, tuple):
            band = f"{self.band[0]:g} to {self.band[1]:g}"
        elif self.band is not None:
            band = f"{100 * self.band:g} %"
        paper, here = (f"{text} {self.unit * bool(text)}".strip() for text in (value, ours))
        return [paper, here + self.marks, deviation, band, self.verdict]

    def describe(self) -> dict[str, Any]:
        """Return the claim for JSON; an open end of a band is null."""
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


def predicted(ours: float, value: float | None = None, **fields: Any) -> Claim:
    """Return a figure that nothing was fitted to; ``fields`` are those of :class:`Claim`."""
    return Claim(ours=ours, value=value, mark="predicted", **fields)


def calibrated(ours: float, value: float | None = None, **fields: Any) -> Claim:
    """Return a figure that is fitted to the paper's."""
    return Claim(ours=ours, value=value, mark="calibrated", **fields)


def given(ours: float, value: float | None = None, **fields: Any) -> Claim:
    """Return a figure from the paper or a data sheet."""
    return Claim(ours=ours, value=value, mark="given", **fields)


def claims(
    section: str,
    unit: str,
    band: float | tuple[float, float],
    figures: Mapping[str, tuple[float, float]],
    *,
    mark: str = "predicted",
    digits: int = 2,
) -> dict[str, Claim]:
    """Return claims by name, judged by one band; ``figures`` has the paper's value, then ours."""
    return {
        name: Claim(
            ours=ours, value=value, section=section, unit=unit, band=band, mark=mark, digits=digits
        )
        for name, (value, ours) in figures.items()
    }


def above(
    section: str, least: float, figures: Mapping[str, Sequence[float]], *, mark: str = "predicted"
) -> dict[str, Claim]:
    """Return claims on the number of figures above ``least``, where the paper says that all are."""
    counted = {}
    for name, values in figures.items():
        both = {name: (len(values), sum(value > least for value in values))}
        counted |= claims(section, f"of {len(values)}", 0, both, mark=mark, digits=0)
    return counted


@dataclass(frozen=True, kw_only=True)
class Datum:
    """A figure of a paper that is not judged, with the reason.

    Raises ``ValueError`` without its place in the paper or the reason.
    """

    name: str
    section: str
    """Place in the paper: a section, a figure or a table."""
    value: float
    unit: str = ""
    why: str
    """Reason why it cannot be judged, in one sentence."""
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
    """Return figures of a paper that are not judged, by name, all for one reason."""
    return tuple(
        Datum(name=name, section=section, value=value, unit=unit, why=why, digits=digits)
        for name, value in figures.items()
    )


Row: TypeAlias = Mapping[str, Claim | str]
"""A table row: a figure or words for each column."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or figure of a paper, made again.

    Examples
    --------
    >>> speed = predicted(2.1, 2.0, section="5.1", unit="x", band=0.1)
    >>> experiment = Experiment(title="Figure 7", rows=[{"network": "vgg-e", "speed": speed}])
    >>> [(name, claim.verdict) for name, claim in experiment.claims.items()]
    [('network vgg-e, speed', 'met')]
    """

    title: str
    rows: Sequence[Row] = ()
    quoted: Mapping[str, Claim] = field(default_factory=dict)
    """Claims that are in no row, by name: those that the paper makes in words."""
    others: Mapping[str, Mapping[str, Claim]] = field(default_factory=dict)
    """Further columns of :attr:`quoted`: figures that are not judged, by column and claim."""
    notes: Sequence[str] = ()
    """Facts that a reader needs to judge the figures."""
    why_missed: str = ""
    """Reasons of missed claims; a note shows them while a claim is missed."""
    marked: bool = True
    """True if figures in rows show their marks."""
    draw: Callable[[Path], Sequence[Path]] | None = None
    """Function that draws pictures to a path without a suffix, and returns their files."""

    @property
    def claims(self) -> dict[str, Claim]:
        """All claims by name; a row's claim is named by the row's words and its column.

        Raises ``ValueError`` for two claims of one name.
        """
        named: dict[str, Claim] = {}
        for row in [*self.rows, self.quoted]:
            words = [
                f"{name} {cell}".strip() for name, cell in row.items() if isinstance(cell, str)
            ]
            for column, cell in row.items():
                if isinstance(cell, Claim) and cell.verdict:
                    name = ", ".join([*words, column])
                    if name in named:
                        raise ValueError(f"{self.title}: two claims are named {name!r}: rename one")
                    named[name] = cell
        return named

    @property
    def _notes(self) -> list[str]:
        missed = any(claim.verdict == "missed" for claim in self.claims.values())
        return [*self.notes, *[f"Missed: {self.why_missed}"] * (missed and bool(self.why_missed))]

    @property
    def report(self) -> Report:
        """Report for a page and a terminal, with the claims as results."""
        claims = self.claims
        parts: list[Table | str] = []
        if self.rows:
            columns = list(dict.fromkeys(column for row in self.rows for column in row))
            cells = [
                [
                    cell.texts[0] if isinstance(cell, Claim) and not self.marked else str(cell)
                    for cell in (row.get(column, "") for column in columns)
                ]
                for row in self.rows
            ]
            parts.append(Table(headings=columns, rows=cells))
        parts += self._notes
        if self.quoted:
            rows = [
                [name, claim.section, claim.beside[0], *self._others(name), *claim.beside[1:]]
                for name, claim in self.quoted.items()
            ]
            parts.append(Table(headings=[*HEADING[:3], *self.others, *HEADING[3:]], rows=rows))
        if claims:
            sections = ", ".join(dict.fromkeys(claim.section for claim in claims.values()))
            parts.append(f"Claims ({sections}): {tally(claims.values())}.")
        results = [{"claim": name, **claim.describe()} for name, claim in claims.items()]
        return Report(title=self.title, parts=parts, results=results)

    def _others(self, name: str) -> list[str]:
        return [claims[name].texts[0] if name in claims else "" for claims in self.others.values()]

    def describe(self) -> dict[str, Any]:
        """Return all figures, for JSON."""
        return {
            "title": self.title,
            "rows": [
                {
                    name: cell if isinstance(cell, str) else _whole(cell)
                    for name, cell in row.items()
                }
                for row in self.rows
            ],
            "quoted": {name: _whole(claim) for name, claim in self.quoted.items()},
            "others": {
                column: {name: claim.ours for name, claim in claims.items()}
                for column, claims in self.others.items()
            },
            "notes": self._notes,
        }


def _whole(claim: Claim) -> dict[str, Any]:
    return {**claim.describe(), "deviation": claim.deviation}


def tally(claims: Iterable[Claim]) -> str:
    """Return the number of claims with each verdict, in words."""
    counted = Counter(claim.verdict for claim in claims)
    return ", ".join(f"{counted[name]} {name}" for name in VERDICTS if counted[name])


def page(
    introduction: str,
    experiments: Mapping[str, Experiment],
    pictures: Mapping[str, Sequence[str]],
    data: Sequence[Datum],
) -> str:
    """Return a page with all experiments as Markdown; ``pictures`` are file names by experiment."""
    claims = [claim for made in experiments.values() for claim in made.claims.values()]
    counted = f"**{len(claims)} claims:** {tally(claims)}."
    if data:
        counted += (
            f" {len(data)} figures are not judged, [each for a reason](claims.md#not-judged)."
        )
    parts = [introduction.strip(), LEGEND.strip(), counted]
    for name, made in experiments.items():
        parts.append(made.report.markdown.strip())
        parts += [f"![{made.title}]({picture})" for picture in pictures.get(name, ())]
    return "\n\n".join(parts) + "\n"
