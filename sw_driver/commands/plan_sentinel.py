"""``nearmem plan sentinel``: which of a step's tensors are in a small fast memory, and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from . import FLAT, OutputFolder, OutputOptions, Refusal, new_folder, turning
from .screen import Screen, show

__all__ = ["Options", "run"]


@dataclass(frozen=True, kw_only=True)
class Options(OutputOptions):
    """Options of the command."""

    fast: Annotated[str, Parameter(metavar="PERCENT|BYTES")] = "20%"
    """fast memory, of the most that the step needs at a time, or in bytes, such as 1.5GiB"""
    slow: Annotated[str, Parameter(metavar="NAME")] = "xeon"
    """both memories, by the slow one: xeon (the paper's, across sockets), cxl, nvme or ddr4-800;
    the host's, for a GPU, over pcie3, pcie4 or pcie5"""
    rule: Annotated[str | None, Parameter(metavar="NAME")] = None
    """update rule of a function's model (default: adam)"""
    out: OutputFolder = None
    """folder for a timeline of steps, as trace and pictures, and for the curve (default: none)"""


def run(what: str, /, *, options: Annotated[Options, FLAT] = Options()) -> int:
    """Choose which tensors are in a small fast memory, and when.

    As Sentinel does: tensors that live within a layer have a pool in fast memory; others are moved
    there for the next interval of layers, and away when neither needs them. The best length of
    intervals is found by trying. Prints the step beside that in fast memory alone, what moves most,
    and a curve of what other sizes of fast memory give. Times are by a model.

    Parameters
    ----------
    what
        a network that is shipped, such as resnet32; the file of a trace; or FILE.py:FUNCTION, as
        'nearmem workload' takes it
    """
    from sw_driver.system.sentinel.report import report
    from sw_driver.workload.trace import TraceError

    with turning(TraceError, into=Refusal), Screen(options) as watch:
        made = report(
            what,
            fast=options.fast,
            slow=options.slow,
            rule=options.rule,
            folder=new_folder(options.out),
            watch=watch,
        )
    return show(made, options)
