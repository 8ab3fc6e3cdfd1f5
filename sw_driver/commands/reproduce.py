"""``nearmem reproduce``: papers' claims, and the tables and figures of their systems."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from . import FLAT, OutputFolder, OutputOptions, Refusal, Settings, new_folder, turning
from .screen import Screen, show

__all__ = ["Options", "run"]


@dataclass(frozen=True, kw_only=True)
class Options(OutputOptions):
    """Options of the command."""

    set: Settings = ()
    """changes the machine, such as gpu.capacity_bytes=16GiB; may be given several times"""
    out: OutputFolder = None
    """folder for all figures, pictures and timelines, each paper's in a folder of its name, and,
    with all experiments, a page; with all papers, a page of all claims, too (default: none)"""


def run(paper: str, /, *experiments: str, options: Annotated[Options, FLAT] = Options()) -> int:
    """Make the tables and figures of a paper's system again.

    Simulates the system experiments of a paper and prints each figure with the paper's and the
    deviation from it, marked g for given, c for calibrated, unmarked if it is predicted. Exit
    status 1 if a claim of the paper's is missed. With --json all claims are printed. Of all papers,
    only how many claims each has of which verdict is printed, or, with --json, the claims, each
    experiment as PAPER/EXPERIMENT; the status is 0.

    Parameters
    ----------
    paper
        axdimm, hetero-pim, mc-dla, memferry or sentinel, or all
    experiments
        such as table6 (default: all of the paper)
    """
    from sw_driver.device.errors import DeadlockError
    from sw_driver.system.errors import EngineError
    from sw_driver.system.reproduce import report

    # Of names, settings, a machine that is too small.
    errors = ValueError, EngineError, DeadlockError
    with turning(*errors, into=Refusal), Screen(options) as watch:
        folder = new_folder(options.out)
        made = report(paper, experiments, options.set, folder=folder, watch=watch)
    return show(made, options)
