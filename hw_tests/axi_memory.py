"""AXI4 memories for cocotb benches: numpy-backed, with stalls, errors and protocol checks."""

from __future__ import annotations

import functools
import logging
import random
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cocotbext.axi import AxiBus, AxiRam
from numpy.typing import NDArray

from hw.axi.bus import Response
from hw_tests.stalls import STALLS, pause_channels
from hw_tests.streams import play, value_of

__all__ = [
    "CHANNEL_STALLS", "HABITS", "SUBORDINATES", "AxiMemory", "Burst", "foreign_memory",
    "memory_maker",
]  # fmt: skip

CHANNEL_STALLS: dict[str, dict[str, float]] = {
    **{name: dict.fromkeys(("ar", "r", "aw", "w", "b"), share) for name, share in STALLS.items()},
    "slow_writes": dict.fromkeys(("aw", "w", "b"), STALLS["heavy"]),
}
"""Named probabilities that a channel pauses in a cycle."""

HABITS = ("eager", "on_valid", "together", "data_first", "late")
"""What subordinates do that IHI 0022E, A3.3.1 allows, and so no manager may depend on:

- ``eager``: is ready before anything is valid; takes data behind their address;
- ``on_valid``: is ready on each channel only in answer to what is valid there;
- ``together``: takes an address only in one cycle with the first of its data;
- ``data_first``: takes an address only when it has all of its data;
- ``late``: as ``eager``, but read data and answers come long after what they belong to.
"""

SUBORDINATES = [
    *((stalls, HABITS[0]) for stalls in STALLS),
    *((stalls, habit) for habit in HABITS[1:] for stalls in ("none", "random")),
]
"""Amounts of stalls and habits with which to try a manager."""

_LATE_CYCLES = 150
_ADDRESS_SIGNALS = ("id", "addr", "len", "size", "burst")


@dataclass
class Burst:
    """A burst as it was accepted; ``cycle`` counts clock cycles since the memory was made."""

    address: int
    beats: int
    cycle: int
    ident: int = 0
    done: int = field(default=0)


