"""Transfers over links that they share, each at its max-min fair rate.

All transfers rise together until a link is full; those on it stay at that rate, the others rise on
(progressive filling). Rates are whole bytes a second, rounded down, and what is left of a transfer
is counted in 10^-9 bytes, so that every byte is accounted for in integers: a transfer ends with the
first nanosecond at whose end all of it is there. Rates change only with the time: what begins and
ends at one moment is settled together, when the next moment is about to come.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappush
from math import lcm
from operator import attrgetter
from typing import TYPE_CHECKING

from simpy.events import NORMAL

from ..machine.machine import Hop, Machine
from .log import Segment

if TYPE_CHECKING:
    from .engine import Engine, Transfer

__all__ = ["Channel", "Network", "Path"]

_GIGA = 10**9
_KNOWN = 1 << 14
"""Changes of rates that are kept."""
_COUNT_BITS = 24
"""More transfers than fit are never on one path."""


class Channel:
    """A budget that transfers share: a direction of a duplex link, or all of a half-duplex one."""

    __slots__ = ("budget", "busy_ns", "flows", "since_ns")

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.flows = 0
        self.busy_ns = 0
        self.since_ns = 0
        """Of what it is busy with, if there is any."""


class Path:
    """A route, and the transfers that are on it, all at the same rate."""

    __slots__ = (
        "carried_bytes",
        "flows",
        "hops",
        "latency_ns",
        "neighbours",
        "number",
        "rate",
        "shares",
        "unit",
    )

    def __init__(self, number: int, hops: tuple[Hop, ...], shares: Sequence[Share]) -> None:
        self.number = number
        self.hops = hops
        self.shares = shares
        self.latency_ns = sum(int(link.latency_ns.value) for link, _ in hops)
        self.carried_bytes = 0
        self.flows: dict[Transfer, None] = {}
        self.neighbours: list[Path] = []
        """That share a channel with it."""
        self.rate = 0
        """Of each transfer on it, in bytes a second; 0 if there is none."""
        self.unit = 1 << _COUNT_BITS * number
        """What a transfer on it adds to the state."""


Share = tuple[Channel, int]
"""Of a channel's budget, so much is needed for one byte a second."""


