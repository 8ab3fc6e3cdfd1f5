"""Drivers of valid/ready streams for cocotb benches."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import cocotb
from cocotb.triggers import RisingEdge

__all__ = ["PAUSES", "StreamSink", "StreamSource"]

PAUSES = {"none": 0.0, "random": 0.4, "heavy": 0.9}
"""Named probabilities that a side pauses in a cycle."""


class StreamSource:
    """Offers the payloads of ``queue`` at the ports ``PREFIX_payload``, ``_valid``, ``_ready``.

    A payload once offered stays until it is taken.
    """

    def __init__(
        self, dut: Any, prefix: str, clock: Any, *, pause: float = 0.0, seed: int = 1
    ) -> None:
        self.queue: deque[int] = deque()
        self.pause = pause
        self._payload = getattr(dut, f"{prefix}_payload")
        self._valid = getattr(dut, f"{prefix}_valid")
        self._ready = getattr(dut, f"{prefix}_ready")
        self._clock = clock
        self._random = random.Random(f"{prefix} {seed}")
        self._valid.value = 0
        cocotb.start_soon(self._run())

    async def _run(self) -> None:
        edge = RisingEdge(self._clock)
        offered = False
        while True:
            await edge
            if offered and int(self._ready.value):
                self.queue.popleft()
                offered = False
            if not offered and self.queue and self._random.random() >= self.pause:
                offered = True
                self._payload.value = self.queue[0]
            self._valid.value = int(offered)


class StreamSink:
    """Takes payloads into ``taken``, with the clock cycle of each in ``cycles``.

    Checks that a payload that waits stays what it is.
    """

    def __init__(
        self, dut: Any, prefix: str, clock: Any, *, pause: float = 0.0, seed: int = 1
    ) -> None:
        self.taken: list[int] = []
        self.cycles: list[int] = []
        self.pause = pause
        self._prefix = prefix
        self._payload = getattr(dut, f"{prefix}_payload")
        self._valid = getattr(dut, f"{prefix}_valid")
        self._ready = getattr(dut, f"{prefix}_ready")
        self._clock = clock
        self._random = random.Random(f"{prefix} {seed}")
        self._ready.value = 0
        cocotb.start_soon(self._run())

    async def _run(self) -> None:
        edge = RisingEdge(self._clock)
        cycle = 0
        ready = False
        waiting: int | None = None
        while True:
            await edge
            cycle += 1
            valid = bool(int(self._valid.value))
            payload = int(self._payload.value) if valid else None
            if waiting is not None:
                assert payload == waiting, f"{self._prefix} changed while it waited"
            waiting = None
            if payload is not None:
                if ready:
                    self.taken.append(payload)
                    self.cycles.append(cycle)
                else:
                    waiting = payload
            ready = self._random.random() >= self.pause
            self._ready.value = int(ready)