class AxiMemory:
    """Subordinate on the ports ``PREFIX_*`` of ``dut``; in order within an ID.

    It checks at every cycle: bursts have an ID that there is; they are INCR, full width, aligned,
    inside the memory and within a 4 KB page; WLAST is where it should be; write data does not come
    before its address is valid; a channel that waits holds its payload. A violation raises
    ``AssertionError`` in the test.

    Parameters
    ----------
    memory:
        Bytes, read and written in place.
    stalls:
        For each channel (``ar r aw w b``) the probability that it pauses in a cycle.
    habit:
        One of :data:`HABITS`.
    ids:
        IDs that there are. Read data of different ones come mixed at random, and so do answers to
        writes.
    shared:
        At most one beat, read or write, moves in a cycle; reads go first.
    reset:
        Signal: while it is high, whatever is in flight is forgotten.
    read_error, write_error:
        Asked for each beat read (index since the memory was made) and each burst written; true
        answers with ``error``. A failing burst is written nevertheless.
    failing:
        Addresses of lines that do so whenever they are in a burst.
    """

    def __init__(
        self,
        dut: Any,
        prefix: str,
        clock: Any,
        memory: NDArray[np.uint8],
        *,
        stalls: Mapping[str, float] | None = None,
        habit: str = HABITS[0],
        ids: int = 1,
        shared: bool = False,
        reset: Any = None,
        seed: int = 1,
        read_error: Callable[[int], bool] = lambda index: False,
        write_error: Callable[[int], bool] = lambda index: False,
        error: Response = Response.SLVERR,
        failing: Container[int] = (),
    ) -> None:
        self.memory = memory
        self.stalls = dict(stalls or {})
        assert habit in HABITS
        self.habit = habit
        self._latency = _LATE_CYCLES if habit == "late" else 0
        self.shared = shared
        self.read_error = read_error
        self.write_error = write_error
        self.error = error
        self.failing = failing
        self.ids = ids
        self.cycle = 0
        self.reads: list[Burst] = []
        self.writes: list[Burst] = []
        self.read_cycles: list[int] = []
        self.write_cycles: list[int] = []
        self.answers = 0
        self._random = random.Random(seed)
        self._reset = reset
        self._signals = {
            name: getattr(dut, f"{prefix}_{name}")
            for channel in ("ar", "aw")
            for name in (f"{channel}{part}" for part in (*_ADDRESS_SIGNALS, "valid", "ready"))
        } | {
            name: getattr(dut, f"{prefix}_{name}")
            for name in (
                "wdata", "wstrb", "wlast", "wvalid", "wready",
                "bid", "bresp", "bvalid", "bready",
                "rid", "rdata", "rresp", "rlast", "rvalid", "rready",
            )
        }  # fmt: skip
        self._beat_bytes = len(self._signals["wdata"]) // 8
        self._driven: dict[str, int] = {}
        self._waiting: dict[str, tuple[int, ...]] = {}
        self._to_read: deque[Burst] = deque()
        self._to_write: deque[Burst] = deque()
        self._data: deque[tuple[int, ...]] = deque()
        self._to_answer: deque[tuple[Burst, int, int]] = deque()
        self._reading: Burst | None = None
        for name in ("bid", "rid"):
            self._drive(name, 0)
        self._forget()
        play(clock, self._run())

    def _forget(self) -> None:
        self._waiting.clear()
        self._to_read.clear()
        self._to_write.clear()
        self._data.clear()
        self._to_answer.clear()
        self._reading = None
        for name in ("arready", "awready", "wready", "bvalid", "rvalid"):
            self._drive(name, 0)

    @property
    def quiet(self) -> bool:
        """Nothing is in flight."""
        return not (self._to_read or self._to_write or self._data or self._to_answer)

    def _drive(self, name: str, value: int) -> None:
        if self._driven.get(name) != value:
            self._driven[name] = value
            self._signals[name].value = value

    def _get(self, name: str) -> int:
        return value_of(self._signals[name])

    def _pause(self, channel: str) -> bool:
        probability = self.stalls.get(channel, 0.0)
        return probability > 0 and self._random.random() < probability

    def _held(self, channel: str, parts: tuple[str, ...], moved: bool) -> tuple[int, ...]:
        """The payload of ``channel``, which is valid; checks that it has not changed."""
        payload = tuple(self._get(f"{channel}{part}") for part in parts)
        before = self._waiting.pop(channel, payload)
        assert before == payload, f"{channel} changed while it waited: {before} to {payload}"
        if not moved:
            self._waiting[channel] = payload
        return payload

    def _burst(self, channel: str, moved: bool) -> Burst:
        ident, address, length, size, burst = self._held(channel, _ADDRESS_SIGNALS, moved)
        beats = length + 1
        end = address + beats * self._beat_bytes
        what = f"{channel} burst of {beats} beats at {address:#x}"
        assert ident < self.ids, f"{what} has ID {ident}"
        assert burst == 1, f"{what} is of type {burst}"
        assert 1 << size == self._beat_bytes, f"{what} has size {size}"
        assert address % self._beat_bytes == 0, f"{what} is not aligned"
        assert address // 4096 == (end - 1) // 4096, f"{what} crosses 4 KB"
        assert end <= self.memory.size, f"{what} leaves the memory of {self.memory.size} bytes"
        return Burst(address, beats, self.cycle, ident)

    def _addresses(self, channel: str, queue: deque[Burst], log: list[Burst]) -> None:
        if self._get(f"{channel}valid"):
            moved = bool(self._driven[f"{channel}ready"])
            burst = self._burst(channel, moved)
            if moved:
                queue.append(burst)
                log.append(burst)
        else:
            assert channel not in self._waiting, f"{channel} was withdrawn"

    def _write_beat(self) -> None:
        if not self._get("wvalid"):
            assert "w" not in self._waiting, "w was withdrawn"
            return
        moved = bool(self._driven["wready"])
        beat = self._held("w", ("data", "strb", "last"), moved)
        offered = "aw" in self._waiting and not self._whole_burst_ahead
        assert self._to_write or offered, "write data before its address"
        if moved:
            self.write_cycles.append(self.cycle)
            self._data.append(beat)

    @property
    def _whole_burst_ahead(self) -> bool:
        """All data of a burst are here, and its address is not."""
        return bool(self._data) and bool(self._data[-1][2])

    def _store(self) -> None:
        """Writes the data whose address is here."""
        size = self._beat_bytes
        while self._data and self._to_write:
            data, strobes, last = self._data.popleft()
            burst = self._to_write[0]
            place = burst.address + burst.done * size
            line = np.frombuffer(data.to_bytes(size, "little"), np.uint8)
            if strobes == (1 << size) - 1:
                self.memory[place : place + size] = line
            else:
                bits = np.frombuffer(strobes.to_bytes(size // 8, "little"), np.uint8)
                mask = np.unpackbits(bits, bitorder="little").astype(bool)
                self.memory[place : place + size][mask] = line[mask]
            burst.done += 1
            assert last == (burst.done == burst.beats), f"WLAST is {last} at beat {burst.done}"
            if last:
                self._to_write.popleft()
                index = len(self.writes) - len(self._to_write) - 1
                lines = range(burst.address, burst.address + burst.beats * size, size)
                failed = self.write_error(index) or any(line in self.failing for line in lines)
                self._to_answer.append((burst, self.cycle, self.error if failed else 0))

    def _ready(self) -> None:
        """Says what will be taken in the next cycle; what is offered now, is then, too."""
        waiting = self._waiting
        read = write = True
        beat = bool(self._to_write)
        if self.habit == "on_valid":
            read, write, beat = "ar" in waiting, "aw" in waiting, beat and "w" in waiting
        elif self.habit == "data_first":
            write = self._whole_burst_ahead
            beat = not write
        elif self.habit == "together":
            write = not beat and "aw" in waiting and "w" in waiting
        write = write and not self._pause("aw")
        beat = (beat and not self._pause("w")) or (write and self.habit == "together")
        if self.shared and self._driven["rvalid"]:
            assert self.habit == HABITS[0], "a shared memory has no habits"
            beat = False
        self._drive("arready", int(read and not self._pause("ar")))
        self._drive("awready", int(write))
        self._drive("wready", int(beat))

    def _step(self) -> None:
        self.cycle += 1
        if self._reset is not None and value_of(self._reset):
            self._forget()
            return
        driven = self._driven
        self._addresses("ar", self._to_read, self.reads)
        self._addresses("aw", self._to_write, self.writes)
        self._store()
        self._write_beat()
        self._store()

        if driven["rvalid"] and self._get("rready"):
            self.read_cycles.append(self.cycle)
            self._drive("rvalid", 0)
            assert self._reading is not None
            self._reading.done += 1
            if self._reading.done == self._reading.beats:
                self._to_read.remove(self._reading)
        if (
            self._to_read
            and not driven["rvalid"]
            and self.cycle - self._to_read[0].cycle >= self._latency
            and not self._pause("r")
        ):
            burst = self._reading = self._to_read[self._choose(self._to_read)]
            place = burst.address + burst.done * self._beat_bytes
            line = self.memory[place : place + self._beat_bytes]
            failed = self.read_error(len(self.read_cycles)) or place in self.failing
            self._drive("rdata", int.from_bytes(line.tobytes(), "little"))
            self._drive("rid", burst.ident)
            self._drive("rlast", int(burst.done == burst.beats - 1))
            self._drive("rresp", self.error if failed else 0)
            self._drive("rvalid", 1)

        if driven["bvalid"] and self._get("bready"):
            self.answers += 1
            self._drive("bvalid", 0)
        if (
            self._to_answer
            and not driven["bvalid"]
            and self.cycle - self._to_answer[0][1] >= self._latency
            and not self._pause("b")
        ):
            chosen = self._choose([burst for burst, *_ in self._to_answer])
            burst, _, response = self._to_answer[chosen]
            del self._to_answer[chosen]
            self._drive("bid", burst.ident)
            self._drive("bresp", response)
            self._drive("bvalid", 1)
        self._ready()

    def _choose(self, bursts: Sequence[Burst]) -> int:
        """Whose turn it is: of the oldest burst of each ID one at random."""
        if self.ids == 1:
            return 0
        oldest: dict[int, int] = {}
        for index, burst in enumerate(bursts):
            oldest.setdefault(burst.ident, index)
        return self._random.choice(list(oldest.values()))

    def _run(self) -> Iterator[None]:
        while True:
            yield
            self._step()


def foreign_memory(
    dut: Any,
    prefix: str,
    clock: Any,
    memory: NDArray[np.uint8],
    *,
    reset: Any,
    stalls: Mapping[str, float] | None = None,
    seed: int = 1,
) -> AxiRam:
    """The memory of cocotbext-axi in place of an :class:`AxiMemory`; takes data before addresses,
    too."""
    logging.getLogger(f"cocotb.{dut._name}.{prefix}").setLevel(logging.WARNING)
    ram = AxiRam(AxiBus.from_prefix(dut, prefix), clock, reset, mem=memoryview(memory))
    pause_channels(ram, stalls or {}, seed)
    return ram


def memory_maker(habit: str) -> Callable[..., Any]:
    """What makes a memory: an :class:`AxiMemory` of a habit, or a ``foreign`` one."""
    return foreign_memory if habit == "foreign" else functools.partial(AxiMemory, habit=habit)
