"""The papers whose systems are reproduced, and their experiments by name."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from sw_driver.device.errors import InvalidArgumentError
from sw_driver.files import write_whole
from sw_driver.numbers import check_name, split_entries
from sw_driver.report import Report, Table, Watch, count

from .reproduction import HEADING, VERDICTS, Datum, Experiment, Progress, page, tally

__all__ = [
    "ALL",
    "COUNTS",
    "PAPERS",
    "claims_page",
    "counts",
    "report",
    "reproduce",
    "write_claims",
    "write_files",
    "write_page",
]


ALL = "all"
"""Value in place of a paper that selects all papers, with all experiments."""

PAPERS = {
    "axdimm": "sw_driver.system.axdimm.experiments",
    "hetero-pim": "sw_driver.system.hetero_pim.experiments",
    "mc-dla": "sw_driver.system.mc_dla.experiments",
    "memferry": "sw_driver.system.memferry.experiments",
    "sentinel": "sw_driver.system.sentinel.experiments",
}
"""Module of each paper.

It has ``EXPERIMENTS``, the ``INTRODUCTION`` of its page and the ``DATA`` that are not judged.
``REFUSED`` has experiments of the paper that are left out, with the reason.
"""


def report(
    paper: str,
    names: Sequence[str] = (),
    settings: Sequence[str] = (),
    *,
    folder: Path | None = None,
    watch: Watch = Watch(),
) -> Report:
    """Return a report of a paper's experiments, or the counts of claims of :data:`ALL` papers.

    For one paper, the report is not good if a claim is missed. ``folder`` receives figures and
    pictures, in a folder of the paper's name. With all experiments it also receives the paper's
    page, and with all papers the page of all claims. Raises as :func:`reproduce` does.
    """
    makers = reproduce(paper, names, settings, watch.say)
    jobs = [(source, name, make) for source, made in makers.items() for name, make in made.items()]
    done: dict[str, dict[str, Experiment]] = {source: {} for source in makers}
    written: dict[str, dict[str, list[Path]]] = {source: {} for source in makers}
    took_s = dict.fromkeys(makers, 0.0)
    results: list[dict[str, Any]] = []
    parts: list[Table | str] = []
    for source, name, make in watch.track(jobs):
        began_s = time.monotonic()
        made = done[source][name] = make()
        if folder is not None:
            own = folder / source
            own.mkdir(parents=True, exist_ok=True)
            written[source][name] = write_files(own, name, made)
        label = f"{source}/{name}" if paper == ALL else name
        parts += made.report.lines
        results += [{"experiment": label, **row} for row in made.report.results]
        took_s[source] += time.monotonic() - began_s
        watch.log(f"{label}: {time.monotonic() - began_s:.1f} s")
    pages: list[Path] = []
    if folder is not None:
        for source in done:
            pages += write_page(source, folder, done[source], written[source])
        pages += write_claims(folder, done)
    if paper == ALL:
        took_s[ALL] = sum(took_s.values())
        numbers = counts(done).items()
        rows = [[source, *map(count, n), f"{took_s[source]:.1f}"] for source, n in numbers]
        parts = [Table(title="Claims", headings=["paper", *COUNTS, "s"], rows=rows)]
    else:
        pages = [*chain(*written[paper].values()), *pages]
    return Report(
        results=results,
        parts=parts,
        machine={"changes": split_entries(settings)},
        workload={"papers": [*done]},
        files=pages,
        is_good=paper == ALL or all(row["verdict"] != "missed" for row in results),
    )


def reproduce(
    paper: str, names: Sequence[str], settings: Sequence[str], progress: Progress
) -> dict[str, dict[str, Callable[[], Experiment]]]:
    """Return functions that make the named experiments, or all of the paper, by paper.

    ``settings`` are changes of the machine, ``KEY=VALUE`` each. :data:`ALL` papers take no names
    and no settings. Raises :class:`~sw_driver.device.errors.InvalidArgumentError` for unknown
    names. Making an experiment raises :class:`~sw_driver.machine.parts.MachineError` for settings
    that do not fit, and :class:`~sw_driver.system.errors.EngineError` for a machine that is too
    small.
    """
    check_name("paper", paper, [*PAPERS, ALL])
    if paper == ALL:
        if given := [*names, *settings]:
            raise InvalidArgumentError(
                f"{given[0]!r} is given, and the paper is {ALL!r}: name one of "
                f"{', '.join(PAPERS)}, or give none (of make, PAPER=axdimm)"
            )
        papers = (reproduce(paper_name, (), (), progress) for paper_name in PAPERS)
        return {name: made for makers in papers for name, made in makers.items()}
    module = import_module(PAPERS[paper])
    experiments = module.EXPERIMENTS
    for name in names:
        if why := getattr(module, "REFUSED", {}).get(name):
            raise InvalidArgumentError(f"experiment is {name!r}: {why}")
        check_name("experiment", name, [*experiments, "all"])
    changes = split_entries(settings)
    chosen = list(experiments) if not names or "all" in names else list(dict.fromkeys(names))
    return {paper: {name: partial(experiments[name], changes, progress) for name in chosen}}


def write_files(folder: Path, name: str, made: Experiment) -> list[Path]:
    """Write an experiment's figures as JSON, and its pictures, into a folder."""
    figures = folder / f"{name}.json"
    write_whole(figures, json.dumps({"name": name, **made.describe()}, indent=2) + "\n")
    return [figures, *(made.draw(folder / name) if made.draw is not None else ())]


