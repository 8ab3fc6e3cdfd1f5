"""Training on the GPU alone: all in its memory, or with activations computed again."""

from __future__ import annotations

from math import ceil

from sw_driver.machine import Machine
from sw_driver.workload import Trace, peak_bytes
from sw_driver.workload.collectives import COLLECTIVES
from sw_driver.workload.recomputation import recomputed
from sw_driver.workload.trace import Op

from ..collectives import sent_share
from ..outcome import Outcome
from .system import PARTS, CannotRunError, Need, Needs, System

__all__ = ["RECOMPUTED", "SYSTEMS", "alone", "collective_ns"]

RECOMPUTED = (
    "Only activations between blocks are kept; others are computed again, once, before the "
    "backward pass needs them."
)


def alone(trace: Trace, machine: Machine) -> Outcome:
    """Return a step with everything in the GPU's memory.

    Collectives run beside operations, one after the other. One begins once the operation before it
    in the trace is over; operations wait for what it writes. Raises :class:`CannotRunError` for a
    step of several GPUs on a machine without a link between them.
    """
    parts: dict[str, int] = dict.fromkeys(PARTS[:-1], 0)
    repeated = {*trace.origin.get("recomputed", ())}
    gpu = machine.device("gpu")
    shared = any(op.kind in COLLECTIVES for op in trace.ops)
    needed = trace.dependencies if shared else [()] * len(trace.ops)
    ends_ns = [0] * len(trace.ops)
    over_ns = peers_ns = 0
    for op, needs in zip(trace.ops, needed, strict=True):
        begin_ns = max((ends_ns[number] for number in needs), default=0)
        if op.kind in COLLECTIVES:
            begin_ns = max(begin_ns, over_ns, peers_ns)
            peers_ns = ends_ns[op.id] = begin_ns + collective_ns(op, trace, machine)
            continue
        again = "recomputing" if op.id in repeated else "computing"
        took_ns = gpu.cost(op)
        parts["updating" if op.phase == "update" else again] += took_ns
        over_ns = ends_ns[op.id] = max(begin_ns, over_ns) + took_ns
    return Outcome(
        step_ns=max(over_ns, peers_ns),
        parts_ns=parts,
        peak_bytes={"gpu": peak_bytes(trace)},
        busy_ns={"gpu": sum(parts.values())},
    )


def collective_ns(op: Op, trace: Trace, machine: Machine) -> int:
    """Return the time of a collective on a ring of GPUs, in ns.

    Raises :class:`CannotRunError` if the machine has one GPU.
    """
    width, gpus = (int(trace.origin.get(name, 1)) for name in ("tensor_parallel", "gpus"))
    of_block = not any(trace.tensors[one].parameter is not None for one in op.reads + op.writes)
    many = width if width > 1 and of_block and op.kind == "all_reduce" else gpus // width
    if all(link.name != "peers" for link in machine.links):
        raise CannotRunError(
            f"{trace.name} is a step of {gpus} GPUs, and {machine.name} has one: give "
            f"{machine.name}x{gpus}"
        )
    peers = machine.link("peers")
    nbytes = max(sum(op.read_bytes), sum(op.write_bytes))
    kind = "all-reduce" if op.kind == "all_reduce" else "all-gather"
    rate = min(peers.rate(writing=writing) for writing in (True, False))  # a ring does both at once
    moving_ns = nbytes * sent_share(kind, many) * 10**9 / rate
    return ceil(moving_ns) + int(peers.latency_ns.value)


def _needs(trace: Trace, _: Machine) -> Needs:
    return {"gpu": Need.of_all(trace)}


def _again(trace: Trace) -> Trace:
    if "gpus" in trace.origin and "recomputed" not in trace.origin:
        raise CannotRunError(
            f"checkpoints have their place in a step before {trace.origin['gpus']} GPUs share it: "
            f"give --checkpoint full"
        )
    return recomputed(trace)


SYSTEMS = (
    System(name="all on the GPU", mark="predicted", needs=_needs, run=alone, several_gpus=True),
    System(
        name="recomputation",
        mark="predicted",
        assumptions=((RECOMPUTED, lambda trace: "recomputed" not in trace.origin),),
        needs=lambda trace, machine: _needs(_again(trace), machine),
        run=lambda trace, machine: alone(_again(trace), machine),
        several_gpus=True,
    ),
)
