"""Traces of mixed precision whose GPU has parameters in 16 bits, and the optimizer those in FP32.

Autocast keeps parameters in FP32 and casts them in each step. DeepSpeed and Megatron keep 16-bit
parameters, and give the optimizer a master copy in FP32. An update writes both. Nothing else
changes: a step takes 2 + 2 + 12 bytes a parameter with Adam (Rajbhandari et al., ZeRO, section 3).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import chain

from .edits import marked, rebuilt
from .products import GATHERS
from .trace import Op, Trace

__all__ = ["widened", "with_masters"]


def with_masters(trace: Trace) -> Trace:
    """Return the step with masters of its cast parameters among the optimizer's states.

    A parameter that is only cast to one format, and looked up, becomes that copy, which repeated
    casts share; its own tensor becomes an ``optimizer_state``. A gradient that is cast to FP32
    stays as it was. Parameters of other uses, such as those of norms, stay in FP32. So does a
    gradient that several casts add up to. A step without cast parameters is returned as it is.
    """
    copies = _copies(trace)
    if not copies:
        return trace
    origin = marked(trace, "masters", "optimizer")
    copy_of = {master: ops[0].writes[0] for master, ops in copies.items()}
    first_of = {op.writes[0]: copy_of[master] for master, ops in copies.items() for op in ops}
    casts = _gradients(trace, copies)
    narrow_of = {gradient: op.reads[0] for gradient, op in casts.items()}
    tensors = [
        tensor
        if tensor.parameter is None
        else replace(tensor, parameter=copy_of.get(tensor.parameter, tensor.parameter))
        for tensor in trace.tensors
    ]
    for master, copy in copy_of.items():
        tensors[copy] = replace(
            tensors[copy], kind="parameter", name=tensors[master].name, allocated=0, freed=None
        )
        tensors[master] = replace(tensors[master], kind="optimizer_state", parameter=copy)
    for gradient, narrow in narrow_of.items():
        owner = {"name": tensors[gradient].name, "parameter": tensors[gradient].parameter}
        tensors[narrow] = replace(tensors[narrow], kind="gradient", **owner)
    dropped = {op.id for op in (*chain(*copies.values()), *casts.values())}
    groups: list[list[Op]] = [[] if op.id in dropped else [op] for op in trace.ops]
    for op in trace.ops:
        master = next((one for one in op.reads if one in copies), None)
        if op.id in dropped:
            continue
        if master is None:
            reads = tuple(first_of.get(one, one) for one in op.reads)
            groups[op.id] = [replace(op, reads=reads)]
        elif op.phase == "update":
            groups[op.id] = [_update(op, trace, copy_of[master], narrow_of)]
        else:
            groups[op.id] = [_looked_up(op, master, copy_of[master])]
    return rebuilt(trace, groups, tensors, origin)


def widened(trace: Trace) -> Trace:
    """Return a step without autocast, whose updates work on masters and states in FP32.

    Its parameters and gradients stay in 16 bits. A step without 16-bit parameters is returned as it
    is.
    """
    tensors, groups, wide = list(trace.tensors), [[op] for op in trace.ops], dict[int, int]()
    for op in (op for op in trace.ops if op.phase == "update"):
        own = dict.fromkeys(one for one in op.reads + op.writes if tensors[one].element_bytes == 2)
        for one in own:
            tensor = trace.tensors[one]
            if tensor.kind == "gradient":
                continue
            kept = {"nbytes": 4 * tensor.elements, "element_bytes": 4, "kind": "optimizer_state"}
            if tensor.kind == "parameter":
                wide[one] = len(tensors)
                tensors.append(replace(tensor, id=len(tensors), parameter=one, **kept))
            else:
                tensors[one] = replace(tensor, **kept)
        copied = [one for one in op.writes if one in wide]
        reads, writes = (tuple(wide.get(one, one) for one in ids) for ids in (op.reads, op.writes))
        groups[op.id] = [
            replace(
                op,
                reads=reads,
                writes=(*writes, *copied),
                read_bytes=tuple(tensors[one].nbytes for one in reads),
                write_bytes=tuple(tensors[one].nbytes for one in (*writes, *copied)),
            )
        ]
    return rebuilt(trace, groups, tensors, marked(trace, "masters", "optimizer")) if wide else trace


def _copies(trace: Trace) -> dict[int, list[Op]]:
    """Return, by updated parameter, the casts that all but updates and look-ups use it by."""
    copies: dict[int, list[Op]] = {}
    for tensor in trace.tensors:
        if tensor.kind != "parameter":
            continue
        users = [trace.ops[number] for number in trace.accesses[tensor.id]]
        passes = [op for op in users if op.phase != "update"]
        casts = [op for op in passes if op.kind == "_to_copy"]
        rest = [op for op in passes if op.kind not in ("_to_copy", *GATHERS)]
        formats = {(op.dtype, op.write_bytes) for op in casts}
        if len(users) > len(passes) and len(formats) == 1 and not rest:
            copies[tensor.id] = casts
    return copies


def _gradients(trace: Trace, copies: Collection[int]) -> dict[int, Op]:
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


def _update(op: Op, trace: Trace, copy: int, instead: Mapping[int, int]) -> Op:
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
