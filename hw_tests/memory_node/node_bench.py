"""A whole node with links and simulated DRAM: data, and how much of what they allow is reached.

Parameters: ``links``, ``groups``, ``channels``, ``group_bytes``, ``t_rfc`` and ``t_refi`` of the
DRAM, ``packets`` of a measurement of bandwidth on each link.
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge

from golden.memory_node.node import MemoryNode, flits_of
from golden.memory_node.packet import Operation, Packet
from hw.axi.bus import Response
from hw.csr.register_map import load_registers
from hw.memory_node.registers.node_registers import (
    GROUPS_OFFSET_BYTES,
    LINKS_OFFSET_BYTES,
    MEMORY_NODE_RDL,
    PART_BYTES,
)
from hw_tests.bench import bench_parameters
from hw_tests.lite_master import LiteMaster
from hw_tests.memory_node.traffic import (
    Flits,
    Requester,
    a_packet,
    check_mixed,
    lines_of,
    quiet,
    taken,
    to_port,
)
from hw_tests.streams import StreamSink, StreamSource, value_of

PARAMETERS = bench_parameters()
LINKS: int = PARAMETERS["links"]
GROUPS: int = PARAMETERS["groups"]
GROUP_BYTES: int = PARAMETERS["group_bytes"]
GROUP_LINKS = LINKS // GROUPS
GROUP_CHANNELS: int = PARAMETERS["channels"] // GROUPS
VIRTUAL = 4
NODE = 9
OWNERS = [20 + group for group in range(GROUPS)]


class Bench:
    """The node after its links have come up, and its golden model."""

    def __init__(self, dut: Any, *, pause: float = 0.0) -> None:
        self.dut = dut
        self.rng = random.Random(f"{pause}")
        self.model = MemoryNode(node=NODE, links=LINKS, groups=GROUPS, group_bytes=GROUP_BYTES)
        places = [(link, channel) for link in range(LINKS) for channel in range(VIRTUAL)]
        self.sources = {
            (link, channel): StreamSource(dut, f"send_{link}_{channel}", dut.clk, pause=pause)
            for link, channel in places
        }
        self.sinks = {
            (link, channel): StreamSink(dut, f"get_{link}_{channel}", dut.clk, pause=pause)
            for link, channel in places
        }
        self.lite = LiteMaster(dut, "s_axi", dut.clk)
        self.leaving: dict[Any, list[list[Flits]]] = defaultdict(list)

    async def start(self) -> None:
        dut = self.dut
        cocotb.start_soon(Clock(dut.clk, 2, unit="ns").start())
        dut.rst.value = 1
        await ClockCycles(dut.clk, 4)
        dut.rst.value = 0
        await self._write(0, "memory_node", "node", NODE)
        for index, group in enumerate(self.model.groups):
            group.owner, group.size = OWNERS[index], GROUP_BYTES
            offset = GROUPS_OFFSET_BYTES + PART_BYTES * index
            await self._write(offset, "memory_node_group", "size", GROUP_BYTES)
            await self._write(offset, "memory_node_group", "owner", OWNERS[index])

    async def _write(self, offset: int, top: str, name: str, value: int) -> None:
        address = offset + load_registers(top, MEMORY_NODE_RDL)[name].offset_bytes
        assert await self.lite.write(address, value) == Response.OKAY

    async def counter(self, link: int, name: str) -> int:
        registers = load_registers("memory_node_link", MEMORY_NODE_RDL)
        address = LINKS_OFFSET_BYTES + PART_BYTES * link + registers[name].offset_bytes
        value, response = await self.lite.read(address)
        assert response == Response.OKAY
        return value

    def send(self, link: int, channel: int, packets: list[Flits]) -> None:
        leaving: dict[Any, list[Flits]] = defaultdict(list)
        for packet in packets:
            self.sources[link, channel].queue.extend(map(to_port, packet))
            sent = self.model.take(link, channel, packet)
            if sent is not None:
                leaving[sent.link, sent.channel].append(sent.flits)
        for place, flits in leaving.items():
            self.leaving[place].append(flits)

    async def check(self, *, cycles: int = 600) -> None:
        """All that is to leave has left, nothing else, and no DRAM was given a wrong command."""
        await quiet(self.dut, self.sinks.values(), cycles=cycles)
        for place, sink in self.sinks.items():
            check_mixed(taken(sink), self.leaving[place])
        assert not value_of(self.dut.violation)


@cocotb.test(timeout_time=5, timeout_unit="ms")
@cocotb.parametrize(pause=[0.0, 0.4])
async def random_traffic(dut: Any, pause: float) -> None:
    """Writes first, then requests of all kinds and packets that pass; then all is read."""
    bench = Bench(dut, pause=pause)
    await bench.start()
    rng = bench.rng
    pages = 4
    for link in range(LINKS):
        group, number = divmod(link, GROUP_LINKS)
        first = number * pages * 64
        whole = [
            flits_of(
                Packet(
                    destination=NODE,
                    source=OWNERS[group],
                    operation=operation,
                    lines=64,
                    address=64 * (first + 64 * page),
                    data=lines_of(rng, 64) if operation == Operation.WRITE else b"",
                )
            )
            for operation in (Operation.WRITE, Operation.READ)
            for page in range(pages)
        ]
        requester = Requester(
            rng=rng,
            node=NODE,
            owner=OWNERS[group],
            first=first,
            end=first + 64 * pages,
            size=GROUP_BYTES,
        )
        mixed = [requester.wrong() if rng.random() < 0.2 else requester.right() for _ in range(30)]
        bench.send(link, 0, [*whole[:pages], *mixed, *whole[pages:]])
        for channel in range(1, VIRTUAL):
            bench.send(
                link, channel, [a_packet(rng, NODE ^ rng.randint(1, 255)) for _ in range(20)]
            )
    await bench.check()
    for link in range(LINKS):
        for name in ("requests", "lines_read", "lines_written", "passed", "dropped"):
            assert await bench.counter(link, name) == bench.model.counts[name, link]
        sent = sum(len(sink.taken) for (of, _), sink in bench.sinks.items() if of == link)
        assert await bench.counter(link, "sent") == sent


@cocotb.test(timeout_time=500, timeout_unit="ms")
@cocotb.parametrize(kind=["reads", "writes", "both"])
async def bandwidth(dut: Any, kind: str) -> None:
    """Packets of 4 KB on all links: at least 95 % of what links or DRAM allow."""
    bench = Bench(dut)
    await bench.start()
    pages = GROUP_BYTES // 4096 // GROUP_LINKS
    packets: int = PARAMETERS["packets"]
    operations = {
        "reads": [Operation.READ],
        "writes": [Operation.WRITE],
        "both": [Operation.READ, Operation.WRITE],
    }[kind]
    order = (operations * packets)[:packets]
    data = lines_of(bench.rng, 64)
    start = packets // 4
    for link in range(LINKS):
        group, number = divmod(link, GROUP_LINKS)
        flits: list[Flits] = [
            flits_of(
                Packet(
                    destination=NODE,
                    source=OWNERS[group],
                    operation=operation,
                    tag=index,
                    lines=64,
                    # Two streams half a share apart.
                    address=4096
                    * (
                        number * pages
                        + (index // len(operations) + pages // 2 * (operation == Operation.WRITE))
                        % pages
                    ),
                    data=data if operation == Operation.WRITE else b"",
                )
            )
            for index, operation in enumerate(order)
        ]
        for each in flits:
            bench.sources[link, 0].queue.extend(map(to_port, each))
    sinks = [bench.sinks[link, 2] for link in range(LINKS)]
    ends: list[list[int]] = []
    for _ in range(packets):
        await ClockCycles(dut.clk, 200)
        ends = [
            [cycle for flit, cycle in zip(sink.taken, sink.cycles, strict=True) if flit >> 1 & 1]
            for sink in sinks
        ]
        if all(len(each) == packets for each in ends):
            break
    assert not value_of(dut.violation)
    for sink in sinks:
        assert all(packet[0].payload[3] == 0 for packet in taken(sink))
    # The middle of all.
    middle = range(start, packets - start)
    cycles = max(each[middle[-1]] - each[middle[0] - 1] for each in ends)
    reads = sum(order[index] == Operation.READ for index in middle)
    writes = len(middle) - reads
    out, into = 65 * reads + writes, reads + 65 * writes
    by_links = 64 * len(middle) * GROUP_LINKS / max(out, into)
    refreshing = PARAMETERS["t_rfc"] / PARAMETERS["t_refi"]
    by_dram = GROUP_CHANNELS * (1 - refreshing)
    reached = 64 * len(middle) * GROUP_LINKS / cycles
    bound = min(by_links, by_dram)
    print(
        f"{kind}: {reached:.4f} lines a cycle of a group; links allow {by_links:.4f}, "
        f"DRAM {by_dram:.4f}: {reached / bound:.1%}"
    )
    print(f"{kind}: first answer ends after {ends[0][0]} cycles")
    assert reached / bound > 0.95


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def latency(dut: Any) -> None:
    """A read of 4 KB by itself, from the first flit into the link to the last one out of it."""
    bench = Bench(dut)
    await bench.start()
    await ClockCycles(dut.clk, 100)
    packet = Packet(destination=NODE, source=OWNERS[0], operation=Operation.READ, lines=64)
    sink = bench.sinks[0, 2]
    edge = RisingEdge(dut.clk)
    bench.sources[0, 0].queue.extend(map(to_port, flits_of(packet)))
    cycle = 0
    while len(sink.taken) != 65:
        await edge
        cycle += 1
        assert cycle < 1000
    first = cycle - (sink.cycles[-1] - sink.cycles[0])
    print(f"a read of 4 KB: first flit after {first} cycles, last after {cycle}")
    assert sink.cycles[-1] - sink.cycles[0] == 64, "there were gaps"
