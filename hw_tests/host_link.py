"""A host on the cocotb side of a channel's link."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import cache
from typing import Any

from cocotb.triggers import ReadOnly, RisingEdge

from hw_tests.stalls import pauses

__all__ = ["Answer", "HostLink"]


@dataclass(frozen=True)
class Answer:
    """An answered read: when it was asked and answered (fabric cycles), and with what."""

    asked: int
    answered: int
    late: bool
    data: int


class HostLink:
    """Drives ``link_req_*`` and collects ``link_rsp_*``, checking that answers come in order.

    ``gap`` is the least number of idle cycles after a request; 1 is the link's pace. Before a
    request the host idles another cycle with probability ``pause``, again and again.
    """

    def __init__(
        self, dut: Any, *, prefix: str = "link", pause: float = 0.0, seed: int = 1
    ) -> None:
        self._dut = dut
        self._pauses = pauses(pause, f"{prefix} {seed}")
        self._signal = cache(lambda name: getattr(dut, f"{prefix}_{name}"))
        self._asked: deque[int] = deque()
        self.answers: list[Answer] = []
        self.cycle = 0
        for name in ("req_valid", "req_write", "req_line", "req_data"):
            self._signal(name).value = 0

    async def monitor(self) -> None:
        """Counts cycles and collects answers; to be started once."""
        while True:
            await RisingEdge(self._dut.clk)
            await ReadOnly()
            self.cycle += 1
            if self._signal("rsp_valid").value == 1:
                late = bool(self._signal("rsp_late").value)
                data = 0 if late else self._signal("rsp_data").value.to_unsigned()
                self.answers.append(Answer(self._asked.popleft(), self.cycle, late, data))

    async def request(
        self, line: int, data: int | None = None, *, gap: int = 1, force: bool = False
    ) -> None:
        """A write of ``data``, or a read if there is none. To be called after a rising edge.

        Waits for room, unless ``force``.
        """
        while next(self._pauses):
            await RisingEdge(self._dut.clk)
        while not force and self._signal("req_ready").value == 0:
            await RisingEdge(self._dut.clk)
        self._signal("req_valid").value = 1
        self._signal("req_write").value = int(data is not None)
        self._signal("req_line").value = line
        if data is None:
            # The monitor counts this cycle only when it is over.
            self._asked.append(self.cycle + 1)
        else:
            self._signal("req_data").value = data
        await RisingEdge(self._dut.clk)
        self._signal("req_valid").value = 0
        for _ in range(gap):
            await RisingEdge(self._dut.clk)

    async def read(self, line: int, *, attempts: int = 1) -> int:
        """Reads one line, again if late; fails after ``attempts``."""
        for _ in range(attempts):
            count = len(self.answers) + len(self._asked)
            await self.request(line)
            while len(self.answers) <= count:
                await RisingEdge(self._dut.clk)
            if not self.answers[count].late:
                return self.answers[count].data
        raise AssertionError(f"read of line {line:#x} was late {attempts} times")
