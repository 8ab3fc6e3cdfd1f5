"""A node between its links and its memory, beside the golden model; its registers and counters.

Parameters: ``links``, ``groups``, ``channels``, ``interleave_bytes``, ``channel_bytes``.
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles

from golden.memory_node.node import MemoryNode, channel_of
from golden.memory_node.packet import LINE_BYTES, Status
from hw.axi.bus import Response
from hw.csr.register_map import load_registers
from hw.memory_node.registers.node_registers import (
    GROUPS_OFFSET_BYTES,
    LINKS_OFFSET_BYTES,
    MEMORY_NODE_RDL,
    PART_BYTES,
)
from hw_tests.axi_memory import CHANNEL_STALLS, AxiMemory
from hw_tests.bench import bench_parameters
from hw_tests.lite_master import LiteMaster, kept_bits
from hw_tests.memory_node.traffic import (
    Flits,
    Requester,
    a_packet,
    check_mixed,
    quiet,
    taken,
    to_port,
)
from hw_tests.stalls import STALLS
from hw_tests.streams import StreamSink, StreamSource

PARAMETERS = bench_parameters()
LINKS: int = PARAMETERS["links"]
GROUPS: int = PARAMETERS["groups"]
CHANNELS: int = PARAMETERS["channels"]
SIZE: int = PARAMETERS["channel_bytes"]
GROUP_LINKS = LINKS // GROUPS
GROUP_CHANNELS = CHANNELS // GROUPS
VIRTUAL = 4
NODE = 9
OWNERS = [20 + group for group in range(GROUPS)]

_TOPS = {"": (0, "memory_node"), "group": (GROUPS_OFFSET_BYTES, "memory_node_group")} | {
    "link": (LINKS_OFFSET_BYTES, "memory_node_link")
}


class Bench:
    """A node without links, with memories and streams, and its golden model."""

    def __init__(self, dut: Any, *, stalls: str = "none", date_line: bool = False) -> None:
        self.dut = dut
        self.rng = rng = random.Random(f"{stalls} {date_line}")
        self.model = MemoryNode(
            node=NODE,
            links=LINKS,
            groups=GROUPS,
            group_bytes=GROUP_CHANNELS * SIZE,
            date_line=date_line,
        )
        for group, owner in zip(self.model.groups, OWNERS, strict=True):
            group.memory[:] = rng.randbytes(len(group.memory))
            group.owner = owner
            group.base = LINE_BYTES * rng.randrange(200)
            group.size = 4096 * 3 * GROUP_LINKS
        self.memories = self._memories()
        self.axi = [
            AxiMemory(
                dut,
                f"memory_{index}",
                dut.clk,
                memory,
                stalls=CHANNEL_STALLS[stalls],
                ids=GROUP_LINKS,
                reset=dut.rst,
                seed=index,
            )
            for index, memory in enumerate(self.memories)
        ]
        pause = STALLS[stalls]
        places = [(link, channel) for link in range(LINKS) for channel in range(VIRTUAL)]
        self.sources = {
            (link, channel): StreamSource(dut, f"receive_{link}_{channel}", dut.clk, pause=pause)
            for link, channel in places
        }
        self.sinks = {
            (link, channel): StreamSink(dut, f"transmit_{link}_{channel}", dut.clk, pause=pause)
            for link, channel in places
        }
        self.lite = LiteMaster(dut, "s_axi", dut.clk)

    def _memories(self) -> list[Any]:
        """What is in each channel by the golden model."""
        memories = [np.zeros(SIZE, np.uint8) for _ in range(CHANNELS)]
        for number, group in enumerate(self.model.groups):
            whole = np.frombuffer(group.memory, np.uint8)
            for line in range(0, len(whole), LINE_BYTES):
                channel, at = channel_of(
                    line, channels=GROUP_CHANNELS, interleave_bytes=PARAMETERS["interleave_bytes"]
                )
                target = memories[number * GROUP_CHANNELS + channel]
                target[at : at + LINE_BYTES] = whole[line : line + LINE_BYTES]
        return memories

    @staticmethod
    def address(name: str, part: str = "", index: int = 0) -> int:
        offset, top = _TOPS[part]
        return offset + PART_BYTES * index + load_registers(top, MEMORY_NODE_RDL)[name].offset_bytes

    async def write(self, name: str, value: int, part: str = "", index: int = 0) -> None:
        assert await self.lite.write(self.address(name, part, index), value) == Response.OKAY

    async def read(self, name: str, part: str = "", index: int = 0) -> int:
        value, response = await self.lite.read(self.address(name, part, index))
        assert response == Response.OKAY
        return value

    async def start(self) -> None:
        dut = self.dut
        cocotb.start_soon(Clock(dut.clk, 2, unit="ns").start())
        dut.rst.value = 1
        dut.dead.value = 0
        for link in range(LINKS):
            for index, name in enumerate(("sent", "sent_again", "taken", "discarded")):
                getattr(dut, f"{name}_{link}").value = 100 * link + index
        await ClockCycles(dut.clk, 4)
        dut.rst.value = 0
        await self.write("node", NODE | self.model.date_line << 8)
        for index, group in enumerate(self.model.groups):
            await self.write("base", group.base, "group", index)
            await self.write("size", group.size, "group", index)
            await self.write("owner", group.owner, "group", index)

    def requester(self, link: int) -> Requester:
        group, number = divmod(link, GROUP_LINKS)
        size = self.model.groups[group].size
        share = size // LINE_BYTES // GROUP_LINKS
        return Requester(
            rng=self.rng,
            node=NODE,
            owner=OWNERS[group],
            first=number * share,
            end=(number + 1) * share,
            size=size,
        )

    def send(self, link: int, channel: int, packets: list[Flits]) -> dict[Any, list[Flits]]:
        """Has a link bring ``packets``; what is to leave for them, by link and channel."""
        leaving: dict[Any, list[Flits]] = defaultdict(list)
        for packet in packets:
            self.sources[link, channel].queue.extend(map(to_port, packet))
            sent = self.model.take(link, channel, packet)
            if sent is not None:
                leaving[sent.link, sent.channel, sent.flits[0].payload[1] == NODE].append(
                    sent.flits
                )
        return leaving

    async def check_counters(self) -> None:
        counts = self.model.counts
        for link in range(LINKS):
            for name in ("requests", "lines_read", "lines_written", "passed", "dropped"):
                assert await self.read(name, "link", link) == counts[name, link], (name, link)
            for index, name in enumerate(("sent", "sent_again", "taken", "discarded")):
                assert await self.read(name, "link", link) == 100 * link + index
        for group in range(GROUPS):
            links = range(group * GROUP_LINKS, (group + 1) * GROUP_LINKS)
            for status in Status:
                if status is not Status.OK:
                    want = sum(counts[f"refused_{status.name}", link] for link in links)
                    name = f"refused_{status.name.lower()}"
                    assert await self.read(name, "group", group) == want, (name, group)

    def check_memory(self) -> None:
        for index, (want, have) in enumerate(zip(self._memories(), self.memories, strict=True)):
            different = np.flatnonzero(want != have)
            assert not different.size, f"channel {index} at {different[:8]}"


@cocotb.test(timeout_time=5, timeout_unit="ms")
@cocotb.parametrize((("stalls", "date_line"), [("none", 0), ("random", 1), ("heavy", 0)]))
async def requests_and_what_passes(dut: Any, stalls: str, date_line: int) -> None:
    """All at once on all links: requests right and wrong, packets for others, responses."""
    bench = Bench(dut, stalls=stalls, date_line=bool(date_line))
    await bench.start()
    rng = bench.rng
    count = 15 if stalls == "heavy" else 40
    leaving: dict[Any, list[list[Flits]]] = defaultdict(list)
    for link in range(LINKS):
        requester = bench.requester(link)
        for channel in range(VIRTUAL):
            packets: list[Flits] = []
            for _ in range(count):
                # Own requests of a link on one virtual channel, whose order is known.
                if channel == link % 2 and rng.random() < 0.7:
                    wrong = rng.random() < 0.25
                    packets.append(requester.wrong() if wrong else requester.right())
                elif channel < 2 or rng.random() < 0.8:
                    packets.append(a_packet(rng, NODE ^ rng.randint(1, 255), source=NODE + 1))
                else:
                    packets.append(a_packet(rng, NODE, source=NODE + 1))
            for place, flits in bench.send(link, channel, packets).items():
                leaving[place[:2]].append(flits)
    await quiet(dut, bench.sinks.values())
    for place, sink in bench.sinks.items():
        check_mixed(taken(sink), leaving[place])
    bench.check_memory()
    await bench.check_counters()
    assert sum(bench.model.counts.values())


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def a_dead_link(dut: Any) -> None:
    """Its requests are answered on another link of the group."""
    bench = Bench(dut)
    await bench.start()
    leaving: dict[Any, list[list[Flits]]] = defaultdict(list)
    for link in range(LINKS):
        requester = bench.requester(link)
        for place, flits in bench.send(link, 0, [requester.right() for _ in range(10)]).items():
            leaving[place[:2]].append(flits)
    await quiet(dut, bench.sinks.values())
    for dead in range(LINKS):
        dut.dead.value = 1 << dead
        assert await bench.read("dead") == 1 << dead
        bench.model.dead = {dead}
        for link in range(LINKS):
            requester = bench.requester(link)
            packets = [requester.right() for _ in range(4)]
            for place, flits in bench.send(link, 0, packets).items():
                leaving[place[:2]].append(flits)
        await quiet(dut, bench.sinks.values())
    for place, sink in bench.sinks.items():
        check_mixed(taken(sink), leaving[place])
    bench.check_memory()
    await bench.check_counters()


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def accesses_in_a_row(dut: Any) -> None:
    bench = Bench(dut)
    await bench.start()
    maps = {
        offset + PART_BYTES * index: load_registers(top, MEMORY_NODE_RDL)
        for part, (offset, top) in _TOPS.items()
        for index in range({"": 1, "group": GROUPS, "link": LINKS}[part])
    }
    kept = {base + at: bits for base, each in maps.items() for at, bits in kept_bits(each).items()}
    places = [base + each.offset_bytes for base, of in maps.items() for each in of.registers]
    reads = [place for place in places if place not in kept]
    await bench.lite.in_a_row([*reads, 0xFF8], kept, seed=NODE)


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def registers(dut: Any) -> None:
    """What they tell of the node, and where none are."""
    bench = Bench(dut)
    await bench.start()
    assert (await bench.read("id") & 0xFFFFFFFF).to_bytes(4, "little") == b"MEMN"
    interleave = PARAMETERS["interleave_bytes"]
    assert await bench.read("config") == (LINKS | GROUPS << 8 | CHANNELS << 16 | interleave << 24)
    assert await bench.read("memory") == GROUP_CHANNELS * SIZE
    for index, group in enumerate(bench.model.groups):
        assert await bench.read("base", "group", index) == group.base
        assert await bench.read("size", "group", index) == group.size
        assert await bench.read("owner", "group", index) == group.owner
    beyond = (
        bench.address("owner", "group", GROUPS),
        bench.address("requests", "link", LINKS),
        bench.address("discarded", "link") + 8,
        0x28,
    )
    for address in beyond:
        assert (await bench.lite.read(address))[1] == Response.SLVERR
        assert await bench.lite.write(address, 1) == Response.SLVERR
