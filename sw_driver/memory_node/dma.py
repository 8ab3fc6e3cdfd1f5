"""DMA of device-nodes: transfers as packets over the links, and their answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from ..device.clock import NEVER, Domain, Steps
from ..device.clock import Operation as TimedOperation
from ..device.errors import (
    ClosedError,
    DeviceInUseError,
    DeviceTimeoutError,
    RemoteMemoryError,
)
from ..device.streams import Stream
from ..numbers import check_integer
from .compression import BLOCK_BYTES, CompressionStatistics, compress, expand
from .network import Piece, Side
from .packets import LINE_BYTES, REQUESTS, Flit, Operation, Packet, Status

__all__ = ["DmaNetwork", "Ports", "check_ring"]

_LINK_REQUESTS = 8
"""Reads, and as many writes, in flight on a link.

They cover the time from a request to the end of its answer. A node accepts twice as many.
"""

_EXCHANGE_CYCLES = 32
"""Fabric cycles between exchanges with the links: half the time of a packet."""

_TAGS = 1 << 16

_STEP_CYCLES = 256
"""Fabric cycles of a step, after which other operations have their turn."""

_QUIET_LIMIT_CYCLES = 10_000_000
"""Fabric cycles without an answer after which requests in flight are given up.

It is longer than any answer takes, including retries of links.
"""


def check_ring(devices: int, local_bytes: int) -> None:
    """Raise :class:`~sw_driver.device.errors.InvalidArgumentError` for sizes that no ring has."""
    check_integer("devices", devices, 2, 128)
    check_integer("local_bytes", local_bytes)


class Ports(Protocol):
    """Device ends of the links.

    A device's links to its left side come first. Device n has the packet number 2n. Memory-node n,
    with the packet number 2n + 1, is at its right side.
    """

    devices: int
    side_links: int
    """Number of a device's links to each side."""
    local_bytes: int
    share_bytes: int
    timed: bool

    def send(self, device: int, link: int, channel: int, flits: list[Flit]) -> None:
        """Queue flits for a link."""
        ...

    def unsent(self, device: int, link: int) -> int:
        """Return the number of flits that wait for a link."""
        ...

    def received(self, device: int, link: int) -> Iterable[tuple[int, Flit]]:
        """Yield the flits received since the last call, with their virtual channels."""
        ...

    def dead(self, device: int, link: int) -> bool:
        """Return True if the link no longer works."""
        ...

    def advance(self, cycles: int) -> None:
        """Advance the network by ``cycles`` fabric cycles."""
        ...

    def cycles(self) -> int:
        """Return the fabric cycles since the beginning."""
        ...


@dataclass(eq=False)
class _Copy:
    """Progress of a copy, which is over when all its packets are answered."""

    reach: Callable[[int], None]
    left: int
    """Number of unanswered packets."""
    moved_bytes: int = 0
    over: bool = False
    time: int = 0
    error: Exception | None = None
    """The first refusal, or the reason for giving the copy up."""
    label: str = "the answers of memory-nodes"


@dataclass(eq=False)
class _Request:
    """A packet of a copy."""

    copy: _Copy
    piece: Piece
    stored: int
    """Bytes of the packet's data on the link."""


@dataclass(eq=False)
class _Link:
    waiting: tuple[deque[_Request], deque[_Request]] = field(
        default_factory=lambda: (deque(), deque())
    )
    """Reads and writes that wait for the link, separate because data moves in both directions."""
    under_way: dict[int, _Request] = field(default_factory=dict)
    """Requests in flight, by tag."""
    coming: dict[int, list[bytes]] = field(default_factory=dict)
    """Payloads of an incomplete packet, by virtual channel."""

    @property
    def load(self) -> int:
        return sum(map(len, self.waiting)) + len(self.under_way)

    def next(self, unsent: int) -> _Request | None:
        """Return the request to send next, or None; reads and writes alternate.

        ``unsent`` flits already wait for the link. A write is held back while they are more than
        the link sends until the next exchange. Otherwise read requests would wait behind the data
        of writes.
        """
        counts = [0, 0]
        for request in self.under_way.values():
            counts[request.piece.write] += 1
        ways = [
            way
            for way in (False, True)
            if self.waiting[way]
            and counts[way] < _LINK_REQUESTS
            and not (way and unsent > _EXCHANGE_CYCLES)
        ]
        return self.waiting[min(ways, key=counts.__getitem__)].popleft() if ways else None


