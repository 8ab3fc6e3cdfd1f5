"""``nearmem compare``: systems that could train a model, with time, memory and energy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from . import (
    FLAT,
    OUTPUT,
    OutputFolder,
    Refusal,
    Settings,
    SizeOptions,
    integer,
    output_folder,
    turning,
)
from .screen import Screen, show

__all__ = ["Options", "run"]

_MEMORY = "gpu.capacity_bytes"


@dataclass(frozen=True, kw_only=True)
class Options(SizeOptions):
    """Options of the command."""

    machine: Annotated[tuple[str, ...], Parameter(metavar="NAME", show_default=" ".join)] = (
        "v100",
    )
    """GPU of the machine, such as v100, a100, h100 or rtx4090; h100x8 has eight; or the FILE.toml
    of nearmem measure; repeatable"""
    memory: Annotated[int | None, integer(1, metavar="BYTES")] = None
    """memory of the GPU, such as 16GiB (default: the memory of that GPU)"""
    set: Settings = ()
    """change a setting of the machine, such as pcie.read_gb_per_s=25; repeatable"""
    precision: Annotated[str, Parameter(metavar="NAME")] = ""
    """formats of numbers: fp32 as in the papers, tf32, bf16-mixed, fp16-mixed, bf16, fp16 or
    fp8-mixed (default: bf16-mixed, on a v100 fp16-mixed, for a step captured in other formats
    those)"""
    checkpoint: Annotated[str, Parameter(metavar="POLICY")] = "none"
    """activations that are computed again: none, full, selective, or selective:TEXT for modules
    with TEXT in their names"""
    optimizer: Annotated[str, Parameter(metavar="NAME")] = ""
    """optimizer, such as adamw, adamw8bit or sgd (default: the captured one)"""
    in_backward: bool = False
    """update a parameter once its gradient is complete"""
    accumulate: Annotated[int, integer(1)] = 1
    """micro-batches of a step"""
    trainable: Annotated[str, Parameter(metavar="PARTS")] = "all"
    """parameters that are trained: all, or adapters as lora:RANK or qlora:RANK"""
    shard: Annotated[str, Parameter(metavar="SCHEME")] = ""
    """data parallelism on several GPUs: ddp, zero1, zero2 or zero3 (default: zero3)"""
    tensor_parallel: Annotated[int, integer(1)] = 1
    """GPUs that split each block of layers"""
    loss_chunks: Annotated[int, integer(1)] = 1
    """chunks of tokens for the output layer and the loss"""
    fused_loss: bool = False
    """cross entropy that reads and writes logits in their own format, 16 bits in mixed precision,
    as FlashAttention's does"""
    compile: bool = False
    """fuse element-wise operations, as a compiler does"""
    all: bool = False
    """show all systems, in place of twelve; takes all cores"""
    break_even: bool = False
    """also search the rate from which near-memory hardware beats what people use"""
    workers: Annotated[str, Parameter(metavar="N|ADDRESS")] = ""
    """processes for --break-even, or the address of a Dask scheduler (default: 1)"""
    assumptions: bool = False
    """print the assumptions, too (--out and --json always have them)"""
    out: OutputFolder = None
    """folder for compare.md with all tables, and for compare/ with pictures of the first workload:
    time against memory, parts of the time, effects of memory, links and batch (default: none)"""
    quiet: Annotated[bool, Parameter(group=OUTPUT)] = False
    """print the table alone"""
    recompute: Annotated[bool, Parameter(show=False)] = False
    """older name of --checkpoint full"""
    rule: Annotated[str | None, Parameter(show=False)] = None
    """older name of --optimizer"""


def run(workload: str, /, *others: str, options: Annotated[Options, FLAT] = Options()) -> int:
    """Show which systems can train a model, and how fast.

    Simulates a training step on systems in use today and on those of five papers: offloading,
    sharding, the AXDIMM platform, MemFerry, Sentinel, MC-DLA's memory-nodes, a heterogeneous PIM.
    Prints which one is the fastest, then times, memory, energy and what bounds them, where the time
    goes, and why a system cannot run the step. All times come from models (--assumptions); nothing
    is measured. With PyTorch, networks of today run, too, such as llama3.1-8b with --machine h100x8
    --batch 1 --checkpoint full.

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
    from sw_driver.system.compare.bases import named
    from sw_driver.system.compare.page import report
    from sw_driver.workload.trace import TraceError
    from sw_driver.workload.training import Training

    if options.recompute:
        raise Refusal("--recompute is now --checkpoint full: give that")
    if options.rule is not None:
        raise Refusal(f"--rule is now --optimizer: give --optimizer {options.rule}")
    if options.workers and not options.break_even:
        raise Refusal(
            f"--workers is {options.workers!r} without --break-even: add it, or leave --workers out"
        )
    changes = split_entries(options.set)
    if options.memory is not None:
        if _MEMORY in changes:
            raise Refusal(f"--memory is {options.memory}, and --set has {_MEMORY}: leave one out")
        changes[_MEMORY] = str(options.memory)
    trainings = {
        machine: Training(
            precision=options.precision,
            checkpoint=options.checkpoint,
            optimizer=options.optimizer,
            in_backward=options.in_backward,
            accumulate=options.accumulate,
            trainable=options.trainable,
            shard=options.shard,
            tensor_parallel=options.tensor_parallel,
            loss_chunks=options.loss_chunks,
            fused_loss=options.fused_loss,
            compiled=options.compile,
            gpus=max(named(machine)[1], 1),
        )
        for machine in options.machine
    }
    first = options.machine[0]
    with turning(TraceError, MachineError, into=Refusal), Screen(options) as watch:
        made = report(
            (workload, *others),
            machine=first,
            changes=changes,
            training=trainings.pop(first),
            others=trainings,
            batch=options.batch,
            seq=options.seq,
            folder=options.out and output_folder(options.out, "compare"),
            everything=options.all,
            shows_assumptions=options.assumptions,
            workers=_workers(options.workers or "1") if options.break_even else None,
            watch=watch,
        )
    return show(made, options)


def _workers(text: str) -> str | int:
    """Return a number of processes, or an address."""
    from sw_driver.numbers import parse_integer

    number = parse_integer(text)
    if number is None and "://" in text:
        return text
    if number is None or not 1 <= number <= 4096:
        raise Refusal(
            f"--workers is {text!r}: expected a number of processes from 1 to 4096, or the address "
            f"of a Dask scheduler, such as tcp://host:8786"
        )
    return number
