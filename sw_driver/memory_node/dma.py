"""The DMA of device-nodes: transfers as packets over the links, and what comes back."""

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
"""Reads, and as many writes, that a link has under way: enough for the time from a request to the
end of its answer. A node takes twice as many of a link."""

_EXCHANGE_CYCLES = 32
"""Fabric cycles from one look at what has come to the next: half of the time of a packet."""

_TAGS = 1 << 16

_STEP_CYCLES = 256
"""Fabric cycles after which others have their turn."""

_QUIET_LIMIT_CYCLES = 10_000_000
"""Fabric cycles without an answer after which what is under way is given up: longer than any takes,
retries of links included."""


def check_ring(devices: int, local_bytes: int) -> None:
    """Raises :class:`~sw_driver.device.errors.InvalidArgumentError` for what no ring can have."""
    check_integer("devices", devices, 2, 128)
    check_integer("local_bytes", local_bytes)


class Ports(Protocol):
    """The devices' ends of the links. Device n has the links of its left side first; memory-node n,
    whose number in packets is 2n + 1, is at the right side of device n, whose number is 2n."""

    devices: int
    side_links: int
    """Links of a device to each side."""
    local_bytes: int
    share_bytes: int
    timed: bool

    def send(self, device: int, link: int, channel: int, flits: list[Flit]) -> None:
        """Queues flits for a link."""
        ...

    def unsent(self, device: int, link: int) -> int:
        """Flits that wait for a link."""
        ...

    def received(self, device: int, link: int) -> Iterable[tuple[int, Flit]]:
        """What has come since the last call, each with its virtual channel."""
        ...

    def dead(self, device: int, link: int) -> bool:
        """Whether the link does not work any more."""
        ...

    def advance(self, cycles: int) -> None:
        """Lets ``cycles`` fabric cycles pass."""
        ...

    def cycles(self) -> int:
        """Fabric cycles since the beginning."""
        ...


@dataclass(eq=False)
class _Copy:
    """What a copy waits for."""

    reach: Callable[[int], None]
    left: int
    """Packets that are not answered yet."""
    moved_bytes: int = 0
    over: bool = False
    time: int = 0
    error: Exception | None = None
    """The first refusal, or why it was given up."""
    what: str = "the answers of memory-nodes"


@dataclass(eq=False)
class _Request:
    """A packet of a copy."""

    copy: _Copy
    piece: Piece
    stored: int
    """Bytes of the packet's data that go over the link."""