class Network:
    """The links of a machine, and what is on them."""

    def __init__(self, engine: Engine, machine: Machine) -> None:
        self._engine = engine
        self._machine = machine
        self._shares: dict[tuple[str, bool], Share] = {}
        self._paths: dict[tuple[str, str], Path] = {}
        self._state = self._settled = 0
        """How many transfers there are on each path, in one number: now, and when it was settled.
        All rates follow from it."""
        self._known: dict[tuple[int, int], list[tuple[Path, int]]] = {}
        """Which rates change between two states, as found before: the same come back all the time,
        and finding them takes the most by far."""
        self.changed: list[Transfer] = []
        """That began or ended since the last settling."""
        for link in machine.links:
            read, write = link.rate(writing=False), link.rate(writing=True)
            if link.sharing == "half":
                budget = lcm(read, write)
                channel = Channel(budget)
                self._shares[link.name, False] = channel, budget // read
                self._shares[link.name, True] = channel, budget // write
            else:
                self._shares[link.name, False] = Channel(read), 1
                self._shares[link.name, True] = Channel(write), 1

    def path(self, source: str, target: str) -> Path:
        """Raises as :meth:`Machine.route` does."""
        path = self._paths.get((source, target))
        if path is None:
            hops = self._machine.route(source, target)
            shares = [self._shares[link.name, writing] for link, writing in hops]
            path = Path(len(self._paths), hops, shares)
            channels = {id(channel) for channel, _ in shares}
            for other in self._paths.values():
                if any(id(channel) in channels for channel, _ in other.shares):
                    path.neighbours.append(other)
                    other.neighbours.append(path)
            self._paths[source, target] = path
        return path

    def totals(self) -> dict[str, dict[str, int]]:
        """See :meth:`~sw_driver.system.engine.Engine.totals`."""
        found = {link.name: {"read_bytes": 0, "write_bytes": 0} for link in self._machine.links}
        for path in self._paths.values():
            for link, writing in path.hops:
                found[link.name]["write_bytes" if writing else "read_bytes"] += path.carried_bytes
        for (name, writing), (channel, _) in self._shares.items():
            found[name]["write_busy_ns" if writing else "read_busy_ns"] = channel.busy_ns
        return found

    def arrives(self, flow: Transfer, at_ns: int) -> bool:
        """Whether a transfer that the clock's list has for that time ends then.

        The list is never searched: an entry that is too late is passed over, and one that is too
        early is put in again.
        """
        if at_ns != flow.listed_ns or flow.callbacks is None:
            return False
        env = self._engine.env
        if flow.rate < 0:
            env._now = at_ns
            if flow.nbytes:
                self._join(flow, at_ns)
                return False
        elif at_ns < flow.due_ns:
            flow.listed_ns = flow.due_ns
            heappush(env._queue, (flow.due_ns, NORMAL, next(env._eid), flow))
            return False
        else:
            self._leave(flow, at_ns)
        flow._value = None
        return True

    def _join(self, flow: Transfer, now_ns: int) -> None:
        flow.rate = 0
        flow.left = flow.nbytes * _GIGA
        flow.since_ns = now_ns
        flow.listed_ns = 1 << 200  # later than anything: it is in the list when it has a rate
        path = flow.path
        path.flows[flow] = None
        for channel, _ in path.shares:
            if not channel.flows:
                channel.since_ns = now_ns
            channel.flows += 1
        self._state += path.unit
        self.changed.append(flow)

    def _leave(self, flow: Transfer, now_ns: int) -> None:
        path = flow.path
        del path.flows[flow]
        path.carried_bytes += flow.nbytes
        for channel, _ in path.shares:
            channel.flows -= 1
            if not channel.flows:
                channel.busy_ns += now_ns - channel.since_ns
        self._state -= path.unit
        self.changed.append(flow)
        log = self._engine.log
        if log is not None:
            log.segments.append(Segment(flow.number, flow.since_ns, now_ns, flow.rate))

    def settle(self) -> None:
        """Gives all transfers that may be concerned their rates, from now on."""
        key = self._settled, self._state
        changes = self._known.get(key)
        if changes is None:
            if len(self._known) >= _KNOWN:
                self._known.clear()
            changes = self._known[key] = self._changes()
        self._settled = self._state
        for path, rate in changes:
            path.rate = rate
            for flow in path.flows:
                if flow.rate != rate:
                    self._run(flow, rate)
        for flow in self.changed:
            if not flow.rate:
                self._run(flow, flow.path.rate)
        self.changed.clear()

    def _changes(self) -> list[tuple[Path, int]]:
        """The rates that are other ones now: of those that share channels with what changed, or
        share them with some that do."""
        waiting = list(dict.fromkeys(flow.path for flow in self.changed))
        changes = [(path, 0) for path in waiting if not path.flows and path.rate]
        paths = {path: None for path in waiting if path.flows}
        while waiting:
            for path in waiting.pop().neighbours:
                if path.flows and path not in paths:
                    paths[path] = None
                    waiting.append(path)
        rates = _fair_rates(sorted(paths, key=attrgetter("number")))
        return changes + [(path, rate) for path, rate in rates.items() if path.rate != rate]

    def _run(self, flow: Transfer, rate: int) -> None:
        engine = self._engine
        env = engine.env
        now = env._now
        if now != flow.since_ns:
            flow.left -= flow.rate * (now - flow.since_ns)
            if engine.log is not None:
                engine.log.segments.append(Segment(flow.number, flow.since_ns, now, flow.rate))
            flow.since_ns = now
        flow.rate = rate
        flow.due_ns = due_ns = now - (-flow.left // rate)
        if due_ns < flow.listed_ns:
            flow.listed_ns = due_ns
            heappush(env._queue, (due_ns, NORMAL, next(env._eid), flow))


def _fair_rates(paths: list[Path]) -> dict[Path, int]:
    """Of a transfer on each of the paths, in bytes a second."""
    rates: dict[Path, int] = {}
    free: dict[Channel, int] = {}
    weights: dict[Channel, int] = {}
    for path in paths:
        for channel, weight in path.shares:
            free[channel] = channel.budget
            weights[channel] = weights.get(channel, 0) + weight * len(path.flows)
    while len(rates) < len(paths):
        levels = {
            channel: free[channel] // weights[channel] for channel in free if weights[channel]
        }
        full = min(levels, key=levels.__getitem__)
        for path in paths:
            if path not in rates and any(channel is full for channel, _ in path.shares):
                rates[path] = levels[full]
                for channel, weight in path.shares:
                    free[channel] -= weight * len(path.flows) * levels[full]
                    weights[channel] -= weight * len(path.flows)
    return rates
