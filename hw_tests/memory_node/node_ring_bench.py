"""Two devices and two memory-nodes in a ring, all links and DRAM simulated.

Device d owns group 0 of memory-node d and group 1 of the other. Parameters: ``links``.
"""

from __future__ import annotations

from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles

from golden.memory_node.packet import Operation
from hw.axi.bus import Response
from hw.csr.register_map import load_registers
from hw.memory_node.registers.node_registers import (
    GROUPS_OFFSET_BYTES,
    LINKS_OFFSET_BYTES,
    MEMORY_NODE_RDL,
    PART_BYTES,
)
from hw.sim.device_node import Transfer
from hw_tests.bench import bench_parameters
from hw_tests.lite_master import LiteMaster
from hw_tests.memory_node.node_ring import DEVICES
from hw_tests.streams import StreamSource, pack

LINKS: int = bench_parameters()["links"]
HALF = LINKS // 2
ONWARD, BACK = (1 << HALF) - 1, (1 << HALF) - 1 << HALF
"""Links of a device to the memory-node of its number, and to the one before."""
FIRST_NODE = 10
LINES = 64 * 3 + 5
PACKETS = 4


class Bench:
    """The ring with its registers written."""

    def __init__(self, dut: Any) -> None:
        self.dut = dut
        self.lites = [LiteMaster(dut, f"s_axi_{node}", dut.clk) for node in range(DEVICES)]
        self.sources = [
            StreamSource(dut, f"transfers_{device}", dut.clk) for device in range(DEVICES)
        ]

    async def start(self) -> None:
        dut = self.dut
        cocotb.start_soon(Clock(dut.clk, 2, unit="ns").start())
        dut.rst.value = 1
        for device in range(DEVICES):
            getattr(dut, f"cut_{device}").value = 0
        await ClockCycles(dut.clk, 4)
        dut.rst.value = 0
        for node in range(DEVICES):
            await self._write(node, 0, "memory_node", "node", FIRST_NODE + node | (node == 0) << 8)
            for group in range(2):
                offset = GROUPS_OFFSET_BYTES + PART_BYTES * group
                await self._write(node, offset, "memory_node_group", "size", 64 * 4096)
                await self.own(node, group, (node + group) % DEVICES)

    async def own(self, node: int, group: int, device: int) -> None:
        """Gives a group to a device."""
        offset = GROUPS_OFFSET_BYTES + PART_BYTES * group
        await self._write(node, offset, "memory_node_group", "owner", device)

    async def _write(self, node: int, offset: int, top: str, name: str, value: int) -> None:
        address = offset + load_registers(top, MEMORY_NODE_RDL)[name].offset_bytes
        assert await self.lites[node].write(address, value) == Response.OKAY

    async def counts(self, node: int, name: str) -> list[int]:
        """A counter of each link of a memory-node."""
        offset = load_registers("memory_node_link", MEMORY_NODE_RDL)[name].offset_bytes
        values: list[int] = []
        for link in range(LINKS):
            address = LINKS_OFFSET_BYTES + PART_BYTES * link + offset
            value, response = await self.lites[node].read(address)
            assert response == Response.OKAY
            values.append(value)
        return values

    def ask(
        self, device: int, operation: Operation, links: int, line: int, *, to: int | None = None
    ) -> None:
        """Has a device move :data:`LINES`; to the memory-node behind ``links`` if not told."""
        node = FIRST_NODE + (device if links & ONWARD else device - 1) % DEVICES
        payload = pack(
            Transfer(LINKS),
            operation=operation,
            destination=node if to is None else to,
            links=links,
            line=line,
            lines=LINES,
            seed=(device << 8) + line % 251,
        )
        self.sources[device].queue.append(payload)

    def value(self, name: str, device: int) -> int:
        return int(getattr(self.dut, f"{name}_{device}").value)

    async def idle(self) -> None:
        """Waits until nothing is asked for any more."""
        for _ in range(2000):
            await ClockCycles(self.dut.clk, 100)
            if int(self.dut.idle.value) == (1 << DEVICES) - 1 and not any(
                source.queue for source in self.sources
            ):
                break
        else:
            raise AssertionError("a device waits for ever")
        await ClockCycles(self.dut.clk, 500)
        assert not int(self.dut.violation.value)
        for device in range(DEVICES):
            assert self.value("wrong", device) == 0, f"device {device}"


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def all_at_once(dut: Any) -> None:
    """Both devices write to both memory-nodes, read it again, and send to each other both ways."""
    bench = Bench(dut)
    await bench.start()
    for operation in (Operation.WRITE, Operation.READ):
        for device in range(DEVICES):
            for links in (ONWARD, BACK):
                bench.ask(device, operation, links, 7)
                bench.ask(device, Operation.MESSAGE, links, 7, to=1 - device)
                bench.ask(device, operation, links, 1000)
        # Links do not wait for each other.
        await bench.idle()
    for device in range(DEVICES):
        assert bench.value("done", device) == 8 * PACKETS
        assert bench.value("received", device) == 4 * PACKETS
        assert bench.value("refused", device) == bench.value("again", device) == 0
        assert bench.value("dead", device) == 0
    for node in range(DEVICES):
        # As evenly over the links as it goes.
        assert await bench.counts(node, "requests") == [4 * PACKETS // HALF] * LINKS
        assert sum(await bench.counts(node, "lines_read")) == 4 * LINES
        assert sum(await bench.counts(node, "lines_written")) == 4 * LINES
        assert sum(await bench.counts(node, "passed")) == 4 * PACKETS
        assert await bench.counts(node, "dropped") == [0] * LINKS
        assert sum(await bench.counts(node, "sent_again")) == 0


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def not_ones_own(dut: Any) -> None:
    """A device that does not own a group is refused, and nothing is changed."""
    bench = Bench(dut)
    await bench.start()
    bench.ask(0, Operation.WRITE, ONWARD, 0)
    await bench.idle()
    await bench.own(0, 0, 99)
    bench.ask(0, Operation.WRITE, ONWARD, 3)
    await bench.idle()
    assert bench.value("done", 0) == bench.value("refused", 0) == PACKETS
    await bench.own(0, 0, 0)
    bench.ask(0, Operation.READ, ONWARD, 0)
    await bench.idle()
    assert bench.value("done", 0) == 2 * PACKETS


@cocotb.test(timeout_time=5, timeout_unit="ms")
@cocotb.parametrize(during=[Operation.WRITE, Operation.READ], after_cycles=[150, 400])
async def a_link_dies(dut: Any, during: Operation, after_cycles: int) -> None:
    """What went over it and was not answered is asked for again; in the end all is there."""
    bench = Bench(dut)
    await bench.start()
    for operation in (Operation.WRITE, Operation.READ):
        for device in range(DEVICES):
            for links in (ONWARD, BACK):
                bench.ask(device, operation, links, 7)
        if operation == during:
            await ClockCycles(dut.clk, after_cycles)
            dut.cut_0.value = 1
        # Links do not wait for each other.
        await bench.idle()
    assert bench.value("dead", 0) == 1
    assert bench.value("again", 0) > 0
    assert bench.value("again", 1) == 0
    for device in range(DEVICES):
        assert bench.value("done", device) == 4 * PACKETS
        assert bench.value("refused", device) == 0
