"""Traces of mixed precision whose GPU has parameters in 16 bits, and the optimizer those in FP32.

Autocast keeps parameters in FP32 and casts them in each step. DeepSpeed and Megatron keep 16-bit
parameters, and give the optimizer a master copy in FP32. An update writes both. Nothing else
changes: a step takes 2 + 2 + 12 bytes a parameter with Adam (Rajbhandari et al., ZeRO, section 3).
"""

from __future__ import annotations

from dataclasses import replace

from .products import GATHERS
from .edits import Rewriting
from .trace import Op, Trace

__all__ = ["with_masters"]


def with_masters(trace: Trace) -> Trace:
    """Return the step with masters of its cast parameters among the optimizer's states.

    A parameter that is cast once, and else only looked up, becomes that copy; its own tensor
    becomes an ``optimizer_state``. A gradient that is cast to FP32 stays as it was. Parameters of other
    uses, such as those of norms, stay in FP32. So does a gradient that several casts add up to.
    """
    step = Rewriting(trace)
    copies = _copies(trace)
    sources = _gradients(trace, {master: copy.writes[0] for master, copy in copies.items()})
    dropped = {op.id for op in copies.values()}
    gone = set[int]()
    instead: dict[int, int] = {}
    for master, op in copies.items():
        copy, tensor = op.writes[0], trace.tensors[master]
        step.change(
            copy, kind="parameter", name=tensor.name, parameter=None, allocated=0, freed=None
        )
        step.change(master, kind="optimizer_state", parameter=copy)
        for other in trace.tensors:
            if other.parameter == master:
                step.change(other.id, parameter=copy)
    for gradient, op in sources.items():
        narrow = op.reads[0]
        tensor = step.tensors[gradient]
        step.change(narrow, kind="gradient", name=tensor.name, parameter=tensor.parameter)
        instead[gradient] = narrow
        dropped.add(op.id)
        gone.add(gradient)
    for op in trace.ops:
        if op.id in dropped:
            continue
        master = next((one for one in op.reads if one in copies), None)
        if master is not None:
            copy = copies[master].writes[0]
            lookup = op.phase != "update"
            op = _looked_up(op, master, copy) if lookup else _update(op, trace, copy, instead)
        step.add(op, op.id)
    return step.finish("masters=optimizer", gone)


def _copies(trace: Trace) -> dict[int, Op]:
    """Return, by updated parameter, the cast that all other operations use it by."""
    copies: dict[int, Op] = {}
    for tensor in trace.tensors:
        if tensor.kind != "parameter":
            continue
        users = [trace.ops[number] for number in trace.accesses[tensor.id]]
        passes = [op for op in users if op.phase != "update"]
        casts = [op for op in passes if op.kind == "_to_copy"]
        rest = [op for op in passes if op.kind not in ("_to_copy", *GATHERS)]
        if len(users) > len(passes) and len(casts) == 1 and not rest:
            copies[tensor.id] = casts[0]
    return copies


def _gradients(trace: Trace, copies: dict[int, int]) -> dict[int, Op]:
    """Return, by gradient of a cast parameter, the cast that alone makes it."""
    casts: dict[int, Op] = {}
    for tensor in trace.tensors:
        if tensor.kind == "gradient" and tensor.parameter in copies:
            writers = [
                trace.ops[n] for n in trace.accesses[tensor.id] if trace.ops[n].phase != "update"
            ]
            if len(writers) == 1 and writers[0].kind == "_to_copy":
                casts[tensor.id] = writers[0]
    return casts


def _looked_up(op: Op, master: int, copy: int) -> Op:
    """Return a look-up of rows in 16 bits."""
    reads = tuple(copy if one == master else one for one in op.reads)
    sizes = zip(op.reads, op.read_bytes, strict=True)
    read_bytes = tuple(nbytes // 2 if one == master else nbytes for one, nbytes in sizes)
    return replace(op, reads=reads, read_bytes=read_bytes)


def _update(op: Op, trace: Trace, copy: int, instead: dict[int, int]) -> Op:
    reads = tuple(instead.get(one, one) for one in op.reads)
    sizes = [
        trace.tensors[one].nbytes if one != before else nbytes
        for one, before, nbytes in zip(reads, op.reads, op.read_bytes, strict=True)
    ]
    return replace(
        op,
        reads=reads,
        read_bytes=tuple(sizes),
        writes=(*op.writes, copy),
        write_bytes=(*op.write_bytes, trace.tensors[copy].nbytes),
    )
