"""Transfers over links and memories that they share, each at its max-min fair rate.

All transfers rise together until a link is full; those on it stay at that rate, the others rise on
(progressive filling). Rates are whole bytes a second, rounded down, and what is left of a transfer
is counted in 10^-9 bytes, so that every byte is accounted for in integers: a transfer ends with the
first nanosecond at whose end all of it is there. Rates change only with the time: what begins and
ends at one moment is settled together, when the next moment is about to come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from math import lcm
from typing import Any, NamedTuple

from ..machine.machine import Hop, Machine
from ..machine.parts import Figure, bytes_per_s
from ..numbers import check_integer
from .clock import Action, Clock, Entry, Event
from .errors import EngineError
from .log import Log, Segment

__all__ = ["Channel", "Network", "Path", "Transfer"]

_GIGA = 10**9
_KNOWN = 1 << 14
"""So many states' rates are kept."""


class Channel(NamedTuple):
    """A budget that transfers share: a direction of a duplex link, all of a half-duplex one, what a
    memory moves, or what a device moves of its memory."""

    name: str
    budget: int


class Path:
    """A route, and the transfers that are on it, all at the same rate."""

    __slots__ = ("flows", "hops", "latency_ns", "number", "rate", "shares", "source", "target")

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


Share = tuple[Channel, int]
"""Of a channel's budget, so much is needed for one byte a second."""


