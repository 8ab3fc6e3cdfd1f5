"""``nearmem plan memferry``: how a GPU gets at each layer's parameters in the host's memory."""

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

    planner: Annotated[str, Parameter(metavar="NAME")] = "ours"
    """printed or repaired (the paper's algorithm), exact (the forward pass on the paper's link),
    exact-step (the step of 8 layers or fewer), or ours"""
    gpu_memory: Annotated[int | None, integer(1, metavar="BYTES")] = None
    """that the plan may take, such as 16GiB (default: any amount)"""
    reserve: Annotated[float, Parameter(metavar="SHARE")] = 1.0
    """of all gradients that may stay in the GPU's memory, from 0 to 1"""
    device: Literal["v100", "a100"] | None = None
    """whose times a cost model finds for a network (default: v100)"""
    rule: Annotated[str | None, Parameter(metavar="NAME")] = None
    """update rule of a function's model (default: adam)"""
    out: OutputFolder = None
    """folder for the profile and the step's timeline, as trace and pictures (default: none)"""


def run(what: str, /, *, options: Annotated[Options, FLAT] = Options()) -> int:
    """Choose for each layer whether a GPU copies or reads its parameters.

    Parameters and optimizer are in the host's memory, as in ZeRO-Offload. Each layer's parameters
    are copied to the GPU (GFGB), read by it where they are (DHA), or read in the forward pass and
    copied for the backward pass (DFGB); gradients stay or are written to the host's memory at once.
    Prints the plan, its time and memory beside other ways, and what would help most. Times are of
    the profile, or of a cost model.

    Parameters
    ----------
    what
        a file of a profile, PROFILE.json; bert-base-h100 or gpt2-medium-h100, whose times are
        measured; a network that is shipped, such as bert-base; the file of a trace; or
        FILE.py:FUNCTION, as 'nearmem workload' takes it
    """
    from sw_driver.system.memferry.report import report
    from sw_driver.workload.trace import TraceError

    with turning(TraceError, into=Refusal), Screen(options) as watch:
        made = report(
            what,
            planner=options.planner,
            gpu_bytes=options.gpu_memory,
            reserve=options.reserve,
            device=options.device,
            rule=options.rule,
            folder=new_folder(options.out),
            watch=watch,
        )
    return show(made, options)
