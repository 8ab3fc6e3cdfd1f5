"""An AXI4 manager for the controller bench: random bursts, stalls, everything checked."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from cocotb.triggers import RisingEdge
from numpy.typing import NDArray

__all__ = ["MANAGER_HABITS", "AxiManager", "Burst", "random_burst"]

MANAGER_HABITS = ("free", "data_first", "together", "late")
"""What managers do that IHI 0022E, A3.3.1 allows, and so no subordinate may depend on:

- ``free``: offers each address and each beat as soon as it can;
- ``data_first``: offers an address some cycles after the first of its data;
- ``together``: offers an address in one cycle with the first of its data;
- ``late``: as ``free``, but takes read data and answers only some cycles after they are valid.
"""

LINE = 64
PAGE = 4096
LATE_CYCLES = 5
OKAY, SLVERR, DECERR = 0, 2, 3


@dataclass
class Burst:
    """A burst; ``strobes`` and ``lines`` hold one entry a beat (writes only)."""

    write: bool
    address: int
    beats: int
    id: int = 0
    size: int = 6
    kind: int = 1
    response: int = OKAY
    lines: list[int] | None = None
    strobes: list[int] | None = None
    expected: NDArray[np.uint8] | None = None

    @property
    def page(self) -> int:
        return self.address // PAGE


def random_burst(rng: random.Random, capacity: int, *, errors: float = 0.0) -> Burst:
    """Any legal burst, with probability ``errors`` one that is refused."""
    write = rng.random() < 0.5
    beats = rng.choice([1, 1, 2, 3, 64, rng.randint(1, 64)])
    page = rng.randrange(capacity // PAGE)
    first = rng.randint(0, 64 - beats)
    burst = Burst(write, page * PAGE + first * LINE, beats, id=rng.randrange(16))
    if rng.random() < 0.1:
        # An address within the line only says which bytes a manager wants.
        burst.address += rng.randrange(LINE)
    if rng.random() < errors:
        kind = rng.choice(["size", "kind", "beyond", "crossing"])
        burst.response = SLVERR
        if kind == "size":
            burst.size = rng.randrange(6)
        elif kind == "kind":
            burst.kind = rng.choice([0, 2])
        elif kind == "beyond":
            burst.address += capacity << rng.randrange(3)
            burst.response = DECERR
        else:
            burst.address = page * PAGE + rng.randint(1, 63) * LINE
            burst.beats = 64 - burst.address % PAGE // LINE + rng.randint(1, 192)
    if write:
        burst.lines = [rng.getrandbits(512) for _ in range(burst.beats)]
        full = (1 << 64) - 1
        burst.strobes = [
            rng.choice([full, full, full, rng.getrandbits(64), 0]) for _ in range(burst.beats)
        ]
    return burst


class AxiManager:
    """Sends bursts on the ports ``PREFIX_*`` of ``dut`` and checks every answer.

    Bursts are launched in order; one waits while an unfinished burst of the other direction (or a
    write, for a write) touches its page, because AXI gives no order then. Write data may come
    before or long after the address. ``memory`` is the expected content.
    """

    def __init__(
        self,
        dut: Any,
        prefix: str,
        memory: NDArray[np.uint8],
        *,
        stall: float,
        seed: int,
        habit: str = MANAGER_HABITS[0],
    ) -> None:
        assert habit in MANAGER_HABITS
        self._habit = habit
        self._dut = dut
        self._prefix = prefix
        self._memory = memory
        self._stall = stall
        self._rng = random.Random(seed)
        self._offered: dict[str, Any] = {"ar": None, "aw": None, "w": None}
        self._waiting: dict[str, deque[Any]] = {"ar": deque(), "aw": deque(), "w": deque()}
        self._ready = {"r": False, "b": False}
        self._valid_since: dict[str, int] = {}
        self._first_beat = True
        """The next beat that waits is the first of its burst."""
        self._data_begun: deque[int] = deque()
        """When the data was first offered, of bursts whose address was not."""
        self._reads: deque[Burst] = deque()
        self._writes: deque[Burst] = deque()
        self._beat = 0
        self._reading: Counter[int] = Counter()
        self._writing: Counter[int] = Counter()
        self.cycle = 0
        self.hold_reads = False
        """Takes no read data."""
        self.hold_write_data = False
        """Offers no write data."""
        self.accepted: dict[str, list[Burst]] = {"ar": [], "aw": []}
        """Bursts in the order of their address handshakes."""
        self.finished = 0
        self.read_latencies: list[int] = []
        """Cycles from the AR handshake to the first RVALID, of reads that had nothing ahead."""
        self._sole_read_at: int | None = None
        for name in ("arvalid", "awvalid", "wvalid", "rready", "bready"):
            self._port(name).value = 0

    def _port(self, name: str) -> Any:
        return getattr(self._dut, f"{self._prefix}_{name}")

    def _value(self, name: str) -> int:
        return int(self._port(name).value)

    @property
    def busy(self) -> bool:
        return bool(
            any(self._waiting.values())
            or any(item is not None for item in self._offered.values())
            or self._reads
            or self._writes
        )

    async def run(self, bursts: Iterable[Burst], *, limit: int = 400_000) -> None:
        """Sends all of ``bursts`` and waits for the last answer, at most ``limit`` cycles."""
        source = iter(bursts)
        burst = next(source, None)
        end = self.cycle + limit
        while burst is not None or self.busy:
            while burst is not None and len(self._waiting["ar"]) + len(self._waiting["aw"]) < 8:
                if not self._launch(burst):
                    break
                burst = next(source, None)
            await self.step()
            assert self.cycle < end, f"no end after {limit} cycles"

    def _launch(self, burst: Burst) -> bool:
        """Hands the burst to its channels unless its page is in use."""
        if burst.response == OKAY:
            if self._writing[burst.page] or (burst.write and self._reading[burst.page]):
                return False
            start = burst.address // LINE * LINE
            content = self._memory[start : start + burst.beats * LINE].reshape(-1, LINE)
            if burst.write:
                assert burst.lines is not None
                assert burst.strobes is not None
                for line, strobe, target in zip(burst.lines, burst.strobes, content, strict=True):
                    new = np.frombuffer(line.to_bytes(LINE, "little"), np.uint8)
                    bits = np.frombuffer(strobe.to_bytes(8, "little"), np.uint8)
                    target[:] = np.where(np.unpackbits(bits, bitorder="little"), new, target)
                self._writing[burst.page] += 1
            else:
                burst.expected = content.copy()
                self._reading[burst.page] += 1
        if burst.write:
            assert burst.lines is not None
            assert burst.strobes is not None
            self._waiting["aw"].append(burst)
            last = burst.beats - 1
            self._waiting["w"].extend(
                (line, strobe, int(beat == last))
                for beat, (line, strobe) in enumerate(zip(burst.lines, burst.strobes, strict=True))
            )
        else:
            self._waiting["ar"].append(burst)
        return True

    async def step(self) -> None:
        """One clock cycle."""
        await RisingEdge(self._dut.clk)
        self.cycle += 1
        for channel in ("ar", "aw", "w"):
            if self._offered[channel] is not None and self._value(f"{channel}ready"):
                self._taken(channel, self._offered[channel])
                self._offered[channel] = None
                self._port(f"{channel}valid").value = 0
        if self._sole_read_at is not None and self._value("rvalid"):
            self.read_latencies.append(self.cycle - self._sole_read_at)
            self._sole_read_at = None
        if self._ready["r"] and self._value("rvalid"):
            self._take_read()
        if self._ready["b"] and self._value("bvalid"):
            burst = self._writes.popleft()
            assert self._value("bid") == burst.id
            assert self._value("bresp") == burst.response
            self._finish(burst, self._writing)
        self._offer()

    def _taken(self, channel: str, item: Any) -> None:
        if channel == "w":
            return
        self.accepted[channel].append(item)
        if channel == "ar":
            if not self._reads:
                self._sole_read_at = self.cycle
            self._reads.append(item)
        else:
            self._writes.append(item)

    def _take_read(self) -> None:
        burst = self._reads[0]
        assert self._value("rid") == burst.id
        assert self._value("rresp") == burst.response
        if burst.expected is not None:
            data = self._port("rdata").value.to_unsigned().to_bytes(LINE, "little")
            where = f"beat {self._beat} of {burst.beats} at {burst.address:#x}"
            assert data == burst.expected[self._beat].tobytes(), where
        self._beat += 1
        last = self._beat == burst.beats
        assert self._value("rlast") == last
        if last:
            self._beat = 0
            self._reads.popleft()
            self._finish(burst, self._reading)

    def _finish(self, burst: Burst, pages: Counter[int]) -> None:
        self.finished += 1
        if burst.response == OKAY:
            pages[burst.page] -= 1

    def _pauses(self) -> bool:
        return self._stall > 0 and self._rng.random() < self._stall

    def _offer(self) -> None:
        for channel, offer in (
            ("ar", self._offer_address), ("aw", self._offer_address), ("w", self._offer_beat)
        ):  # fmt: skip
            if self._offered[channel] is None and self._waiting[channel] and not self._pauses():
                offer(channel)
        for channel, held in (("r", self.hold_reads), ("b", False)):
            ready = not held and not self._pauses() and self._wants(channel)
            if ready != self._ready[channel]:
                self._ready[channel] = ready
                self._port(f"{channel}ready").value = int(ready)

    def _offer_address(self, channel: str) -> None:
        if channel == "aw" and self._habit == "data_first":
            if not self._data_begun or self.cycle < self._data_begun[0] + LATE_CYCLES:
                return
            self._data_begun.popleft()
        elif channel == "aw" and self._habit == "together":
            if not self._first_beat or self._offered["w"] is not None:
                return
            self._offer_beat("w", with_address=True)
        burst = self._offered[channel] = self._waiting[channel].popleft()
        self._port(f"{channel}id").value = burst.id
        self._port(f"{channel}addr").value = burst.address
        self._port(f"{channel}len").value = burst.beats - 1
        self._port(f"{channel}size").value = burst.size
        self._port(f"{channel}burst").value = burst.kind
        self._port(f"{channel}valid").value = 1

    def _offer_beat(self, channel: str, *, with_address: bool = False) -> None:
        alone = self._first_beat and not with_address
        if self.hold_write_data or (alone and self._habit == "together"):
            return
        if self._first_beat:
            self._data_begun.append(self.cycle)
        line, strobe, last = self._offered[channel] = self._waiting[channel].popleft()
        self._first_beat = bool(last)
        self._port("wdata").value = line
        self._port("wstrb").value = strobe
        self._port("wlast").value = last
        self._port("wvalid").value = 1

    def _wants(self, channel: str) -> bool:
        """Whether what is or may be valid on ``channel`` is to be taken in the next cycle."""
        if self._habit != "late":
            return True
        if not self._value(f"{channel}valid") or self._ready[channel]:
            self._valid_since.pop(channel, None)
            return False
        return self.cycle >= self._valid_since.setdefault(channel, self.cycle) + LATE_CYCLES