def write_page(
    paper: str, folder: Path, done: Mapping[str, Experiment], files: Mapping[str, Sequence[Path]]
) -> list[Path]:
    """Write the paper's page into a folder, if ``done`` has all of its experiments.

    ``files`` are those of the experiments, in a subfolder.
    """
    module = import_module(PAPERS[paper])
    if list(done) != list(module.EXPERIMENTS):
        return []
    shown = {
        name: [file.relative_to(folder).as_posix() for file in made if file.suffix == ".svg"]
        for name, made in files.items()
    }
    path = folder / f"{paper}.md"
    write_whole(path, page(module.INTRODUCTION, done, shown, module.DATA))
    return [path]


def write_claims(folder: Path, done: Mapping[str, Mapping[str, Experiment]]) -> list[Path]:
    """Write the page with all claims beside those of the papers, if ``done`` is complete."""
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

A claim is a number that a paper states for its system; it stands beside our result.
[Papers](../papers.md) describes the papers. This page, and those of the papers, are written by

```
make reproduce ARGS="--out docs/papers"
```

A claim is *met* within its band, and *missed* outside of it. Missed claims follow, with the reason
here or on the paper's page. That page has the met ones, too. *c* marks calibrated figures, fitted
to the paper's, and *g* given ones; all others are predicted. [Figures that are not
judged](#not-judged) follow, with the reason."""

COUNTS = ("claims", *VERDICTS, "met as calibrated")
"""Names of the counts of a paper's claims."""


def counts(done: Mapping[str, Mapping[str, Experiment]]) -> dict[str, list[int]]:
    """Return the numbers that :data:`COUNTS` names, by paper and for all papers."""
    judged = {
        paper: [claim for experiment in made.values() for claim in experiment.claims.values()]
        for paper, made in done.items()
    }
    judged["all"] = [claim for claims in judged.values() for claim in claims]
    counted = {}
    for paper, claims in judged.items():
        verdicts = [claim.verdict for claim in claims]
        fitted = sum(claim.verdict == "met" and claim.mark == "calibrated" for claim in claims)
        counted[paper] = [len(claims), *map(verdicts.count, VERDICTS), fitted]
    return counted


def claims_page(
    done: Mapping[str, Mapping[str, Experiment]],
    names: Mapping[str, str],
    data: Mapping[str, Sequence[Datum]],
) -> str:
    """Return the page as Markdown: counts of verdicts, missed claims, and figures not judged.

    ``done`` are experiments by paper and name, ``names`` the papers' names, and ``data`` the
    figures that are not judged, by paper.
    """
    labels = {paper: f"[{name}]({paper}.md)" for paper, name in names.items()}
    table = [[labels.get(paper, paper), *map(str, count)] for paper, count in counts(done).items()]
    made = [
        (_link(paper, name, experiment.title), experiment)
        for paper, name in names.items()
        for experiment in done[paper].values()
        if experiment.claims
    ]
    tallies = [
        [link, tally(claims), "; ".join(dict.fromkeys(claim.beside[-2] for claim in claims))]
        for link, experiment in made
        for claims in [experiment.claims.values()]
    ]
    missed = [row for link, experiment in made for row in _missed(link, experiment)]
    figures = [
        [name, section, "; ".join(map(str, group)), why]
        for paper, name in names.items()
        for (section, why), group in groupby(data[paper], lambda datum: (datum.section, datum.why))
    ]
    parts = [_INTRODUCTION, Table(headings=["paper", *COUNTS], rows=table).markdown]
    tally_table = Table(headings=["table or figure", "claims", "bands"], rows=tallies)
    parts += ["## Judged", tally_table.markdown]
    if missed:
        parts += ["## Missed", Table(headings=HEADING[:-1], rows=missed).markdown]
    if figures:
        heading = ["paper", "section", "the paper's figures", "reason"]
        parts += ["## Not judged", Table(headings=heading, rows=figures).markdown]
    return "\n\n".join(parts) + "\n"


def _link(paper: str, name: str, title: str) -> str:
    """Return a link to an experiment's heading, with the anchor that GitHub and Sphinx make."""
    anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
    return f"{name}, [{title.partition(':')[0]}]({paper}.md#{anchor})"


def _missed(link: str, experiment: Experiment) -> Iterator[list[str]]:
    """Yield a row with an experiment's link and reason, then a row per missed claim, if any."""
    claims = {n: claim for n, claim in experiment.claims.items() if claim.verdict == "missed"}
    if claims:
        why = f": {experiment.why_missed}" * bool(experiment.why_missed)
        yield [f"**{link}**{why}", *[""] * (len(HEADING) - 2)]
    for name, claim in claims.items():
        yield [name, claim.section, *claim.beside[:-1]]
