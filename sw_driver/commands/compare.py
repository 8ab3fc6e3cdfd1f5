"""``nearmem compare``: which system would train a model, in what time and memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from . import (
    FLAT,
    OutputFolder,
    OutputOptions,
    Refusal,
    Settings,
    integer,
    new_folder,
    turning,
)
from .screen import Screen, show

__all__ = ["Options", "run"]

_MEMORY = "gpu.capacity_bytes"


@dataclass(frozen=True, kw_only=True)
class Options(OutputOptions):
    """Options of the command."""

    machine: Annotated[str, Parameter(metavar="NAME")] = "v100"
    """a GPU at its host, with what the systems add: v100, a100, h100 or rtx4090"""
    memory: Annotated[int | None, integer(1, metavar="BYTES")] = None
    """of the GPU, such as 16GiB (default: the card's)"""
    set: Settings = ()
    """changes the machine, such as pcie.read_gb_per_s=25; may be given several times"""
    recompute: bool = False
    """compute activations again in the backward pass, whatever the system"""
    rule: Annotated[str | None, Parameter(metavar="NAME")] = None
    """update rule of a function's model (default: adam)"""
    out: OutputFolder = None
    """folder for compare.md, a page with all tables, and compare/, pictures of the first network:
    time against memory, where the time goes, and what changes with memory, links and batch
    (default: none)"""


def run(what: str, /, *others: str, options: Annotated[Options, FLAT] = Options()) -> int:
    """Compare systems that would train a model.

    Simulates a training step by each: all on the GPU, recomputation, ZeRO-Offload, the AXDIMM
    platform, MemFerry, Sentinel, MC-DLA's memory-nodes, a heterogeneous PIM. Prints its time, the
    memory that it takes, the largest model that would fit, and energy; why a system cannot run it;
    and what is assumed. Times are by models, and nothing is measured.

    Parameters
    ----------
    what
        a network that is shipped, such as gpt3-13b; the file of a trace; or FILE.py:FUNCTION, as
        'nearmem workload' takes it
    others
        more of these
    """
    from sw_driver.machine import MachineError
    from sw_driver.numbers import split_entries
    from sw_driver.system.compare.page import report
    from sw_driver.workload.trace import TraceError

    changes = split_entries(options.set)
    if options.memory is not None:
        if _MEMORY in changes:
            raise Refusal(f"--memory is {options.memory}, and --set has {_MEMORY}: leave one out")
        changes[_MEMORY] = str(options.memory)
    with turning(TraceError, MachineError, into=Refusal), Screen(options) as watch:
        made = report(
            (what, *others),
            machine=options.machine,
            changes=changes,
            recompute=options.recompute,
            rule=options.rule,
            folder=new_folder(options.out),
            watch=watch,
        )
    return show(made, options)
