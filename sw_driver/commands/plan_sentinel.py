"""``nearmem plan sentinel``: choice of the tensors in a small fast memory, over a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from . import FLAT, OutputFolder, Refusal, WorkloadOptions, output_folder, turning
from .screen import Screen, show

__all__ = ["Options", "run"]


@dataclass(frozen=True, kw_only=True)
class Options(WorkloadOptions):
    """Options of the command."""

    fast: Annotated[str, Parameter(metavar="PERCENT|BYTES")] = "20%"
    """size of the fast memory: a share of the step's peak memory, or bytes, such as 1.5GiB"""
    slow: Annotated[str, Parameter(metavar="NAME")] = "xeon"
    """slow memory, with the fast memory that belongs to it: xeon (the paper's, across sockets),
    cxl, nvme or ddr4-800; for a GPU the host's memory over pcie3, pcie4 or pcie5"""
    out: OutputFolder = None
    """folder for a timeline of steps, as trace and pictures, and for the curve (default: none)"""


def run(workload: str, /, *, options: Annotated[Options, FLAT] = Options()) -> int:
    """Choose the tensors to keep in a small fast memory during a training step.

    Works like Sentinel. Tensors that live within one layer have a pool in fast memory. Others move
    in for the next interval of layers, and out when neither interval needs them. The best interval
    length is searched. Prints the step time beside fast memory alone, the tensors that move most,
    and a curve over fast-memory sizes. Times come from a model.

    Example: nearmem plan sentinel resnet32 --fast 20%

    Parameters
    ----------
    workload
        a network, such as resnet32; a trace file; or FILE.py:FUNCTION (see 'nearmem
        workload --help')
    """
    from sw_driver.system.sentinel.report import report
    from sw_driver.workload.trace import TraceError

    with turning(TraceError, into=Refusal), Screen(options) as watch:
        made = report(
            workload,
            fast=options.fast,
            slow=options.slow,
            rule=options.rule,
            batch=options.batch,
            seq=options.seq,
            folder=options.out and output_folder(options.out, "plan"),
            watch=watch,
        )
    return show(made, options)
