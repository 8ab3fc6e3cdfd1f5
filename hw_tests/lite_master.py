"""An AXI4-Lite manager for cocotb benches."""

from __future__ import annotations

from typing import Any

from cocotb.triggers import RisingEdge

from hw_tests.streams import value_of

__all__ = ["LiteMaster"]


class LiteMaster:
    """Reads and writes words of 64 bits through the ports ``PREFIX_*`` of ``dut``, one at a time.

    ``data_delay`` puts that many cycles between the address and the data of a write (negative:
    the data comes first); ``ready_delay`` lets an answer wait that long.
    """

    def __init__(self, dut: Any, prefix: str, clock: Any) -> None:
        self._dut = dut
        self._prefix = prefix
        self._edge = RisingEdge(clock)
        self.data_delay = 0
        self.ready_delay = 0
        for name in ("awvalid", "wvalid", "arvalid", "bready", "rready", "awprot", "arprot"):
            self._signal(name).value = 0

    def _signal(self, name: str) -> Any:
        return getattr(self._dut, f"{self._prefix}_{name}")

    async def _send(self, channels: dict[str, int]) -> None:
        """Offers each channel after its delay in cycles, until all are taken."""
        waiting = dict(channels)
        cycle = 0
        while waiting:
            for channel, delay in waiting.items():
                if delay == cycle:
                    self._signal(f"{channel}valid").value = 1
            await self._edge
            for channel, delay in list(waiting.items()):
                if delay <= cycle and value_of(self._signal(f"{channel}ready")):
                    self._signal(f"{channel}valid").value = 0
                    del waiting[channel]
            cycle += 1

    async def _answer(self, channel: str, names: tuple[str, ...]) -> list[int]:
        for _ in range(self.ready_delay):
            await self._edge
        self._signal(f"{channel}ready").value = 1
        while True:
            await self._edge
            if value_of(self._signal(f"{channel}valid")):
                break
        self._signal(f"{channel}ready").value = 0
        return [value_of(self._signal(f"{channel}{name}")) for name in names]

    async def write(self, address: int, value: int, strobes: int = 0xFF) -> int:
        """Writes a word and returns ``BRESP``."""
        self._signal("awaddr").value = address
        self._signal("wdata").value = value
        self._signal("wstrb").value = strobes
        await self._send({"aw": max(0, -self.data_delay), "w": max(0, self.data_delay)})
        return (await self._answer("b", ("resp",)))[0]

    async def read(self, address: int) -> tuple[int, int]:
        """Reads a word and returns it with ``RRESP``."""
        self._signal("araddr").value = address
        await self._send({"ar": 0})
        value, response = await self._answer("r", ("data", "resp"))
        return value, response
