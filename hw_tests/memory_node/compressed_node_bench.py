"""A device writes blocks compressed to a memory-node over wires with noise, and reads them again.

Parameters: ``phit_bytes`` of the link, ``group_bytes`` of the node's memory.
"""

from __future__ import annotations

from typing import Any

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge

from golden.memory_node import Phit
from golden.memory_node.compression import compressed
from hw.axi.bus import Response
from hw.csr.register_map import load_registers
from hw.memory_node.compression.words import BlockLine
from hw.memory_node.registers.node_registers import (
    GROUPS_OFFSET_BYTES,
    LINKS_OFFSET_BYTES,
    MEMORY_NODE_RDL,
)
from hw_tests.bench import bench_parameters
from hw_tests.lite_master import LiteMaster
from hw_tests.memory_node.compression_bench import KINDS, a_block, plain
from hw_tests.memory_node.link.noise import NoisyWire
from hw_tests.side_by_side import Side
from hw_tests.stalls import STALLS
from hw_tests.streams import StreamSink, StreamSource, unpack, value_of

PARAMETERS = bench_parameters()
PHIT_BYTES: int = PARAMETERS["phit_bytes"]
WIRE_CYCLES = 3


async def noisy(dut: Any, begin: str, end: str, noise: str) -> None:
    """The wire between two ports."""
    source, target = Side(dut, begin), Side(dut, end)
    wire = NoisyWire(noise, PHIT_BYTES, delay=WIRE_CYCLES, seed=begin)
    edge = RisingEdge(dut.clk)
    while True:
        await edge
        sent = None
        if value_of(source.valid):
            data = value_of(source.data).to_bytes(PHIT_BYTES, "little")
            sent = Phit(bool(value_of(source.first)), data)
        came = wire.carry(sent)
        target.valid.value = int(came is not None)
        if came is not None:
            target.first.value = int(came.first)
            target.data.value = int.from_bytes(came.data, "little")


@cocotb.test(timeout_time=100, timeout_unit="us")
@cocotb.parametrize(noise=["none", "random", "heavy"], stalls=list(STALLS))
async def there_and_back(dut: Any, noise: str, stalls: str) -> None:
    """Every byte as it was; every count what the golden model makes of the blocks."""
    rng = np.random.default_rng(len(noise + stalls))
    blocks = [a_block(rng, int(rng.integers(1, 65)), kind) for kind in 2 * KINDS]
    blocks += [a_block(rng, 64, kind) for kind in KINDS]
    lines = sum(len(block) // 64 for block in blocks)
    stored = sum(len(compressed(block)) // 64 for block in blocks)

    device, node = Side(dut, "device"), Side(dut, "node")
    lite = LiteMaster(node, "s_axi", dut.clk)
    pause = STALLS[stalls]
    source = StreamSource(device, "i", dut.clk, pause=pause)
    sink = StreamSink(device, "o", dut.clk, pause=pause)
    cocotb.start_soon(Clock(dut.clk, 2, unit="ns").start())
    dut.rst.value = 1
    await ClockCycles(dut.clk, 4)
    dut.rst.value = 0
    cocotb.start_soon(noisy(dut, "device_wire_out", "node_wire_in_0", noise))
    cocotb.start_soon(noisy(dut, "node_wire_out_0", "device_wire_in", noise))
    registers = load_registers("memory_node_group", MEMORY_NODE_RDL)
    size = GROUPS_OFFSET_BYTES + registers["size"].offset_bytes
    assert await lite.write(size, PARAMETERS["group_bytes"]) == Response.OKAY

    source.queue.extend(line for block in blocks for line in plain(block))
    while len(sink.taken) < lines:
        await ClockCycles(dut.clk, 100)
    await ClockCycles(dut.clk, 500)
    back = [unpack(BlockLine, payload) for payload in sink.taken]
    assert b"".join(each["line"].to_bytes(64, "little") for each in back) == b"".join(blocks)
    ends = np.cumsum([len(block) // 64 for block in blocks]) - 1
    assert np.flatnonzero([each["last"] for each in back]).tolist() == ends.tolist()

    assert not value_of(device.wrong)
    assert not value_of(node.violation)
    counts = {
        name: int(getattr(device, name).value) for name in ("given", "stored", "fetched", "back")
    }
    assert counts == {"given": lines, "stored": stored, "fetched": stored, "back": lines}
    registers = load_registers("memory_node_link", MEMORY_NODE_RDL)
    for name, count in (
        ("lines_written", stored),
        ("lines_read", stored),
        ("requests", 2 * len(blocks)),
    ):
        at = LINKS_OFFSET_BYTES + registers[name].offset_bytes
        assert await lite.read(at) == (count, Response.OKAY)
    assert stored < 0.6 * lines
    harmed = [int(getattr(device, name).value) > 0 for name in ("sent_again", "discarded")]
    assert harmed == [noise != "none"] * 2
