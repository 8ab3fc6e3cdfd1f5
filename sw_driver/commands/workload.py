"""``nearmem workload``: operations, bytes and lifetimes of a training step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from . import FLAT, OutputFolder, Refusal, WorkloadOptions, output_folder, turning
from .screen import Screen, show

__all__ = ["Options", "run"]


@dataclass(frozen=True, kw_only=True)
class Options(WorkloadOptions):
    """Options of the command."""

    out: OutputFolder = None
    """folder for a picture of the allocated bytes over the step's operations, and for the trace of
    a captured step (default: none)"""


def run(workload: str, /, *, options: Annotated[Options, FLAT] = Options()) -> int:
    """Show the operations, memory and tensor lifetimes of a network's training step.

    Prints the operations of each pass, the bytes by kind of tensor, the number of stages (forward
    or backward passes of a layer) that tensors live, and the ten most expensive operations. Every
    kind peaks at its own time; peak bytes are those of all kinds together.

    PyTorch captures a step from code; that takes no GPU and no memory for the model.

    Example: nearmem workload gpt3-xl

    Parameters
    ----------
    workload
        a shipped network, such as gpt3-xl; a GPT-2, MPT, Falcon, Llama, Qwen or ViT, such as
        llama3.1-8b, which PyTorch captures from its code; a trace file; or FILE.py:FUNCTION: a
        function that returns (model, batch, step), so that step(model, *batch) is the loss
    """
    from sw_driver.system.workload import report
    from sw_driver.workload.trace import TraceError

    with turning(TraceError, into=Refusal), Screen(options) as watch:
        folder = options.out and output_folder(options.out, "workload")
        made = report(
            workload,
            rule=options.rule,
            batch=options.batch,
            seq=options.seq,
            folder=folder,
            watch=watch,
        )
    return show(made, options)
