"""Schedule of a step on lanes: the GPU, links, cores and drives, each in program order."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from math import ceil

from sw_driver.machine import Machine
from sw_driver.machine.parts import MachineError
from sw_driver.workload import Trace, peak_bytes
from sw_driver.workload.collectives import COLLECTIVES
from sw_driver.workload.offloading import MOVE, place_of
from sw_driver.workload.trace import PLACES, Op

from ..collectives import sent_share
from ..outcome import Outcome, Span, merged
from .system import PARTS, CannotRunError

__all__ = ["LANES", "alone", "collective_ns"]

LANES: Mapping[tuple[str, str], tuple[str, str, bool]] = {
    ("host", "gpu"): ("to the GPU", "pcie", True),
    ("gpu", "host"): ("from the GPU", "pcie", False),
    ("host", "drive"): ("drive", "drive", True),
    ("drive", "host"): ("drive", "drive", False),
}
"""Lanes by the two places of a move, with the link and whether it is written.

A drive reads or writes, one at a time.
"""

_DEVICES = {"gpu": "gpu", "host": "cpu", "drive": "drive"}
"""Devices by the place that they work in."""


_COLLECTIVE_UNITS = 24
"""Multiprocessors that a collective occupies: NCCL has 24 channels on NVLink (assumed)."""


def alone(trace: Trace, machine: Machine) -> Outcome:
    """Return a step whose tensors stay in their places, but for the moves in the trace.

    Every lane works in program order. A collective, a move or an operation of another device begins
    once the GPU's operation before it in the trace is over; operations wait for what they read, and
    for readers of what they overwrite. While a collective runs, the GPU has fewer
    multiprocessors. The latency of a link passes while a move waits for those before it.

    Raises :class:`CannotRunError` for a part that the machine lacks.
    """
    parts: dict[str, int] = dict.fromkeys(PARTS[:-1], 0)
    repeated = {*trace.origin.get("recomputed", ())}
    places = {tensor.place for tensor in trace.tensors}
    is_plain = places <= {"gpu"} and all(op.kind not in COLLECTIVES for op in trace.ops)
    needed = [()] * len(trace.ops) if is_plain else trace.dependencies
    ends_ns = [0] * len(trace.ops)
    free_ns = {"gpu": 0}
    busy_ns = {"gpu": 0}
    units = machine.device("gpu").multiprocessors
    left = 1.0 if units is None else 1 - _COLLECTIVE_UNITS / units.value
    beside = deque[tuple[int, int]]()  # begins and ends of collectives
    spans: list[Span] = []
    lanes_of_updates = set[str]()
    for op, needs in zip(trace.ops, needed, strict=True):
        lane, took_ns, late_ns = (
            ("gpu", machine.device("gpu").cost(op), 0) if is_plain else _cost(op, trace, machine)
        )
        ready_ns = max((ends_ns[number] for number in needs), default=0)
        ready_ns = max(ready_ns, free_ns["gpu"])
        begin_ns = max(ready_ns, free_ns.get(lane, 0))
        took_ns += max(late_ns - (begin_ns - ready_ns), 0)
        if lane == "gpu" and free_ns.get("peers", 0) > begin_ns:
            took_ns = _shared_ns(took_ns, begin_ns, beside, left)
        end_ns = ends_ns[op.id] = free_ns[lane] = begin_ns + took_ns
        busy_ns[lane] = busy_ns.get(lane, 0) + took_ns
        if lane == "peers":
            beside.append((begin_ns, end_ns))
        name = "again" if op.id in repeated else op.phase
        if lane == "gpu":
            part = {"update": "updating", "again": "recomputing"}.get(name, "computing")
            parts[part] += took_ns
        if op.phase == "update" and op.kind not in (MOVE, *COLLECTIVES):
            lanes_of_updates.add(lane)
        if took_ns:
            spans.append(Span(lane=lane, name=name, begin_ns=begin_ns, end_ns=end_ns))
    step_ns = max(free_ns.values())
    if not lanes_of_updates <= {"gpu"}:
        parts["updating"] += step_ns - free_ns["gpu"]
    return Outcome(
        step_ns=step_ns,
        parts_ns=parts,
        peak_bytes={place: peak_bytes(trace, place=place) for place in PLACES if place in places},
        busy_ns=busy_ns,
        spans=merged(spans, step_ns),
    )


def _shared_ns(took_ns: int, begin_ns: int, beside: deque[tuple[int, int]], left: float) -> int:
    """Return the time of an operation that has a share ``left`` of the GPU beside collectives.

    Those that are over by ``begin_ns`` are removed.
    """
    while beside and beside[0][1] <= begin_ns:
        beside.popleft()
    end_ns, work_ns = begin_ns, float(took_ns)
    for first_ns, last_ns in beside:
        alone_ns = min(max(first_ns - end_ns, 0), work_ns)
        work_ns, end_ns = work_ns - alone_ns, end_ns + alone_ns
        shared_ns = min(last_ns - end_ns, work_ns / left) if work_ns else 0
        work_ns, end_ns = work_ns - shared_ns * left, end_ns + shared_ns
    return ceil(end_ns + work_ns) - begin_ns


def _cost(op: Op, trace: Trace, machine: Machine) -> tuple[str, int, int]:
    """Return an operation's lane, its time there, and the latency before it, in ns."""
    if op.kind in COLLECTIVES:
        return "peers", collective_ns(op, trace, machine), 0
    try:
        if op.kind != MOVE:
            place = place_of(op, trace.tensors)
            lane = "in the drive" if place == "drive" else _DEVICES[place]
            return lane, machine.device(_DEVICES[place]).cost(op), 0
        ends = (trace.tensors[op.reads[0]].place, trace.tensors[op.writes[0]].place)
        lane, name, writing = LANES[ends]
        link = machine.link(name)
    except MachineError as error:
        raise CannotRunError(str(error)) from error
    moving_ns = -(-sum(op.read_bytes) * 10**9 // link.rate(writing=writing))
    return lane, moving_ns, int(link.latency_ns.value)


def collective_ns(op: Op, trace: Trace, machine: Machine) -> int:
    """Return the time of a collective on a ring of GPUs, in ns.

    Raises :class:`CannotRunError` if the machine has one GPU.
    """
    width, gpus = (int(trace.origin.get(name, 1)) for name in ("tensor_parallel", "gpus"))
    of_block = not any(trace.tensors[one].parameter is not None for one in op.reads + op.writes)
    many = width if width > 1 and of_block and op.kind == "all_reduce" else gpus // width
    if many == 1:
        return 0
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
