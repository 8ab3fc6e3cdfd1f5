"""A profile by a cost model, for a network with a trace of its training step.

Nothing is measured. The GPU's time of an operation is :meth:`~sw_driver.machine.parts.Device.cost`.
A module that reads parameters is a layer. Other operations are in the gap after the layer before
them, or in the backward pass in the gap of the layer after them. A parameter belongs to the module
that first reads all of it. So a table that is also the output's weight belongs to the output, and
its embedding moves only the rows that it looks up.

The GPU's accesses to the host's memory cross the link while the operation runs:

- A lookup reads its rows.
- A product reads its weights once for every :data:`TILE_ROWS` samples. Each tile of the result
  reads the columns that it needs, and none are kept for the next tile.
- All other operations read parameters once.
- Gradients are written once; an embedding writes its whole table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from math import ceil

from sw_driver.machine.machine import Machine
from sw_driver.workload.summary import alive_bytes
from sw_driver.workload.trace import Op, Trace, TraceError

from .profile import LayerProfile, ModelProfile

__all__ = ["TILE_ROWS", "profile_of"]

TILE_ROWS = 128
"""Rows of a result that a block of threads computes.

Assumed as CUTLASS's default for FP32 without tensor cores, 128 x 128.
"""

_GIGA = 10**9


def profile_of(trace: Trace, machine: Machine) -> ModelProfile:
    """Return the profile of a training step, by the costs of a machine.

    Layers run on its ``gpu``, over its link ``pcie``, and the update on its ``cpu``. Raises
    :class:`~sw_driver.workload.trace.TraceError` for a step that reads no parameter.
    """
    numbers, owners = _layers(trace)
    if not numbers:
        raise TraceError(f"{trace.name} reads no parameter: give the step of a model that has some")
    gpu, link = machine.device("gpu"), machine.link("pcie")

    def crossing_ns(nbytes: int, *, writing: bool) -> int:
        return -(-nbytes * _GIGA // link.rate(writing=writing))

    alone, slower = Counter[tuple[int, str]](), Counter[tuple[int, str]]()
    nbytes, frozen, rows, kept, workspace = (Counter[int]() for _ in range(5))
    trained = {tensor.parameter for tensor in trace.tensors if tensor.kind == "gradient"}
    for tensor, owner in owners.items():
        nbytes[owner] += trace.tensors[tensor].nbytes
        frozen[owner] += (tensor not in trained) * trace.tensors[tensor].nbytes
    temporary = alive_bytes(trace, "temporary")
    number_of = {}
    for op, number, inside in _placed(trace, numbers, owners):
        number_of[op.id] = number
        workspace[number] = max(workspace[number], temporary[op.id])
        cost = gpu.cost(op)
        alone[number, op.phase if inside else f"gap_{op.phase}"] += cost
        crossing = Counter[tuple[int, str]]()
        for tensor, size in zip(op.reads, op.read_bytes, strict=True):
            if inside and tensor in owners:
                if owners[tensor] > number:
                    rows[number] += size
                owner = min(owners[tensor], number)
                crossing[owner, op.phase] += size * _times_read(trace, op)
        for tensor, size in zip(op.writes, op.write_bytes, strict=True):
            parameter = trace.tensors[tensor].parameter
            if trace.tensors[tensor].kind == "gradient" and parameter is not None:
                crossing[owners[parameter], "gradient"] += size
        for (owner, access), size in crossing.items():
            ns = crossing_ns(size, writing=access != "gradient")
            slower[owner, access] += max(ns - cost, 0)
    kept[0] = sum(tensor.nbytes for tensor in trace.tensors if tensor.kind == "input")
    for tensor in trace.tensors:
        if tensor.kind == "activation":
            kept[number_of[tensor.allocated]] += tensor.nbytes

    def layer(name: str, number: int) -> LayerProfile:
        forward, backward = alone[number, "forward"], alone[number, "backward"]
        moved = nbytes[number] + rows[number]
        return LayerProfile(
            name=name,
            nbytes=nbytes[number],
            transfer_ns=crossing_ns(moved, writing=True) + int(link.latency_ns.value),
            forward_ns=forward,
            forward_dha_ns=forward + slower[number, "forward"],
            backward_ns=backward,
            backward_dha_ns=backward + slower[number, "backward"],
            backward_gradient_dha_ns=max(
                backward + slower[number, "gradient"],
                crossing_ns(moved - frozen[number], writing=False),
            ),
            gap_forward_ns=alone[number, "gap_forward"],
            gap_backward_ns=alone[number, "gap_backward"],
            activation_bytes=kept[number],
            workspace_bytes=workspace[number],
            frozen_bytes=frozen[number],
        )

    cpu = machine.device("cpu")
    return ModelProfile(
        device=f"{machine.name}, by a cost model",
        link_bytes_per_s=link.rate(writing=True),
        update_ns=sum(cpu.cost(op) for op in trace.ops if op.phase == "update"),
        layers=tuple(layer(trace.layers[module], number) for module, number in numbers.items()),
    )


def _layers(trace: Trace) -> tuple[dict[int, int], dict[int, int]]:
    """Return the number of each module that is a layer, and the layer of each parameter."""
    numbers: dict[int, int] = {}
    owners: dict[int, int] = {}
    read: Counter[int] = Counter()
    """Most bytes of each parameter that one operation of its owner reads."""
    for op in trace.ops:
        for tensor, nbytes in zip(op.reads, op.read_bytes, strict=True):
            parameter = trace.tensors[tensor]
            if op.phase == "forward" and parameter.kind == "parameter":
                number = numbers.setdefault(op.layer, len(numbers))
                if tensor not in owners or read[tensor] < parameter.nbytes <= nbytes:
                    owners[tensor] = number
                read[tensor] = max(read[tensor], nbytes)
    return numbers, owners


def _placed(
    trace: Trace, numbers: Mapping[int, int], owners: Mapping[int, int]
) -> Iterator[tuple[Op, int, bool]]:
    """Yield each operation of both passes, its layer, and whether it is in the layer or the gap."""
    reached = 0
    waiting: list[Op] = []
    for op in trace.ops:
        if op.phase == "update":
            continue
        gradient = any(trace.tensors[tensor].kind == "gradient" for tensor in op.writes)
        inside = (gradient or any(tensor in owners for tensor in op.reads)) and op.layer in numbers
        if not inside and op.phase != "forward":
            waiting.append(op)
            continue
        if inside:
            reached = numbers[op.layer]
        yield from ((waiting_op, reached, False) for waiting_op in waiting)
        waiting = []
        yield op, reached, inside
    yield from ((op, 0, False) for op in waiting)


def _times_read(trace: Trace, op: Op) -> int:
    """Return the number of times that an operation reads its parameters."""
    if op.geometry is None:
        return 1
    read = map(trace.tensors.__getitem__, op.reads)
    weights = [tensor for tensor in read if tensor.kind == "parameter"]
    elements = max(tensor.nbytes // tensor.element_bytes for tensor in weights)
    return max(ceil(op.flops / (2 * elements * TILE_ROWS)), 1)
