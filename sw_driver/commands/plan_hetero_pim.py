"""``nearmem plan hetero-pim``: which of a step's operations run on which part of a stack of memory
with units and cores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import Parameter

from . import FLAT, OutputFolder, OutputOptions, Refusal, integer, new_folder, turning
from .screen import Screen, show

__all__ = ["Options", "run"]


@dataclass(frozen=True, kw_only=True)
class Options(OutputOptions):
    """Options of the command."""

    share: Annotated[str, Parameter(metavar="PERCENT")] = "90%"
    """of the step's time on the CPU, that is offered to the PIMs"""
    by: Literal["operation", "type"] | None = None
    """whether operations are ranked one by one (default for a profile) or all of a type together
    (default for a network)"""
    profile: Literal["model", "measured"] | None = None
    """times of a network's operations: by the rates of the paper's CPU (default), or measured here
    by PyTorch's profiler; accesses are past that CPU's cache, and steps have its rates, in both"""
    units: Annotated[int | None, integer(1)] = None
    """multipliers and adders, half of each, over 32 banks (default: 444)"""
    cores: Annotated[int | None, integer(1)] = None
    """programmable cores (default: 1)"""
    rule: Annotated[str | None, Parameter(metavar="NAME")] = None
    """update rule of a function's model (default: adam)"""
    out: OutputFolder = None
    """folder for the profile and a timeline of steps, as trace and pictures (default: none)"""


def run(what: str, /, *, options: Annotated[Options, FLAT] = Options()) -> int:
    """Choose what a memory with units and cores does of a step.

    As Liu et al. do: operations are profiled on the CPU, and ranked by time and accesses to main
    memory. The first, that make most of the time, are offered to the stack's fixed-function units
    (the pools) and to its cores, which may have pools work for them; the CPU has the rest. Prints
    the ranking and, for a network, where operations run, and a step's time on CPU, GPU, cores only,
    pools only, and all together. What units and cores take is predicted from the RTL.

    Parameters
    ----------
    what
        a file of a profile, PROFILE.csv, with columns operation, time, accesses and, if known,
        kind, which is ranked only; a network that is shipped, such as vgg-19; the file of a trace;
        or FILE.py:FUNCTION, as 'nearmem workload' takes it
    """
    from sw_driver.system.hetero_pim.report import report
    from sw_driver.workload.trace import TraceError

    with turning(TraceError, into=Refusal), Screen(options) as watch:
        made = report(
            what,
            share=options.share,
            by=options.by,
            profile=options.profile,
            units=options.units,
            cores=options.cores,
            rule=options.rule,
            folder=new_folder(options.out),
            watch=watch,
        )
    return show(made, options)