class Transfer(Action):
    """Bytes on their way from one memory to another; of ``device``'s work, if that is given."""

    __slots__ = (
        "_entry",
        "device",
        "due_ns",
        "left",
        "nbytes",
        "network",
        "number",
        "path",
        "rate",
        "since_ns",
    )

    category = "transfer"
    rate: int
    """In bytes a second, once the latency is over; 0 before it is settled."""
    left: int
    """In 10^-9 bytes, at ``since_ns``."""
    since_ns: int
    due_ns: int

    def __init__(
        self,
        network: Network,
        queue: str,
        nbytes: int,
        source: str,
        target: str,
        label: str,
        after: Iterable[Event],
        ended: Callable[[Any], object],
        device: str = "",
    ) -> None:
        super().__init__(network.clock, queue, label, after, ended)
        if type(nbytes) is not int or nbytes < 0:
            nbytes = check_integer(f"what {label!r} moves, in bytes,", nbytes, 0, error=EngineError)
        self.nbytes = nbytes
        self.network = network
        self.device = device
        self.path = network.path(source, target, device)
        self.number = next(network.numbers)
        self._entry: Entry | None = None

    def begin(self, now_ns: int) -> None:
        """Waits for the latency, and then moves."""
        begins = self._enter if self.nbytes else self.happen
        self.clock.at(now_ns + self.path.latency_ns, begins)

    def _enter(self) -> None:
        self.since_ns = self.clock.now_ns
        self.rate = 0
        self.left = self.nbytes * _GIGA
        self.network.add(self)

    def run(self, rate: int, now_ns: int) -> None:
        """Has this rate from now on."""
        if now_ns != self.since_ns:
            self.left -= self.rate * (now_ns - self.since_ns)
            self._log(now_ns)
            self.since_ns = now_ns
        self.rate = rate
        self.due_ns = due_ns = now_ns - (-self.left // rate)
        entry = self._entry
        if entry is None or due_ns < entry[0]:
            if entry is not None:
                self.clock.cancel(entry)
            self._entry = self.clock.at(due_ns, self._arrive)

    def _arrive(self) -> None:
        """Ends, or waits on if it has become slower since that was to be."""
        now_ns = self.clock.now_ns
        if now_ns < self.due_ns:
            self._entry = self.clock.at(self.due_ns, self._arrive)
            return
        self._entry = None
        self.network.remove(self)
        self._log(now_ns)
        self.happen()

    def _log(self, now_ns: int) -> None:
        log = self.network.log
        if log is not None:
            log.segments.append(Segment(self.number, self.since_ns, now_ns, self.rate))


class Network:
    """The links of a machine and its memories' rates, and what uses them."""

    def __init__(self, clock: Clock, machine: Machine, log: Log | None) -> None:
        self.clock = clock
        self.log = log
        self.numbers = count()
        """Of transfers."""
        self._machine = machine
        self._of_links: dict[tuple[str, bool], Share] = {}
        self._others: dict[str, Channel] = {}
        """Of memories and devices, by what they are called."""
        self._paths: dict[tuple[str, str, str], Path] = {}
        self._counts: list[int] = []
        """How many transfers there are on each path, by its number."""
        self._known: dict[tuple[int, ...], list[tuple[Path, int]]] = {}
        """The rates by these counts, as found before: the same come back all the time, and finding
        them takes the most by far."""
        self._unsettled = False
        """Whether one began or ended since the last settling."""
        for link in machine.links:
            read, write = link.rate(writing=False), link.rate(writing=True)
            if link.sharing == "half":
                budget = lcm(read, write)
                channel = Channel(link.name, budget)
                self._of_links[link.name, False] = channel, budget // read
                self._of_links[link.name, True] = channel, budget // write
            else:
                self._of_links[link.name, False] = Channel(f"{link.name} read", read), 1
                self._of_links[link.name, True] = Channel(f"{link.name} write", write), 1

    def path(self, source: str, target: str, device: str = "") -> Path:
        """Of a transfer; or, of a device's work, between its memory, which stands for the device,
        and another, or this one itself. Raises as :meth:`Machine.route` does, and
        :class:`EngineError` if neither end is the device's memory."""
        path = self._paths.get((source, target, device))
        if path is None:
            machine, ends = self._machine, [source, target]
            hops: tuple[Hop, ...] = ()
            shares: list[Share] = []
            does = machine.device(device) if device else None
            if does is not None:
                if does.memory not in ends:
                    raise EngineError(
                        f"the work of device {device!r} moves bytes from {source!r} to {target!r}: "
                        f"expected its memory, {does.memory!r}, at one end"
                    )
                ends.remove(does.memory)
            if does is not None and ends == [does.memory]:
                shares.append(self._other(f"device {device}", does.gb_per_s))
            else:
                hops = machine.route(source, target)
                shares += [self._of_links[link.name, writing] for link, writing in hops]
            for memory in machine.memories:
                if memory.name in ends and memory.total_gb_per_s is not None:
                    whose = " for work" * (does is not None and memory.transfers == "apart")
                    name = f"memory {memory.name}{whose}"
                    shares.append(self._other(name, memory.total_gb_per_s))
            path = Path(len(self._paths), source, target, hops, shares)
            self._paths[source, target, device] = path
            self._counts.append(0)
        return path

    def _other(self, name: str, gb_per_s: Figure) -> Share:
        return self._others.setdefault(name, Channel(name, bytes_per_s(gb_per_s))), 1

    def add(self, transfer: Transfer) -> None:
        """Its latency is over."""
        path = transfer.path
        path.flows[transfer] = None
        path.rate = 0
        self._change(path, 1)

    def remove(self, transfer: Transfer) -> None:
        """All of it is there."""
        del transfer.path.flows[transfer]
        self._change(transfer.path, -1)

    def _change(self, path: Path, more: int) -> None:
        self._counts[path.number] += more
        if not self._unsettled:
            self._unsettled = True
            self.clock.at_end(self._settle)

    def _settle(self) -> None:
        """Gives all transfers their rates, from now on."""
        self._unsettled = False
        now_ns = self.clock.now_ns
        counts = tuple(self._counts)
        rates = self._known.get(counts)
        if rates is None:
            if len(self._known) >= _KNOWN:
                self._known.clear()
            active = [path for path in self._paths.values() if path.flows]
            rates = self._known[counts] = list(_fair_rates(active).items())
        for path, rate in rates:
            if path.rate != rate:
                path.rate = rate
                for flow in path.flows:
                    if flow.rate != rate:
                        flow.run(rate, now_ns)


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
