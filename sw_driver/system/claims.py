"""The page with all claims of all papers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby

from .reproduction import HEADING, VERDICTS, Claim, Datum, Experiment, markdown

__all__ = ["COUNTS", "claims_page", "counts"]

_INTRODUCTION = """\
# All claims

Each number that a paper says of its system is a claim, and stands beside what comes out here. The
papers are described in [papers](../papers.md). This page, and those of the papers, are written by

```
make reproduce ARGS="--out docs/papers"
```

*Met* and *missed*: within the band or not. *Excluded*: not judged, as the paper's own figures, or
the hardware that it describes, contradict it, or as the paper leaves open what decides; the reason
is behind the link. *Given*: the paper's own, or a data sheet's. *c* is calibrated, that is fitted
to the paper's figure, *g* given, all others are predicted."""

COUNTS = ("claims", *VERDICTS, "met as calibrated")
"""What is counted of a paper's claims."""


def counts(done: Mapping[str, Mapping[str, Experiment]]) -> dict[str, list[int]]:
    """By paper, and of all, what :data:`COUNTS` name."""
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
    """Return the page as Markdown: counts of verdicts by paper, missed claims, then all.

    ``done`` are experiments by paper and name, ``names`` the papers' own, ``data`` the figures by
    paper that are not judged.
    """
    labels = {paper: f"[{name}]({paper}.md)" for paper, name in names.items()}
    table = [[labels.get(paper, paper), *map(str, found)] for paper, found in counts(done).items()]
    missed = [
        row
        for paper, name in names.items()
        for row in _rows(paper, done[paper], lambda each: each.verdict == "missed", f"{name}, ")
    ]
    parts = [_INTRODUCTION, markdown([["paper", *COUNTS], *table])]
    parts += ["## Missed", markdown([HEADING, *missed])]
    for paper, name in names.items():
        rows = _rows(paper, done[paper], lambda _: True)
        parts += [f"## {name}", markdown([HEADING, *rows])]
        if data[paper]:
            parts += ["Not judged:", markdown([_DATA_HEADING, *_data_rows(data[paper])])]
    return "\n\n".join(parts) + "\n"


_DATA_HEADING = ["why not", "section", "the paper's figures"]


def _data_rows(data: Sequence[Datum]) -> Iterator[list[str]]:
    """Yield a row for figures, side by side, of one place and one reason."""
    for (why, section), figures in groupby(data, lambda datum: (datum.why, datum.section)):
        yield [why, section, "; ".join(map(str, figures))]


def _rows(
    paper: str, made: Mapping[str, Experiment], chosen: Callable[[Claim], bool], before: str = ""
) -> Iterator[list[str]]:
    """Of each experiment its heading on the paper's page, and its chosen claims."""
    for experiment in made.values():
        claims = {name: each for name, each in experiment.claims.items() if chosen(each)}
        # As GitHub and Sphinx make an anchor of a heading.
        anchor = re.sub(r"[^\w\- ]", "", experiment.title.lower()).replace(" ", "-")
        link = f"{paper}.md#{anchor}"
        if claims:
            yield [f"**{before}[{experiment.title}]({link})**", *[""] * (len(HEADING) - 1)]
        for name, claim in claims.items():
            *cells, verdict = claim.beside
            if claim.excluded:
                verdict = f"[{verdict}]({link})"
            yield [name, claim.section, *cells, verdict]
