"""The papers whose systems are reproduced, and their experiments by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

from sw_driver.files import write_whole
from sw_driver.numbers import check_name, split_entry

from .reproduction import Experiment, Progress, page

__all__ = ["PAPERS", "reproduce", "write_page"]

PAPERS = {
    "axdimm": "sw_driver.system.axdimm.experiments",
    "mc-dla": "sw_driver.system.mc_dla.experiments",
}
"""The module of each paper, with its ``EXPERIMENTS`` and the ``INTRODUCTION`` of its page."""


def reproduce(
    paper: str, names: Sequence[str], settings: Sequence[str], progress: Progress
) -> dict[str, Callable[[], Experiment]]:
    """What makes the experiments of these names, or all of the paper.

    ``settings`` are changes of the machine, ``KEY=VALUE`` each. Raises
    :class:`~sw_driver.device.errors.InvalidArgumentError` for what there is not; and an experiment
    that is made :class:`~sw_driver.machine.parts.MachineError` for settings
    that do not fit and :class:`~sw_driver.system.errors.EngineError` for a machine that is too
    small.
    """
    check_name("paper", paper, PAPERS)
    experiments = import_module(PAPERS[paper]).EXPERIMENTS
    for name in names:
        check_name("experiment", name, [*experiments, "all"])
    changes = dict(map(split_entry, settings))
    chosen = list(experiments) if not names or "all" in names else list(dict.fromkeys(names))
    return {name: partial(experiments[name], changes, progress) for name in chosen}


def write_page(paper: str, done: Sequence[Experiment], pictures: Sequence[Path]) -> Path | None:
    """Writes the paper's page beside its pictures, if ``done`` are all of its experiments."""
    module = import_module(PAPERS[paper])
    if not pictures or [each.name for each in done] != list(module.EXPERIMENTS):
        return None
    path = pictures[0].parent / f"{paper}.md"
    # A timeline is there as both, and its SVG is large.
    shown = [
        each
        for each in pictures
        if each.suffix == ".png"
        or (each.suffix == ".svg" and each.with_suffix(".png") not in pictures)
    ]
    write_whole(path, page(module.INTRODUCTION, done, shown))
    return path
