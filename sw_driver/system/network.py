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
from typing import TYPE_CHECKING, NamedTuple

from simpy.events import NORMAL

from ..machine.machine import Hop, Machine
from .log import Segment

if TYPE_CHECKING:
    from .engine import Engine, Transfer

__all__ = ["Channel", "Network", "Path"]

_GIGA = 10**9
_KNOWN = 1 << 14
"""So many states' rates are kept."""
_NEVER = 1 << 200
"""Later than anything: when something is listed that is not."""
_COUNT_BITS = 24
"""More transfers than fit are never on one path."""


class Channel(NamedTuple):
    """A budget that transfers share: a direction of a duplex link, or all of a half-duplex one."""

    name: str
    budget: int


class Path:
    """A route, and the transfers that are on it, all at the same rate."""

    __slots__ = (
        "flows",
        "hops",
        "latency_ns",
        "number",
        "rate",
        "shares",
        "source",
        "target",
        "unit",
    )

    def __init__(
        self, number: int, source: str, target: str, hops: tuple[Hop, ...], shares: Sequence[Share]
    ) -> None:
        self.number = number
        self.source, self.target = source, target
        self.hops = hops
        self.shares = shares
        self.latency_ns = sum(int(link.latency_ns.value) for link, _ in hops)
        self.flows: dict[Transfer, None] = {}
        self.rate = 0
        """Of each transfer on it, in bytes a second, when that was settled; 0 before."""
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
        self._state = 0
        """How many transfers there are on each path, in one number. All rates follow from it."""
        self._known: dict[int, list[tuple[Path, int]]] = {}
        """By the state, as found before: the same come back all the time, and finding them takes
        the most by far."""
        self.unsettled = False
        """Whether one began or ended since the last settling."""
        for link in machine.links:
            read, write = link.rate(writing=False), link.rate(writing=True)
            if link.sharing == "half":
                budget = lcm(read, write)
                channel = Channel(link.name, budget)
                self._shares[link.name, False] = channel, budget // read
                self._shares[link.name, True] = channel, budget // write
            else:
                self._shares[link.name, False] = Channel(f"{link.name} read", read), 1
                self._shares[link.name, True] = Channel(f"{link.name} write", write), 1

    def path(self, source: str, target: str) -> Path:
        """Raises as :meth:`Machine.route` does."""
        path = self._paths.get((source, target))
        if path is None:
            hops = self._machine.route(source, target)
            shares = [self._shares[link.name, writing] for link, writing in hops]
            path = Path(len(self._paths), source, target, hops, shares)
            self._paths[source, target] = path
        return path

    def arrives(self, flow: Transfer, at_ns: int) -> bool:
        """Whether a transfer that the clock's list has for that time ends then.

        The list is never searched: an entry that is too late is passed over, and one that is too
        early is put in again.
        """
        if at_ns != flow.listed_ns:
            return False
        path = flow.path
        if flow.rate > 0:
            if at_ns < flow.due_ns:
                env = self._engine.env
                flow.listed_ns = flow.due_ns
                heappush(env._queue, (flow.due_ns, NORMAL, next(env._eid), flow))
                return False
            del path.flows[flow]
            self._state -= path.unit
            self.unsettled = True
            log = self._engine.log
            if log is not None:
                log.segments.append(Segment(flow.number, flow.since_ns, at_ns, flow.rate))
        elif flow.nbytes:  # its latency is over
            self._engine.env._now = flow.since_ns = at_ns
            flow.rate = 0
            flow.left = flow.nbytes * _GIGA
            flow.listed_ns = _NEVER
            path.flows[flow] = None
            path.rate = 0
            self._state += path.unit
            self.unsettled = True
            return False
        flow.listed_ns = _NEVER
        flow._value = None
        return True

    def settle(self) -> None:
        """Gives all transfers their rates, from now on."""
        now_ns = self._engine.env._now
        rates = self._known.get(self._state)
        if rates is None:
            rates = self._learn()
        for path, rate in rates:
            if path.rate != rate:
                path.rate = rate
                for flow in path.flows:
                    if flow.rate != rate:
                        self._run(flow, rate, now_ns)
        self.unsettled = False

    def _run(self, flow: Transfer, rate: int, now_ns: int) -> None:
        if now_ns != flow.since_ns:
            flow.left -= flow.rate * (now_ns - flow.since_ns)
            log = self._engine.log
            if log is not None:
                log.segments.append(Segment(flow.number, flow.since_ns, now_ns, flow.rate))
            flow.since_ns = now_ns
        flow.rate = rate
        flow.due_ns = due_ns = now_ns - (-flow.left // rate)
        if due_ns < flow.listed_ns:
            flow.listed_ns = due_ns
            env = self._engine.env
            heappush(env._queue, (due_ns, NORMAL, next(env._eid), flow))

    def _learn(self) -> list[tuple[Path, int]]:
        """The rates in a state that is not known."""
        if len(self._known) >= _KNOWN:
            self._known.clear()
        active = [path for path in self._paths.values() if path.flows]
        rates = self._known[self._state] = list(_fair_rates(active).items())
        return rates


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
