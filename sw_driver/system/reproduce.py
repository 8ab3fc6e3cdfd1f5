"""The papers whose systems are reproduced, and their experiments by name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any

from sw_driver.device.errors import InvalidArgumentError
from sw_driver.files import write_whole
from sw_driver.numbers import check_name, split_entries

from .reproduction import HEADING, VERDICTS, Datum, Experiment, Progress, markdown, page

__all__ = [
    "ALL",
    "COUNTS",
    "PAPERS",
    "claims",
    "claims_page",
    "counts",
    "reproduce",
    "write_claims",
    "write_files",
    "write_page",
]


ALL = "all"
"""In the place of a paper: each of them, with all experiments."""

PAPERS = {
    "axdimm": "sw_driver.system.axdimm.experiments",
    "hetero-pim": "sw_driver.system.hetero_pim.experiments",
    "mc-dla": "sw_driver.system.mc_dla.experiments",
    "memferry": "sw_driver.system.memferry.experiments",
    "sentinel": "sw_driver.system.sentinel.experiments",
}
"""The module of each paper, with its ``EXPERIMENTS``, the ``INTRODUCTION`` of its page and the
``DATA`` that are not judged, and, in ``REFUSED``, why an experiment of the paper is not among them,
if there is one."""


def reproduce(
    paper: str, names: Sequence[str], settings: Sequence[str], progress: Progress
) -> dict[str, dict[str, Callable[[], Experiment]]]:
    """By paper, what makes the experiments of these names, or all of the paper.

    ``settings`` are changes of the machine, ``KEY=VALUE`` each. :data:`ALL` papers take neither.
    Raises :class:`~sw_driver.device.errors.InvalidArgumentError` for what there is not; and an
    experiment that is made :class:`~sw_driver.machine.parts.MachineError` for settings
    that do not fit and :class:`~sw_driver.system.errors.EngineError` for a machine that is too
    small.
    """
    check_name("paper", paper, [*PAPERS, ALL])
    if paper == ALL:
        if given := [*names, *settings]:
            raise InvalidArgumentError(
                f"{given[0]!r} is given, and the paper is {ALL!r}: name one of "
                f"{', '.join(PAPERS)}, or give none (of make, PAPER=axdimm)"
            )
        made = (reproduce(each, (), (), progress) for each in PAPERS)
        return {name: found for each in made for name, found in each.items()}
    module = import_module(PAPERS[paper])
    experiments = module.EXPERIMENTS
    for name in names:
        if why := getattr(module, "REFUSED", {}).get(name):
            raise InvalidArgumentError(f"experiment is {name!r}: {why}")
        check_name("experiment", name, [*experiments, "all"])
    changes = split_entries(settings)
    chosen = list(experiments) if not names or "all" in names else list(dict.fromkeys(names))
    return {paper: {name: partial(experiments[name], changes, progress) for name in chosen}}


def claims(done: Mapping[str, Experiment]) -> list[dict[str, Any]]:
    """The claims of experiments, by their names, as JSON has them."""
    return [
        {"experiment": experiment, "claim": name, **claim.describe()}
        for experiment, made in done.items()
        for name, claim in made.claims.items()
    ]


def write_files(folder: Path, name: str, made: Experiment) -> list[Path]:
    """Writes an experiment's figures as JSON, and its pictures, by its name into a folder."""
    figures = folder / f"{name}.json"
    write_whole(figures, json.dumps({"name": name, **made.describe()}, indent=2) + "\n")
    return [figures, *(made.draw(folder / name) if made.draw is not None else ())]


def write_page(
    paper: str, folder: Path, done: Mapping[str, Experiment], files: Mapping[str, Sequence[Path]]
) -> list[Path]:
    """Writes the paper's page into a folder, if ``done`` are all of its experiments. ``files`` are
    theirs, in a folder of that one."""
    module = import_module(PAPERS[paper])
    if list(done) != list(module.EXPERIMENTS):
        return []
    shown = {
        name: [each.relative_to(folder).as_posix() for each in found if each.suffix == ".svg"]
        for name, found in files.items()
    }
    path = folder / f"{paper}.md"
    write_whole(path, page(module.INTRODUCTION, done, shown, module.DATA))
    return [path]


def write_claims(folder: Path, done: Mapping[str, Mapping[str, Experiment]]) -> list[Path]:
    """Writes the page with all claims into a folder, beside the papers', if ``done`` are all."""
    modules = {paper: import_module(name) for paper, name in PAPERS.items()}
    if {paper: list(made) for paper, made in done.items()} != {
        paper: list(module.EXPERIMENTS) for paper, module in modules.items()
    }:
        return []
    names = {
        paper: module.INTRODUCTION.partition("\n")[0].removeprefix("# ").partition(":")[0]
        for paper, module in modules.items()
    }
    path = folder / "claims.md"
    data = {paper: module.DATA for paper, module in modules.items()}
    write_whole(path, claims_page(done, names, data))
    return [path]


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
    parts = [_INTRODUCTION, markdown([["paper", *COUNTS], *table])]
    parts += ["## Judged", markdown([HEADING, *claims])]
    if figures:
        heading = ["paper", "section", "the paper's figures", "why they are not judged"]
        parts += ["## Not judged", markdown([heading, *figures])]
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
