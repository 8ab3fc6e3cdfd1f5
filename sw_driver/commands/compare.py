"""``nearmem compare``: systems that could train a model, with time, memory and energy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from . import (
    FLAT,
    OutputFolder,
    Refusal,
    Settings,
    WorkloadOptions,
    integer,
    output_folder,
    turning,
)
from .screen import Screen, show

__all__ = ["Options", "run"]

_MEMORY = "gpu.capacity_bytes"


@dataclass(frozen=True, kw_only=True)
class Options(WorkloadOptions):
    """Options of the command."""

    machine: Annotated[str, Parameter(metavar="NAME")] = "v100"
    """GPU of the machine: v100, a100, h100 or rtx4090"""
    memory: Annotated[int | None, integer(1, metavar="BYTES")] = None
    """memory of the GPU, such as 16GiB (default: the memory of that GPU)"""
    set: Settings = ()
    """change a setting of the machine, such as pcie.read_gb_per_s=25; may be given several times"""
    recompute: bool = False
    """recompute activations in the backward pass on every system"""
    out: OutputFolder = None
    """folder for compare.md with all tables, and for compare/ with pictures of the first workload:
    time against memory, parts of the time, effects of memory, links and batch (default: none)"""


def run(workload: str, /, *others: str, options: Annotated[Options, FLAT] = Options()) -> int:
    """Show which systems can train a model, and how fast.

    Simulates a training step on each system: GPU only, recomputation, ZeRO-Offload, the AXDIMM
    platform, MemFerry, Sentinel, MC-DLA's memory-nodes, a heterogeneous PIM. Prints step time,
    memory, energy, the largest model that fits, and why a system cannot run the step. All times
    come from models; the assumptions are printed. Nothing is measured.

    Example: nearmem compare gpt3-13b --memory 24GiB

    Parameters
    ----------
    workload
        a shipped network, such as gpt3-13b; a trace file; or FILE.py:FUNCTION (see 'nearmem
        workload --help')
    others
        more workloads
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
            (workload, *others),
            machine=options.machine,
            changes=changes,
            recompute=options.recompute,
            rule=options.rule,
            batch=options.batch,
            seq=options.seq,
            folder=options.out and output_folder(options.out, "compare"),
            watch=watch,
        )
    return show(made, options)
