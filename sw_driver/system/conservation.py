"""Checks of what an engine wrote down, by the machine's figures alone.

What goes into a transfer comes out, no link carries more than its rate at any time, no memory holds
more than it can, and a queue does one thing at a time.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from itertools import pairwise

from ..machine.machine import Hop, Machine
from .log import Held, Log, Ran, Segment, Transferred

__all__ = ["ConservationError", "check_log"]

_GIGA = 10**9


class ConservationError(AssertionError):
    """The log tells of what cannot be."""


def check_log(log: Log, machine: Machine) -> None:
    """Raises :class:`ConservationError` with the first thing found that cannot be."""
    segments: dict[int, list[Segment]] = defaultdict(list)
    for segment in log.segments:
        segments[segment.number].append(segment)
    route = cache(machine.route)
    routes = {each.number: route(each.source, each.target) for each in log.transferred}
    for transfer in log.transferred:
        _check_transfer(transfer, segments.pop(transfer.number, []), routes[transfer.number])
    _require(not segments, "moved for no transfer", segments)
    _check_links(log, machine, routes)
    _check_memories(log.held, machine)
    queues: dict[str, list[Ran]] = defaultdict(list)
    for ran in log.ran:
        _require(ran.begin_ns <= ran.end_ns, "ended before it began", ran)
        queues[ran.queue].append(ran)
    for entries in queues.values():
        for before, after in pairwise(entries):
            _require(before.end_ns <= after.begin_ns, "two at once in a queue", (before, after))


def _check_transfer(transfer: Transferred, segments: list[Segment], route: tuple[Hop, ...]) -> None:
    at_ns = transfer.begin_ns + sum(int(link.latency_ns.value) for link, _ in route)
    moved = last = 0
    for segment in segments:
        _require(segment.begin_ns == at_ns < segment.end_ns, "a gap or overlap", segment)
        _require(segment.bytes_per_s > 0, "a segment that moves nothing", segment)
        moved += segment.bytes_per_s * (segment.end_ns - at_ns)
        last, at_ns = segment.bytes_per_s, segment.end_ns
    _require(at_ns == transfer.end_ns, f"bytes until {at_ns} ns", transfer)
    fits = moved - last < transfer.nbytes * _GIGA <= moved or moved == transfer.nbytes == 0
    _require(fits, f"{moved / _GIGA} bytes fit into the time", transfer)


def _check_links(log: Log, machine: Machine, routes: dict[int, tuple[Hop, ...]]) -> None:
    changes: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for segment in log.segments:
        for link, writing in routes[segment.number]:
            # Of a half-duplex link, what one direction has is not there for the other: a rate
            # counts by the other's, and together they may be the product of both.
            half = link.sharing == "half"
            name = link.name if half else f"{link.name} {'write' if writing else 'read'}"
            used = segment.bytes_per_s * (link.rate(writing=not writing) if half else 1)
            changes[name] += [(segment.begin_ns, used, 1), (segment.end_ns, -used, 0)]
    for link in machine.links:
        read, write = link.rate(writing=False), link.rate(writing=True)
        budgets = {link.name: read * write, f"{link.name} read": read, f"{link.name} write": write}
        for name, budget in budgets.items():
            used = 0
            for at_ns, change, _ in sorted(changes[name], key=lambda each: (each[0], each[2])):
                used += change
                _require(used <= budget, f"above the rate of link {name}", f"at {at_ns} ns")


def _check_memories(changes: list[Held], machine: Machine) -> None:
    held: dict[str, dict[object, int]] = {memory.name: {} for memory in machine.memories}
    capacity = {memory.name: memory.capacity_bytes.value for memory in machine.memories}
    sums = dict.fromkeys(held, 0)
    for change in changes:
        holders = held[change.memory]
        if change.key in holders:
            _require(holders.pop(change.key) == -change.nbytes, "not what was taken", change)
        else:
            _require(change.nbytes >= 0, "given, not taken", change)
            holders[change.key] = change.nbytes
        sums[change.memory] += change.nbytes
        _require(sums[change.memory] <= capacity[change.memory], "more than there is", change)


def _require(condition: bool, said: str, what: object) -> None:
    if not condition:
        raise ConservationError(f"{said}: {what}")