class DmaNetwork:
    """Device-nodes and memory-nodes connected by links, real or simulated.

    It is a :class:`~sw_driver.device.transport.Transport`. A copy is divided into packets of at
    most 4 KB. Each goes to the least loaded link of its side. When a link dies, the others of its
    side take over its unfinished requests.

    The network keeps a table of the stored size of each compressed block.

    Parameters
    ----------
    ports
        The ends of the links.
    domain
        The network's time, in fabric cycles; None for a clock of its own.
    """

    name = "dma"

    def __init__(self, ports: Ports, domain: Domain | None = None) -> None:
        self.domain = domain or Domain(question_cycles=int(ports.timed))
        self._closed = False
        self._users: WeakValueDictionary[int, object] = WeakValueDictionary()
        """User of each device, by device number."""
        self._streams: WeakValueDictionary[int, Stream] = WeakValueDictionary()
        """Streams of all devices in the order of their creation, by ``id``."""
        self._under_way: set[_Copy] = set()
        self._pump = TimedOperation("the memory-nodes", self.domain)
        """Operation that advances the time while copies are in flight."""
        self._pump.number = NEVER  # other operations of the same time come first
        self._answered = 0
        """Number of answered packets."""
        self.local_bytes = ports.local_bytes
        self.share_bytes = ports.share_bytes
        self.timed = ports.timed
        self._ports = ports
        self._memories = [np.zeros(ports.local_bytes, np.uint8) for _ in range(ports.devices)]
        self._links = [[_Link() for _ in range(2 * ports.side_links)] for _ in range(ports.devices)]
        self._tag = 0
        self._stored: dict[tuple[int, Side, int], int] = {}
        """Stored bytes of compressed blocks, by device, side and address in the share."""
        self._compression = [CompressionStatistics() for _ in range(ports.devices)]
        self._abandoned: set[int] = set()
        """Tags of requests that were repeated over another link: the node may answer both."""

    def claim(self, number: int, user: object) -> None:
        """Reserve the device ``number`` for ``user`` during its lifetime.

        Raises :class:`~sw_driver.device.errors.InvalidArgumentError` and
        :class:`~sw_driver.device.errors.DeviceInUseError`.
        """
        number = self._device(number)
        if number in self._users:
            raise DeviceInUseError(
                f"device {number} of the network already has a DeviceNode: use that one, because "
                "a second would allocate the same memory",
                number=number,
            )
        self._users[number] = user

    def local(self, device: int) -> NDArray[np.uint8]:
        """Return the memory of device-node ``device``, to read and write in place."""
        return self._memories[self._device(device)]

    def _device(self, number: int) -> int:
        return check_integer("the number of a device-node", number, 0, self._ports.devices - 1)

    def copy_steps(
        self, device: int, pieces: Sequence[Piece], reach: Callable[[int], None]
    ) -> Steps:
        """Carry out a copy of several pieces in parallel; call ``reach`` with the moved bytes.

        Raises :class:`~sw_driver.device.errors.RemoteMemoryError` at the end of the copy if a
        memory-node refused some of it.
        """
        domain = self.domain
        yield from domain.catch_up(self.cycles, self.advance)
        domain.now = max(domain.now, self.cycles())
        copy = _Copy(reach, sum(-(-piece.nbytes // BLOCK_BYTES) for piece in pieces))
        for piece in pieces:
            for offset in range(0, piece.nbytes, BLOCK_BYTES):
                nbytes = min(BLOCK_BYTES, piece.nbytes - offset)
                local, remote = piece.local + offset, piece.remote + offset
                part = replace(piece, local=local, remote=remote, nbytes=nbytes)
                self._enqueue(device, _Request(copy, part, nbytes))
        self._exchange()
        if not copy.over:
            self._under_way.add(copy)
            if self._pump.steps is None:
                self._pump.steps = self._passing()
                domain.clock.begin(self._pump, domain.ticks(domain.now))
            yield copy
        if copy.error is not None:
            raise copy.error

    def advance(self, cycles: int) -> None:
        """Advance by ``cycles`` fabric cycles, or fewer if a copy ends earlier."""
        with self.domain.clock.within():
            before = len(self._under_way)
            while cycles > 0 and len(self._under_way) == before:
                step = min(cycles, _EXCHANGE_CYCLES)
                self._ports.advance(step)
                self._exchange()
                cycles -= step

    def compression(self, device: int) -> CompressionStatistics:
        """Return the statistics of the device's compressed transfers."""
        return self._compression[self._device(device)]

    def cycles(self) -> int:
        """Return the fabric cycles since the beginning; 0 without a clock."""
        return self._ports.cycles()

    def add(self, stream: Stream) -> None:
        """Add a new stream of a device; raise :class:`~sw_driver.device.errors.ClosedError`."""
        if self._closed:
            raise ClosedError("the network was closed: make another one")
        self._streams[id(stream)] = stream

    def close(self) -> None:
        """Discard all queued operations of all streams."""
        if not self.domain.clock.is_forked:
            self.domain.clock.release(self._close)

    def _close(self) -> None:
        self._closed = True
        for stream in list(self._streams.values()):
            stream.close()
        self._under_way.clear()  # stops the time

    def _passing(self) -> Steps:
        """Advance the time while copies are in flight."""
        domain = self.domain
        since, answered = domain.now, self._answered
        while self._under_way:
            try:
                if domain.now >= self.cycles():
                    # At least one exchange interval.
                    left = max(domain.horizon - domain.now, _EXCHANGE_CYCLES)
                    self.advance(min(left // _EXCHANGE_CYCLES * _EXCHANGE_CYCLES, _STEP_CYCLES))
                domain.now = max(domain.now, self.cycles())
                if self._answered != answered:
                    since, answered = domain.now, self._answered
                quiet = domain.now - since
                if quiet > _QUIET_LIMIT_CYCLES or (not self.timed and self._under_way):
                    raise DeviceTimeoutError(
                        f"no answer came in {quiet} fabric cycles: all links to a memory-node "
                        "are dead, or it hangs: make the network again",
                        cycles=quiet,
                    )
            except Exception as error:  # raised in all waiting copies
                for copy in list(self._under_way):
                    copy.error = error
                    self._end(copy)
            yield

    def _end(self, copy: _Copy) -> None:
        copy.over = True
        copy.time = self.domain.ticks(self.cycles())
        self._under_way.discard(copy)

    def _enqueue(self, device: int, request: _Request) -> None:
        side, count = request.piece.side, self._ports.side_links
        links_of_side = range(side * count, (side + 1) * count)
        links = [link for link in links_of_side if not self._ports.dead(device, link)]
        if links:
            own = self._links[device]
            least = min(links, key=lambda link: own[link].load)
            own[least].waiting[request.piece.write].append(request)
        else:
            place = f"device {device} reaches its {side.name.lower()} memory-node no more"
            self._over(request, f"{place}: all links between them are dead")

    def _over(self, request: _Request, refused: str | None = None) -> None:
        copy = request.copy
        self._answered += 1
        copy.left -= 1
        copy.moved_bytes += request.piece.nbytes
        copy.reach(copy.moved_bytes)
        if refused:
            copy.error = copy.error or RemoteMemoryError(refused)
        if not copy.left:
            self._end(copy)

    def _exchange(self) -> None:
        """Receive answers and send requests until nothing is left to do."""
        while self._moved():
            pass

    def _moved(self) -> bool:
        moved = False
        for device, links in enumerate(self._links):
            for number, link in enumerate(links):
                for channel, flit in self._ports.received(device, number):
                    self._take(device, link, channel, flit)
                    moved = True
                if link.load and self._ports.dead(device, number):
                    orphans = [*link.under_way.values(), *link.waiting[0], *link.waiting[1]]
                    self._abandoned.update(link.under_way)
                    link.under_way.clear()
                    for queue in link.waiting:
                        queue.clear()
                    for request in orphans:
                        self._enqueue(device, request)
                while request := link.next(self._ports.unsent(device, number)):
                    self._send(device, number, request)
                    moved = True
        return moved

    def _send(self, device: int, number: int, request: _Request) -> None:
        piece = request.piece
        self._tag = (self._tag + 1) % _TAGS
        while self._tag in self._abandoned:
            self._tag = (self._tag + 1) % _TAGS
        self._links[device][number].under_way[self._tag] = request
        node = (device if piece.side is Side.RIGHT else device - 1) % self._ports.devices
        place = slice(piece.local, piece.local + piece.nbytes)
        data = self._memories[device][place].tobytes() if piece.write else b""
        if piece.compressed:
            data = compress(data)
            stored = self._stored.get((device, piece.side, piece.remote), piece.nbytes)
            # A longer size is from older data that this copy has not overwritten yet.
            request.stored = len(data) or min(stored, piece.nbytes)
        packet = Packet(
            destination=2 * node + 1,
            source=2 * device,
            operation=Operation.WRITE if piece.write else Operation.READ,
            status=0,
            tag=self._tag,
            lines=request.stored // LINE_BYTES,
            address=piece.remote,
            data=data,
        )
        self._ports.send(device, number, REQUESTS, packet.flits())

    def _take(self, device: int, link: _Link, channel: int, flit: Flit) -> None:
        payloads = link.coming.setdefault(channel, [])
        payloads.append(flit.payload)
        if not flit.tail:
            return
        answer = Packet.of(payloads)
        payloads.clear()
        request = link.under_way.pop(answer.tag, None)
        if answer.tag in self._abandoned:
            self._abandoned.remove(answer.tag)
            return
        if request is None:
            raise RemoteMemoryError(
                f"memory-node {answer.source} answered device {device} without a request"
            )
        piece = request.piece
        if answer.status != Status.OK:
            self._over(
                request,
                f"memory-node {answer.source} refused {piece.nbytes} bytes at "
                f"{piece.remote:#x} of device {device}: {Status(answer.status).name}",
            )
            return
        if piece.write:
            block = device, piece.side, piece.remote
            self._stored.pop(block, None)
            if request.stored < piece.nbytes:
                self._stored[block] = request.stored
        else:
            place = slice(piece.local, piece.local + piece.nbytes)
            data = expand(answer.data, piece.nbytes) if piece.compressed else answer.data
            self._memories[device][place] = np.frombuffer(data, np.uint8)
        if piece.compressed:
            self._compression[device].count(piece.write, piece.nbytes, request.stored)
        self._over(request)
