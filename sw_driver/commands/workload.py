"""``nearmem workload``: what a training step is made of."""

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

    rule: Annotated[str | None, Parameter(metavar="NAME")] = None
    """update rule of a function's model (default: adam)"""
    out: OutputFolder = None
    """folder for a picture of the bytes that have memory in each operation, and for the trace of a
    function (default: none)"""


def run(what: str, /, *, options: Annotated[Options, FLAT] = Options()) -> int:
    """Show a training step: operations, bytes, lifetimes.

    Shows what a network's training step is made of: operations of each pass, bytes of each kind of
    tensor and at the peak, in how many stages (a layer's forward or backward pass) tensors live,
    and the ten most expensive operations. The step of a function is captured by PyTorch, without
    memory for the model or a GPU.

    Parameters
    ----------
    what
        a network that is shipped, such as gpt3-xl; the file of a trace; or FILE.py:FUNCTION, which
        takes nothing and returns (model, batch, step), so that step(model, *batch) is the loss
    """
    from sw_driver.system.workload import report
    from sw_driver.workload.trace import TraceError

    with turning(TraceError, into=Refusal), Screen(options) as watch:
        folder = new_folder(options.out)
        made = report(what, rule=options.rule, folder=folder, watch=watch)
    return show(made, options)
