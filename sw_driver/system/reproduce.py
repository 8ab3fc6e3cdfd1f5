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
from sw_driver.report import SILENT, Report, Table, Watch, count

from .reproduction import HEADING, VERDICTS, Datum, Experiment, Progress, page

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


def report(
    paper: str,
    names: Sequence[str] = (),
    settings: Sequence[str] = (),
    *,
    folder: Path | None = None,
    watch: Watch = SILENT,
) -> Report:
    """Return experiments of a paper, or how many claims of :data:`ALL` papers are met.

    Of one paper, the report is not good while a claim is missed. Into ``folder`` figures and
    pictures are written, into a folder of the paper's name, and, with all experiments, its page;
    with all papers, the page of all claims, too. Raises as :func:`reproduce` does.
    """
    makers = reproduce(paper, names, settings, watch.say)
    jobs = [(of, name, make) for of, made in makers.items() for name, make in made.items()]
    done: dict[str, dict[str, Experiment]] = {of: {} for of in makers}
    written: dict[str, dict[str, list[Path]]] = {of: {} for of in makers}
    took_s = dict.fromkeys(makers, 0.0)
    results: list[dict[str, Any]] = []
    parts: list[Table | str] = []
    for of, name, make in watch.track(jobs):
        began_s = time.monotonic()
        made = done[of][name] = make()
        if folder is not None:
            own = folder / of
            own.mkdir(parents=True, exist_ok=True)
            written[of][name] = write_files(own, name, made)
        label = f"{of}/{name}" if paper == ALL else name
        parts += made.report.lines
        results += [{"experiment": label, **row} for row in made.report.results]
        took_s[of] += time.monotonic() - began_s
        watch.log(f"{label}: {time.monotonic() - began_s:.1f} s")
    pages: list[Path] = []
    if folder is not None:
        for of in done:
            pages += write_page(of, folder, done[of], written[of])
        pages += write_claims(folder, done)
    if paper == ALL:
        took_s[ALL] = sum(took_s.values())
        rows = [[of, *map(count, n), f"{took_s[of]:.1f}"] for of, n in counts(done).items()]
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
