"""Record of what an engine did, for checking; no part of the scheduler reads it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise
from typing import NamedTuple

from ..machine.machine import Machine
from ..machine.parts import bytes_per_s

__all__ = [
    "ConservationError",
    "Held",
    "Log",
    "Ran",
    "Segment",
    "Transferred",
    "Worked",
    "check_log",
]


class Ran(NamedTuple):
    """An entry of a queue, in the order of queueing."""

    queue: str
    label: str
    begin_ns: int
    end_ns: int
    after_ns: int = 0
    """End of the last entry that it had to wait for, in ns."""


class Transferred(NamedTuple):
    """A transfer of bytes, between memories or of a device's work."""

    number: int
    """Number by which its segments refer to it."""
    label: str
    nbytes: int
    source: str
    target: str
    begin_ns: int
    """Start of the latency, in ns; bytes move after it."""
    end_ns: int
    after_ns: int = 0
    device: str = ""
    """Device whose work it belongs to; empty for a transfer between memories."""


class Worked(NamedTuple):
    """Work of a device: time, and bytes that it moves."""

    device: str
    begin_ns: int
    end_ns: int
    launch_ns: int
    duration_ns: int
    """Duration in ns, without the launch."""
    flows: Sequence[tuple[int, str, str]]
    """Bytes, source and target of each flow."""
    moved: tuple[int, ...]
    """Numbers of its :class:`Transferred`, in the order of the flows."""


class Segment(NamedTuple):
    """A span in which a transfer moved bytes at one rate.

    The last nanosecond of a transfer may be less than full. ``number`` is that of its
    :class:`Transferred`.
    """

    number: int
    begin_ns: int
    end_ns: int
    bytes_per_s: int


class Held(NamedTuple):
    """Memory that was taken, or given back if ``nbytes`` is negative."""

    at_ns: int
    memory: str
    key: object
    nbytes: int


@dataclass(kw_only=True)
class Log:
    """Everything that an engine recorded."""

    ran: list[Ran] = field(default_factory=list)
    transferred: list[Transferred] = field(default_factory=list)
    worked: list[Worked] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)


_GIGA = 10**9


class ConservationError(AssertionError):
    """The log contains something impossible."""


def check_log(log: Log, machine: Machine) -> None:
    """Raise :class:`ConservationError` for the first impossible record, by the machine's figures.

    It checks that:

    - a transfer delivers the bytes that it takes in;
    - no link, memory or device exceeds its rate at any time;
    - work takes its time and moves its bytes;
    - no memory holds more than its capacity;
    - a queue runs one entry at a time;
    - nothing begins before what it waits for has ended.
    """
    segments: dict[int, list[Segment]] = defaultdict(list)
    for segment in log.segments:
        segments[segment.number].append(segment)
    known = {transfer.number: transfer for transfer in log.transferred}
    way = cache(partial(_way, machine))
    budgets: dict[str, int] = {}
    changes: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for transfer in log.transferred:
        latency_ns, uses = way(transfer.source, transfer.target, transfer.device)
        pieces = segments.pop(transfer.number, [])
        _check_transfer(transfer, pieces, latency_ns)
        for name, budget, weight in uses:
            budgets[name] = budget
            for segment in pieces:
                used = weight * segment.bytes_per_s
                changes[name] += [(segment.begin_ns, used, 1), (segment.end_ns, -used, 0)]
    _require(not segments, "segments of no transfer", segments)
    for name, budget in budgets.items():
        used = 0
        for at_ns, change, _ in sorted(changes[name], key=lambda entry: (entry[0], entry[2])):
            used += change
            _require(used <= budget, f"above the rate of {name}", f"at {at_ns} ns")
    moved = sorted(number for worked in log.worked for number in worked.moved)
    parts = sorted(transfer.number for transfer in log.transferred if transfer.device)
    _require(moved == parts, "transfers of no work, or of two", (moved, parts))
    for worked in log.worked:
        _check_work(worked, [known[number] for number in worked.moved], machine)
    _check_memories(log.held, machine)
    queues: dict[str, list[Ran]] = defaultdict(list)
    for entry in (*log.ran, *log.transferred):
        _require(entry.after_ns <= entry.begin_ns, "began before what it waits for", entry)
    for ran in log.ran:
        _require(ran.begin_ns <= ran.end_ns, "ended before it began", ran)
        queues[ran.queue].append(ran)
    for entries in queues.values():
        for before, after in pairwise(entries):
            _require(before.end_ns <= after.begin_ns, "two at once in a queue", (before, after))


