"""``nearmem plan memferry``: choice between copying and reading each layer's parameters."""

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

    planner: Annotated[str, Parameter(metavar="NAME")] = "ours"
    """ours; printed or repaired (the paper's algorithm); exact (best forward pass on the paper's
    link); or exact-step (best step, for 8 layers or fewer)"""
    gpu_memory: Annotated[int | None, integer(1, metavar="BYTES")] = None
    """GPU memory that the plan may use, such as 16GiB (default: unlimited)"""
    reserve: Annotated[float, Parameter(metavar="SHARE")] = 1.0
    """share of all gradients that may stay in GPU memory, from 0 to 1"""
    device: Literal["v100", "a100"] | None = None
    """GPU of the cost model, which gives times where no profile does (default: v100)"""
    out: OutputFolder = None
    """folder for the profile and the step's timeline, as trace and pictures (default: none)"""


def run(workload: str, /, *, options: Annotated[Options, FLAT] = Options()) -> int:
    """Choose the fastest way for a GPU to get each layer's parameters from host memory.

    Parameters and optimizer are in host memory, as in ZeRO-Offload. The GPU copies a layer's
    parameters (GFGB), reads them in host memory (DHA), or reads them in the forward pass and copies
    them for the backward pass (DFGB). Gradients stay in GPU memory or go to host memory at once.
    Prints the plan with its time and memory, other ways beside it, and the best next improvement.
    Times come from a profile or a cost model.

    Example: nearmem plan memferry bert-base --gpu-memory 16GiB

    Parameters
    ----------
    workload
        a network, such as bert-base; bert-base-h100 or gpt2-medium-h100, which have
        measured times; PROFILE.json, a profile; a trace file; or FILE.py:FUNCTION (see 'nearmem
        workload --help')
    """
    from sw_driver.system.memferry.report import report
    from sw_driver.workload.trace import TraceError

    with turning(TraceError, into=Refusal), Screen(options) as watch:
        made = report(
            workload,
            planner=options.planner,
            gpu_bytes=options.gpu_memory,
            reserve=options.reserve,
            device=options.device,
            rule=options.rule,
            batch=options.batch,
            seq=options.seq,
            folder=options.out and output_folder(options.out, "plan"),
            watch=watch,
        )
    return show(made, options)