@dataclass(eq=False)
class _Link:
    waiting: tuple[deque[_Request], deque[_Request]] = field(
        default_factory=lambda: (deque(), deque())
    )
    """Reads, and writes, that wait for the link: data go in both directions at once."""
    under_way: dict[int, _Request] = field(default_factory=dict)
    """Requests under way, by their tags."""
    coming: dict[int, list[bytes]] = field(default_factory=dict)
    """The payloads of a packet that has not come whole, by virtual channel."""

    @property
    def load(self) -> int:
        return sum(map(len, self.waiting)) + len(self.under_way)

    def next(self, unsent: int) -> _Request | None:
        """The request to send where ``unsent`` flits wait: reads and writes in turn, as far as
        there are. A write is held back until no more flits wait than go before the next look: what
        a read asks would wait behind all data of writes otherwise."""
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
    """Device-nodes and memory-nodes behind the ends of links, real or simulated: a
    :class:`~sw_driver.device.transport.Transport`.

    A copy is cut into packets of at most 4 KB, which go to the link of their side that has the
    least to do. When a link dies, the others of its side do what it has not.

    Of compressed blocks it keeps a table of how many bytes each is stored in.

    Parameters
    ----------
    ports
        The ends of the links.
    domain
        The network's time, in fabric cycles; None: it has a clock of its own.
    """

    name = "dma"

    def __init__(self, ports: Ports, domain: Domain | None = None) -> None:
        self.domain = domain or Domain(question_cycles=int(ports.timed))
        self._closed = False
        self._users: WeakValueDictionary[int, object] = WeakValueDictionary()
        """Who has each device, by its number."""
        self._streams: WeakValueDictionary[int, Stream] = WeakValueDictionary()
        """The streams of all devices in the order in which they were made, by their ``id``."""
        self._under_way: set[_Copy] = set()
        self._pump = TimedOperation("the memory-nodes", self.domain)
        """What lets time pass while copies are under way."""
        self._pump.number = NEVER  # what begins at the same time comes first
        self._answered = 0
        """Packets that were answered."""
        self.local_bytes = ports.local_bytes
        self.share_bytes = ports.share_bytes
        self.timed = ports.timed
        self._ports = ports
        self._memories = [np.zeros(ports.local_bytes, np.uint8) for _ in range(ports.devices)]
        self._links = [[_Link() for _ in range(2 * ports.side_links)] for _ in range(ports.devices)]
        self._tag = 0
        self._stored: dict[tuple[int, Side, int], int] = {}
        """Bytes that compressed blocks are stored in, by device, side and address in the share."""
        self._compression = [CompressionStatistics() for _ in range(ports.devices)]
        self._abandoned: set[int] = set()
        """Tags of requests that were made again over another link: the node may answer there,
        too."""

    def claim(self, number: int, user: object) -> None:
        """``user`` has the device ``number`` for itself, as long as it is there. Raises
        :class:`~sw_driver.device.errors.InvalidArgumentError` and
        :class:`~sw_driver.device.errors.DeviceInUseError`."""
        number = self._device(number)
        if number in self._users:
            raise DeviceInUseError(
                f"device {number} of the network has a DeviceNode, whose memory another one would "
                "give away again: use that one",
                number=number,
            )
        self._users[number] = user

    def local(self, device: int) -> NDArray[np.uint8]:
        """The memory of device-node ``device``, to be read and written in place."""
        return self._memories[self._device(device)]

    def _device(self, number: int) -> int:
        return check_integer("the number of a device-node", number, 0, self._ports.devices - 1)

    def copy_steps(
        self, device: int, pieces: Sequence[Piece], reach: Callable[[int], None]
    ) -> Steps:
        """Carries out a copy of several pieces, all at once; ``reach`` is told how many bytes have
        been moved.

        Raises :class:`~sw_driver.device.errors.RemoteMemoryError`, when all is over, if a
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
        """Lets so many fabric cycles pass, or less if a copy ends before."""
        with self.domain.clock.within():
            before = len(self._under_way)
            while cycles > 0 and len(self._under_way) == before:
                step = min(cycles, _EXCHANGE_CYCLES)
                self._ports.advance(step)
                self._exchange()
                cycles -= step

    def compression(self, device: int) -> CompressionStatistics:
        """What has been compressed of the device's transfers since the beginning."""
        return self._compression[self._device(device)]

    def cycles(self) -> int:
        """Fabric cycles since the beginning; 0 without a clock."""
        return self._ports.cycles()

    def add(self, stream: Stream) -> None:
        """A new stream of a device. Raises :class:`~sw_driver.device.errors.ClosedError`."""
        if self._closed:
            raise ClosedError("the network was closed: make another one")
        self._streams[id(stream)] = stream

    def close(self) -> None:
        """Discards what is queued in all streams."""
        if not self.domain.clock.is_forked:
            self.domain.clock.release(self._close)

    def _close(self) -> None:
        self._closed = True
        for stream in list(self._streams.values()):
            stream.close()
        self._under_way.clear()  # so time passes no more

    def _passing(self) -> Steps:
        """Lets time pass until no copy is under way."""
        domain = self.domain
        since, answered = domain.now, self._answered
        while self._under_way:
            try:
                if domain.now >= self.cycles():
                    # Not less than from one look to the next.
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
            except Exception as error:  # goes to all that wait
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
        of_side = range(side * count, (side + 1) * count)
        links = [link for link in of_side if not self._ports.dead(device, link)]
        if links:
            each = self._links[device]
            least = min(links, key=lambda link: each[link].load)
            each[least].waiting[request.piece.write].append(request)
        else:
            what = f"device {device} reaches its {side.name.lower()} memory-node no more"
            self._over(request, f"{what}: all links between them are dead")

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
        """Takes what has come, and sends what can go, until there is nothing."""
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
                    for each in link.waiting:
                        each.clear()
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
            # More is of what was there before, and is not written yet.
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
                f"memory-node {answer.source} answered device {device} what it had not asked"
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
