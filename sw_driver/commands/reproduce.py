"""``nearmem reproduce``: tables, figures and claims of the papers, simulated again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from . import FLAT, OutputFolder, OutputOptions, Refusal, Settings, output_folder, turning
from .screen import Screen, show

__all__ = ["Options", "run"]


@dataclass(frozen=True, kw_only=True)
class Options(OutputOptions):
    """Options of the command."""

    set: Settings = ()
    """change a setting of the machine, such as gpu.capacity_bytes=16GiB; repeatable"""
    out: OutputFolder = None
    """folder for figures, pictures and timelines, in a folder per paper; a complete paper also gets
    a page, all papers together a page of all claims (default: none)"""


def run(paper: str, /, *experiments: str, options: Annotated[Options, FLAT] = Options()) -> int:
    """Check whether simulation gives the tables and figures that a paper prints.

    Simulates experiments of a paper and prints each result beside the paper's, with the deviation.
    Marks: g for given, c for calibrated, none for predicted. The exit status is 1 if a claim of the
    paper is missed. With --json it prints all claims. For all papers together it prints the number
    of claims met and missed by paper, or with --json the claims, with PAPER/EXPERIMENT as the
    experiment; the exit status is then 0.

    Example: nearmem reproduce axdimm table6

    Parameters
    ----------
    paper
        axdimm, hetero-pim, mc-dla, memferry, sentinel, or all
    experiments
        experiments of the paper, such as table6 (default: all)
    """
    from sw_driver.device.errors import DeadlockError
    from sw_driver.system.errors import EngineError
    from sw_driver.system.reproduce import report

    # Wrong names and settings, or a machine that is too small.
    errors = ValueError, EngineError, DeadlockError
    with turning(*errors, into=Refusal), Screen(options) as watch:
        folder = options.out and output_folder(options.out, "reproduce")
        made = report(paper, experiments, options.set, folder=folder, watch=watch)
    return show(made, options)
