"""Drivers of valid/ready streams for cocotb benches.

``agents.cpp`` acts for them at every clock; :func:`play` has what is in Python do so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import cache
from typing import Any

import cocotb
from amaranth.lib import data
from cocotb.triggers import RisingEdge

from hw_tests.agents import agents, start_agent

__all__ = ["StreamSink", "StreamSource", "pack", "play", "unpack", "value_of"]


def value_of(port: Any) -> int:
    """A port as a number, in a quarter of the time that ``int(port.value)`` takes.

    Most of a bench's time goes into reading ports. X and Z the simulator does not have.
    """
    return int(port._handle.get_signal_val_binstr(), 2)


def pack(layout: data.Layout, **values: int) -> int:
    """The payload of ``layout`` with these fields; the others are 0."""
    return sum(value << layout[name].offset for name, value in values.items())


@cache
def _places(layout: data.Layout) -> list[tuple[str, int, int]]:
    return [(str(name), field.offset, (1 << field.width) - 1) for name, field in layout]


def unpack(layout: data.Layout, payload: int) -> dict[str, int]:
    """The fields of a payload of ``layout``."""
    return {name: payload >> offset & mask for name, offset, mask in _places(layout)}


_players: dict[Any, tuple[Any, list[Iterator[None]]]] = {}
"""For each clock the task that goes on with what is played at its edges."""


def play(clock: Any, steps: Iterator[None]) -> None:
    """Goes on with ``steps`` at each rising edge of ``clock`` until the test ends.

    One task does it for all: to wake one takes longer than most of what is done in a cycle.
    """
    task, playing = _players.get(clock, (None, []))
    if task is None or task.done():  # that of a test before this one
        playing = []
        _players[clock] = cocotb.start_soon(_run(clock, playing)), playing
    next(steps)
    playing.append(steps)


async def _run(clock: Any, playing: list[Iterator[None]]) -> None:
    edge = RisingEdge(clock)
    while True:
        await edge
        for steps in playing:
            next(steps, None)


class StreamSource:
    """Offers the payloads of ``queue`` at the ports ``PREFIX_payload``, ``_valid``, ``_ready``.

    A payload once offered stays until it is taken. ``pause`` is the probability that none is
    offered in a cycle; it may be changed.
    """

    def __init__(
        self, dut: Any, prefix: str, clock: Any, *, pause: float = 0.0, seed: int = 1
    ) -> None:
        self.queue: deque[int] = deque()
        self.pause = pause
        valid = getattr(dut, f"{prefix}_valid")
        self._agent = start_agent("source", self, clock, valid, f"{prefix} {seed}")

    def stop(self) -> None:
        """Offers nothing any more, for a reset of the other side."""
        agents().source_stop(self._agent)


class StreamSink:
    """Takes payloads into ``taken``, with the clock cycle of each in ``cycles``.

    Checks that a payload that waits stays what it is. ``pause`` is the probability that none is
    taken in a cycle; it may be changed.
    """

    def __init__(
        self, dut: Any, prefix: str, clock: Any, *, pause: float = 0.0, seed: int = 1
    ) -> None:
        self.taken: list[int] = []
        self.cycles: list[int] = []
        self.pause = pause
        valid = getattr(dut, f"{prefix}_valid")
        start_agent("sink", self, clock, valid, f"{prefix} {seed}")
