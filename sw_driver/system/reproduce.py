"""The papers whose systems are reproduced, and their experiments by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from sw_driver.device.errors import InvalidArgumentError
from sw_driver.files import write_whole
from sw_driver.numbers import check_name, split_entries

from .claims import claims_page
from .reproduction import Experiment, Progress, page

__all__ = ["ALL", "PAPERS", "claims", "reproduce", "write_claims", "write_files", "write_page"]

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
