"""``nearmem plan hetero-pim``: choice of the operations that run inside a memory stack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import Parameter

from . import FLAT, OutputFolder, Refusal, WorkloadOptions, integer, output_folder, turning
from .screen import Screen, show

__all__ = ["Options", "run"]


@dataclass(frozen=True, kw_only=True)
class Options(WorkloadOptions):
    """Options of the command."""

    share: Annotated[str | None, Parameter(metavar="PERCENT")] = None
    """share of the step's CPU time to offer to the stack (default: that of the readings; 90% for a
    profile)"""
    readings: Literal["headline", "strict"] | None = None
    """answers to what the paper leaves open (default: headline)"""
    rate: Annotated[int | None, integer(1)] = None
    """operations of a unit in a cycle (default: as in RTL; 44 is calibrated)"""
    by: Literal["operation", "type"] | None = None
    """rank single operations (default for a profile) or types of operations (default for others)"""
    profile: Literal["model", "measured"] | None = None
    """source of the operations' times: rates of the paper's CPU (default), or PyTorch's profiler
    on this machine; accesses past the cache, and step times, use the paper's CPU in both"""
    units: Annotated[int | None, integer(1)] = None
    """multipliers plus adders in the stack, half of each, over 32 banks (default: 444)"""
    cores: Annotated[int | None, integer(1)] = None
    """programmable cores (default: 4; 45 in Progr PIM)"""
    out: OutputFolder = None
    """folder for the profile and a timeline of steps, as trace and pictures (default: none)"""


def run(workload: str, /, *, options: Annotated[Options, FLAT] = Options()) -> int:
    """Choose the operations of a training step that run inside a memory stack.

    The stack has pools of fixed-function units and programmable cores (Liu et al.). Operations are
    profiled on the CPU and ranked by time and main-memory accesses. The top ones are offered to the
    stack; the CPU runs the rest. Prints the ranking and, except for a profile, where operations
    run, why the CPU runs some, and the step time on CPU, GPU, cores only, pools only, and all
    together, with its parts. Times of units and cores are predicted from the RTL.

    Example: nearmem plan hetero-pim alexnet-32

    Parameters
    ----------
    workload
        a network, such as vgg-19; a trace file; FILE.py:FUNCTION (see 'nearmem workload
        --help'); or PROFILE.csv, which is only ranked, with the columns operation, time, accesses
        and, optionally, kind
    """
    from sw_driver.system.hetero_pim.report import report
    from sw_driver.workload.trace import TraceError

    with turning(TraceError, into=Refusal), Screen(options) as watch:
        made = report(
            workload,
            share=options.share,
            readings=options.readings,
            rate=options.rate,
            by=options.by,
            profile=options.profile,
            units=options.units,
            cores=options.cores,
            rule=options.rule,
            batch=options.batch,
            seq=options.seq,
            folder=options.out and output_folder(options.out, "plan"),
            watch=watch,
        )
    return show(made, options)
