"""The page with all claims of all papers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from sw_driver.report import Table

from .reproduction import HEADING, VERDICTS, Datum, Experiment

__all__ = ["COUNTS", "claims_page", "counts"]

_INTRODUCTION = """\
# All claims

A claim is a number that a paper says of its system; it stands beside what comes out here. The
papers are described in [papers](../papers.md). This page, and those of the papers, are written by

```
make reproduce ARGS="--out docs/papers"
```

*Met* and *missed*: within the band or not. *c* is calibrated, that is fitted to the paper's figure,
*g* given, all others are predicted. [Figures that are not judged](#not-judged) follow, with the
reason."""

COUNTS = ("claims", *VERDICTS, "met as calibrated")
"""Names of what is counted of a paper's claims."""


def counts(done: Mapping[str, Mapping[str, Experiment]]) -> dict[str, list[int]]:
    """Return by paper, and of all papers, the numbers that :data:`COUNTS` name."""
    found = {
        paper: [claim for each in made.values() for claim in each.claims.values()]
        for paper, made in done.items()
    }
    found["all"] = [claim for claims in found.values() for claim in claims]
    counted = {}
    for paper, claims in found.items():
        verdicts = [each.verdict for each in claims]
        fitted = sum(each.verdict == "met" and each.mark == "calibrated" for each in claims)
        counted[paper] = [len(claims), *map(verdicts.count, VERDICTS), fitted]
    return counted


def claims_page(
    done: Mapping[str, Mapping[str, Experiment]],
    names: Mapping[str, str],
    data: Mapping[str, Sequence[Datum]],
) -> str:
    """Return the page as Markdown: counts of verdicts, all claims, and figures not judged.

    ``done`` are experiments by paper and name, ``names`` the papers' own, ``data`` the figures by
    paper that are not judged.
    """
    labels = {paper: f"[{name}]({paper}.md)" for paper, name in names.items()}
    table = [[labels.get(paper, paper), *map(str, count)] for paper, count in counts(done).items()]
    claims = [row for paper, name in names.items() for row in _rows(paper, name, done[paper])]
    figures = [
        [name, section, "; ".join(map(str, group)), why]
        for paper, name in names.items()
        for (section, why), group in groupby(data[paper], lambda datum: (datum.section, datum.why))
    ]
    parts = [_INTRODUCTION, Table(headings=["paper", *COUNTS], rows=table).markdown]
    parts += ["## Judged", Table(headings=HEADING, rows=claims).markdown]
    if figures:
        heading = ["paper", "section", "the paper's figures", "why they are not judged"]
        parts += ["## Not judged", Table(headings=heading, rows=figures).markdown]
    return "\n\n".join(parts) + "\n"


def _rows(paper: str, name: str, made: Mapping[str, Experiment]) -> Iterator[list[str]]:
    """Yield a row with an experiment's heading on the paper's page, then those of its claims."""
    for experiment in made.values():
        # As GitHub and Sphinx make an anchor of a heading.
        anchor = re.sub(r"[^\w\- ]", "", experiment.title.lower()).replace(" ", "-")
        heading = f"**{name}, [{experiment.title}]({paper}.md#{anchor})**"
        yield [heading, *[""] * (len(HEADING) - 1)]
        for claim_name, claim in experiment.claims.items():
            yield [claim_name, claim.section, *claim.beside]
