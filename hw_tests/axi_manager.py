"""An AXI4 manager for cocotb benches that does whatever IHI 0022 allows."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import cocotb
from cocotb.triggers import Event, RisingEdge

from hw_tests.streams import value_of

__all__ = [
    "ALL", "FIXED", "INCR", "OKAY", "SLVERR", "WRAP", "AxiManager", "Transfer", "beat_addresses",
]  # fmt: skip

ALL = (1 << 64) - 1
"""The strobes of a whole line."""
FIXED, INCR, WRAP = range(3)
OKAY, SLVERR = 0, 2


def beat_addresses(address: int, length: int, size: int, burst: int) -> Iterator[int]:
    """The address of each of ``length`` transfers of ``1 << size`` bytes (IHI 0022E, A3.4.1)."""
    number_bytes = 1 << size
    aligned = address // number_bytes * number_bytes
    container = number_bytes * length
    boundary = address // container * container
    for n in range(length):
        place = address if n == 0 or burst == FIXED else aligned + n * number_bytes
        if burst == WRAP and place >= boundary + container:
            place -= container
        yield place


@dataclass
class Transfer:
    """A burst, and what became of it: of a read data and response of each beat, of a write its
    response."""

    ident: int
    address: int
    length: int
    size: int
    burst: int
    beats: list[tuple[int, int]] = field(default_factory=list)
    """Of a write, data and strobes, of the whole bus; of a read, data and response."""
    response: int | None = None
    ended: Event = field(default_factory=Event)


class AxiManager:
    """Sends bursts on the ports ``PREFIX_*`` of ``dut``, as many at once as are asked for.

    Each channel goes its own way: data may come long before their address, or after it. Checks that
    answers of an ID come in its order, RLAST, and that a channel that waits holds its payload.
    ``stalls`` are the probabilities that a channel (``ar r aw w b``) pauses in a cycle; they may be
    changed at any time, 1 stops a channel. ``holds`` are conditions in which a channel pauses.
    Nothing is sent or looked at while ``reset`` is high.
    """

    def __init__(
        self,
        dut: Any,
        prefix: str,
        clock: Any,
        *,
        reset: Any,
        stalls: Mapping[str, float],
        seed: int = 1,
    ) -> None:
        self.stalls = dict(stalls)
        self.holds: dict[str, Callable[[], bool]] = {}
        self.cycle = self.last_move = 0
        """Cycles without a reset, and the last of them in which anything was taken."""
        self._random = random.Random(f"{prefix} {seed}")
        self._clock = clock
        self._reset = reset
        self._signal = lambda name: getattr(dut, f"{prefix}_{name}")
        self._offers: dict[str, deque[dict[str, int]]] = {c: deque() for c in ("aw", "w", "ar")}
        self._offered = dict.fromkeys(self._offers, False)
        self._ready = {"b": 0, "r": 0}
        self._held: dict[str, tuple[int, ...]] = {}
        self._writes: dict[int, deque[Transfer]] = {}
        self._reads: dict[int, deque[Transfer]] = {}
        for name in ("awvalid", "wvalid", "arvalid", "bready", "rready"):
            self._signal(name).value = 0
        cocotb.start_soon(self._run())

    def write(
        self,
        address: int,
        beats: list[tuple[int, int]],
        *,
        size: int = 6,
        burst: int = INCR,
        ident: int = 0,
        length: int = 0,
    ) -> Transfer:
        """Queues a write of ``beats``: data and strobes of the whole bus. Without any, of
        ``length`` beats that are still to come."""
        transfer = Transfer(ident, address, len(beats) or length, size, burst, beats)
        self._writes.setdefault(ident, deque()).append(transfer)
        self._offers["aw"].append(self._address(transfer))
        for number, (value, strobes) in enumerate(beats):
            last = int(number == len(beats) - 1)
            self._offers["w"].append({"data": value, "strb": strobes, "last": last})
        return transfer

    def read(
        self, address: int, length: int, *, size: int = 6, burst: int = INCR, ident: int = 0
    ) -> Transfer:
        """Queues a read of ``length`` beats."""
        transfer = Transfer(ident, address, length, size, burst)
        self._reads.setdefault(ident, deque()).append(transfer)
        self._offers["ar"].append(self._address(transfer))
        return transfer

    async def copy(
        self, pairs: Iterable[tuple[int, int]], *, length: int, outstanding: int, buffer: int
    ) -> None:
        """Copies bursts of ``length`` beats from the first address of each pair to the second.

        As a DMA engine with little memory of its own does: ``outstanding`` reads are under way, the
        writes are announced with them, and read data are taken only while fewer than ``buffer``
        beats wait to be written. Asserts that something moves in each 2000 cycles.
        """
        reads: list[Transfer] = []
        writes: list[Transfer] = []
        taken, data = 0, self._offers["w"]

        def full() -> bool:
            return sum(len(read.beats) for read in reads) - taken + len(data) >= buffer

        self.holds["r"] = full
        self.last_move = self.cycle
        waiting = deque(pairs)
        edge = RisingEdge(self._clock)
        while waiting or not all(write.ended.is_set() for write in writes):
            while waiting and sum(len(read.beats) < length for read in reads) < outstanding:
                source, target = waiting.popleft()
                reads.append(self.read(source, length))
                writes.append(self.write(target, [], length=length))
            await edge
            while taken < sum(len(read.beats) for read in reads):
                number, beat = divmod(taken, length)
                value, response = reads[number].beats[beat]
                assert response == OKAY
                data.append({"data": value, "strb": ALL, "last": int(beat == length - 1)})
                taken += 1
            moved = f"{taken} beats read, {len(data)} wait to be written, {buffer} may"
            assert self.cycle < self.last_move + 2000, f"nothing moves any more: {moved}"
        assert all(write.response == OKAY for write in writes)
        del self.holds["r"]

    async def store(self, address: int, value: int, nbytes: int) -> int:
        """A processor's store of 1 to 64 bytes at a multiple of them; returns the response."""
        lane = address % 64
        beat = (value << 8 * lane, (1 << nbytes) - 1 << lane)
        transfer = self.write(address, [beat], size=nbytes.bit_length() - 1)
        await transfer.ended.wait()
        assert transfer.response is not None
        return transfer.response

    async def load(self, address: int, nbytes: int) -> tuple[int, int]:
        """A processor's load of 1 to 64 bytes at a multiple of them; value and response."""
        transfer = self.read(address, 1, size=nbytes.bit_length() - 1)
        await transfer.ended.wait()
        value, response = transfer.beats[0]
        return value >> 8 * (address % 64) & (1 << 8 * nbytes) - 1, response

    @staticmethod
    def _address(transfer: Transfer) -> dict[str, int]:
        return {
            "id": transfer.ident,
            "addr": transfer.address,
            "len": transfer.length - 1,
            "size": transfer.size,
            "burst": transfer.burst,
        }

    def _pause(self, channel: str) -> bool:
        if channel in self.holds and self.holds[channel]():
            return True
        return self._random.random() < self.stalls.get(channel, 0.0)

    def _offer(self, channel: str) -> None:
        queue = self._offers[channel]
        if self._offered[channel] and value_of(self._signal(f"{channel}ready")):
            queue.popleft()
            self.last_move = self.cycle
            self._offered[channel] = False
            self._signal(f"{channel}valid").value = 0
        if queue and not self._offered[channel] and not self._pause(channel):
            for name, value in queue[0].items():
                self._signal(f"{channel}{name}").value = value
            self._offered[channel] = True
            self._signal(f"{channel}valid").value = 1

    def _take(self, channel: str, names: tuple[str, ...]) -> tuple[int, ...] | None:
        """What is answered in this cycle; None if nothing is."""
        result = None
        if value_of(self._signal(f"{channel}valid")):
            payload = tuple(value_of(self._signal(f"{channel}{name}")) for name in names)
            before = self._held.pop(channel, payload)
            assert payload == before, f"{channel} changed while it waited: {before} to {payload}"
            if self._ready[channel]:
                self.last_move = self.cycle
                result = payload
            else:
                self._held[channel] = payload
        else:
            assert channel not in self._held, f"{channel} was withdrawn"
        return result

    async def _run(self) -> None:
        edge = RisingEdge(self._clock)
        while True:
            await edge
            if value_of(self._reset):
                continue
            self.cycle += 1
            for channel in self._offers:
                self._offer(channel)
            answer = self._take("b", ("id", "resp"))
            if answer is not None:
                ident, response = answer
                transfer = self._writes[ident].popleft()
                transfer.response = response
                transfer.ended.set()
            answer = self._take("r", ("id", "data", "resp", "last"))
            if answer is not None:
                ident, value, response, last = answer
                transfer = self._reads[ident][0]
                transfer.beats.append((value, response))
                assert last == (len(transfer.beats) == transfer.length), "RLAST"
                if last:
                    self._reads[ident].popleft()
                    transfer.ended.set()
            for channel in self._ready:
                self._ready[channel] = int(not self._pause(channel))
                self._signal(f"{channel}ready").value = self._ready[channel]