def _check_transfer(transfer: Transferred, segments: list[Segment], latency_ns: int) -> None:
    at_ns = transfer.begin_ns + latency_ns
    moved = last = 0
    for segment in segments:
        _require(segment.begin_ns == at_ns < segment.end_ns, "a gap or overlap", segment)
        _require(segment.bytes_per_s > 0, "a segment that moves nothing", segment)
        moved += segment.bytes_per_s * (segment.end_ns - at_ns)
        last, at_ns = segment.bytes_per_s, segment.end_ns
    _require(at_ns == transfer.end_ns, f"segments end at {at_ns} ns", transfer)
    fits = moved - last < transfer.nbytes * _GIGA <= moved or moved == transfer.nbytes == 0
    _require(fits, f"{moved / _GIGA} bytes fit into the time", transfer)


def _way(
    machine: Machine, source: str, target: str, device: str
) -> tuple[int, list[tuple[str, int, int]]]:
    """Return the latency in ns and the budgets that a transfer uses.

    A budget is its name, its amount a second, and the amount that each byte takes.
    """
    uses = []
    route = () if device and source == target else machine.route(source, target)
    for link, writing in route:
        # On a half-duplex link, one direction takes from the other: a rate is weighted by the
        # other's, and together they may reach the product of both.
        rate, other = link.rate(writing=writing), link.rate(writing=not writing)
        if link.sharing == "half":
            uses.append((f"link {link.name}", rate * other, other))
        else:
            uses.append((f"link {link.name} {'write' if writing else 'read'}", rate, 1))
    memories = {source, target}
    if device:
        own = machine.device(device)
        if source == target:
            uses.append((f"device {device}", own.bytes_per_s, 1))
        else:
            memories.remove(own.memory)
    for memory in machine.memories:
        if memory.name in memories and memory.total_gb_per_s is not None:
            part = " for work" * (memory.transfers == "apart" and bool(device))
            uses.append((f"memory {memory.name}{part}", bytes_per_s(memory.total_gb_per_s), 1))
    return sum(int(link.latency_ns.value) for link, _ in route), uses


def _check_work(worked: Worked, moved: list[Transferred], machine: Machine) -> None:
    flows = [(transfer.nbytes, transfer.source, transfer.target) for transfer in moved]
    _require(flows == list(worked.flows), "transfers other than the flows of the work", worked)
    launched_ns = at_ns = worked.begin_ns + worked.launch_ns
    for transfer in moved:
        _require(transfer.begin_ns == at_ns, "bytes moved out of turn", worked)
        if machine.device(worked.device).accesses == "in_turn":
            at_ns = transfer.end_ns
    over_ns = max([launched_ns + worked.duration_ns, *(transfer.end_ns for transfer in moved)])
    _require(over_ns == worked.end_ns, f"work that is over at {over_ns} ns", worked)


def _check_memories(changes: list[Held], machine: Machine) -> None:
    held: dict[str, dict[object, int]] = {memory.name: {} for memory in machine.memories}
    capacity = {memory.name: memory.capacity_bytes.value for memory in machine.memories}
    sums = dict.fromkeys(held, 0)
    for change in changes:
        holders = held[change.memory]
        if change.key in holders:
            _require(
                holders.pop(change.key) == -change.nbytes,
                "freed another number of bytes than taken",
                change,
            )
        else:
            _require(change.nbytes >= 0, "freed without being taken", change)
            holders[change.key] = change.nbytes
        sums[change.memory] += change.nbytes
        _require(sums[change.memory] <= capacity[change.memory], "above the capacity", change)


def _require(condition: bool, fault: str, record: object) -> None:
    if not condition:
        raise ConservationError(f"{fault}: {record}")
