"""Transfers over links and memories that they share, each at its max-min fair rate.

All transfers rise together until a link is full. Transfers on that link stay at that rate, and the
others rise on (progressive filling). Rates are whole bytes a second, rounded down. The rest of a
transfer is counted in 10^-9 bytes, so that integers account for every byte. A transfer ends with
the first nanosecond at whose end all bytes have arrived. Starts and ends at one moment are settled
together, before time advances.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from math import lcm
from typing import Any, NamedTuple

from ..machine.machine import Hop, Machine
from ..machine.parts import bytes_per_s
from ..numbers import check_integer
from .clock import Action, EngineClock, EngineEvent, Entry
from .errors import EngineError
from .log import Log, Segment

__all__ = ["Network", "Path", "SharedRate", "Transfer"]

_GIGA = 10**9
_KNOWN = 1 << 14
"""Most combinations of transfers on paths that rates are kept for."""


class SharedRate(NamedTuple):
    """A budget that transfers share, in units a second.

    It is a direction of a duplex link, a whole half-duplex link, the rate of a memory, or the rate
    of a device at its memory.
    """

    name: str
    budget: int


class Path:
    """A route, and the transfers on it, all at the same rate."""

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
        """Rate of each transfer on it, in bytes a second; 0 before it is settled."""


Share = tuple[SharedRate, int]
"""A shared rate, and the units of its budget that one byte a second takes."""


class Transfer(Action):
    """Bytes on their way between memories, for the work of ``device`` if that is given."""

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
    """Rate in bytes a second, once the latency is over; 0 before it is settled."""
    left: int
    """Rest at ``since_ns``, in 10^-9 bytes."""
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
        after: Iterable[EngineEvent],
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
        """Wait for the latency, then start moving bytes."""
        begins = self._enter if self.nbytes else self.happen
        self.clock.at(now_ns + self.path.latency_ns, begins)

    def _enter(self) -> None:
        self.since_ns = self.clock.now_ns
        self.rate = 0
        self.left = self.nbytes * _GIGA
        self.network.add(self)

    def run(self, rate: int, now_ns: int) -> None:
        """Move at ``rate`` bytes a second from now on."""
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
        """End, or keep waiting if the transfer has slowed down meanwhile."""
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
    """The links of a machine and its memories' rates, and the transfers that use them."""

    def __init__(self, clock: EngineClock, machine: Machine, log: Log | None) -> None:
        self.clock = clock
        self.log = log
        self.numbers = count()
        """Numbers of transfers."""
        self._machine = machine
        self._of_links: dict[tuple[str, bool], Share] = {}
        self._others: dict[str, SharedRate] = {}
        """Shared rates of memories and devices, by name."""
        self._paths: dict[tuple[str, str, str], Path] = {}
        self._counts: list[int] = []
        """Number of transfers on each path, by the path's number."""
        self._known: dict[tuple[int, ...], list[tuple[Path, int]]] = {}
        """Rates by these counts; counts recur, and computing rates takes most of the time."""
        self._unsettled = False
        """True if a transfer began or ended since rates were settled."""
        for link in machine.links:
            read, write = link.rate(writing=False), link.rate(writing=True)
            if link.sharing == "half":
                budget = lcm(read, write)
                shared = SharedRate(link.name, budget)
                self._of_links[link.name, False] = shared, budget // read
                self._of_links[link.name, True] = shared, budget // write
            else:
                self._of_links[link.name, False] = SharedRate(f"{link.name} read", read), 1
                self._of_links[link.name, True] = SharedRate(f"{link.name} write", write), 1

    def path(self, source: str, target: str, device: str = "") -> Path:
        """Return the path of a transfer, or of the work of a device.

        A device's memory stands for the device. Its work moves bytes between that memory and
        another, or within it. Raises as :meth:`Machine.route` does, and :class:`EngineError` if
        neither end is the device's memory.
        """
        path = self._paths.get((source, target, device))
        if path is None:
            machine, ends = self._machine, [source, target]
            hops: tuple[Hop, ...] = ()
            shares: list[Share] = []
            unit = machine.device(device) if device else None
            if unit is not None:
                if unit.memory not in ends:
                    raise EngineError(
                        f"the work of device {device!r} moves bytes from {source!r} to {target!r}: "
                        f"expected its memory, {unit.memory!r}, at one end"
                    )
                ends.remove(unit.memory)
            if unit is not None and ends == [unit.memory]:
                shares.append(self._other(f"device {device}", unit.bytes_per_s))
            else:
                hops = machine.route(source, target)
                shares += [self._of_links[link.name, writing] for link, writing in hops]
            for memory in machine.memories:
                if memory.name in ends and memory.total_gb_per_s is not None:
                    suffix = " for work" * (unit is not None and memory.transfers == "apart")
                    name = f"memory {memory.name}{suffix}"
                    shares.append(self._other(name, bytes_per_s(memory.total_gb_per_s)))
            path = Path(len(self._paths), source, target, hops, shares)
            self._paths[source, target, device] = path
            self._counts.append(0)
        return path

    def _other(self, name: str, rate: int) -> Share:
        return self._others.setdefault(name, SharedRate(name, rate)), 1

    def add(self, transfer: Transfer) -> None:
        """Add a transfer, once its latency is over."""
        path = transfer.path
        path.flows[transfer] = None
        path.rate = 0
        self._change(path, 1)

    def remove(self, transfer: Transfer) -> None:
        """Remove a transfer that has delivered all bytes."""
        del transfer.path.flows[transfer]
        self._change(transfer.path, -1)

    def _change(self, path: Path, more: int) -> None:
        self._counts[path.number] += more
        if not self._unsettled:
            self._unsettled = True
            self.clock.at_end(self._settle)

    def _settle(self) -> None:
        """Set the rates of all transfers, from now on."""
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
    """Return the max-min fair rate of a transfer on each path, in bytes a second."""
    rates: dict[Path, int] = {}
    free: dict[SharedRate, int] = {}
    weights: dict[SharedRate, int] = {}
    for path in paths:
        for shared, weight in path.shares:
            free[shared] = shared.budget
            weights[shared] = weights.get(shared, 0) + weight * len(path.flows)
    while len(rates) < len(paths):
        levels = {shared: free[shared] // weights[shared] for shared in free if weights[shared]}
        full = min(levels, key=levels.__getitem__)
        for path in paths:
            if path not in rates and any(shared is full for shared, _ in path.shares):
                rates[path] = levels[full]
                for shared, weight in path.shares:
                    free[shared] -= weight * len(path.flows) * levels[full]
                    weights[shared] -= weight * len(path.flows)
    return rates
