"""AXI4 memories for cocotb benches: numpy-backed, with stalls, errors and protocol checks.

``agents.cpp`` acts for an :class:`AxiMemory` at every clock.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from cocotbext.axi import AxiBus, AxiRam
from numpy.typing import NDArray

from hw.axi.bus import Response
from hw_tests.agents import agents, start_agent
from hw_tests.stalls import STALLS, pause_channels

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


@dataclass
class Burst:
    """A burst as it was accepted; ``cycle`` counts clock cycles since the memory was made."""

    address: int
    beats: int
    cycle: int
    ident: int


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

    _burst = Burst

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
        read_error: Callable[[int], bool] | None = None,
        write_error: Callable[[int], bool] | None = None,
        error: Response = Response.SLVERR,
        failing: Container[int] = (),
    ) -> None:
        assert habit in HABITS
        assert habit == HABITS[0] or not shared, "a shared memory has no habits"
        assert memory.flags.carray, "the memory is no plain array that can be written"
        self.memory = memory
        self.stalls = dict(stalls or {})
        self.read_error = read_error
        self.write_error = write_error
        self.error = error
        self.failing = failing
        self.reads: list[Burst] = []
        self.writes: list[Burst] = []
        self.read_cycles: list[int] = []
        self.write_cycles: list[int] = []
        self._agent = start_agent(
            "memory",
            self,
            clock,
            getattr(dut, f"{prefix}_arvalid"),
            f"{prefix} {seed}",
            b"" if reset is None else reset._path.encode(),
            ctypes.c_void_p(memory.ctypes.data),
            ctypes.c_uint64(memory.nbytes),
            habit.encode(),
            ctypes.c_uint64(_LATE_CYCLES if habit == "late" else 0),
            ids,
            shared,
        )

    @property
    def cycle(self) -> int:
        """Clock cycles since the memory was made."""
        return agents().memory_cycle(self._agent)

    @property
    def answers(self) -> int:
        """Answers to writes that were taken."""
        return agents().memory_answers(self._agent)

    @property
    def quiet(self) -> bool:
        """Nothing is in flight."""
        return agents().memory_quiet(self._agent)


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
