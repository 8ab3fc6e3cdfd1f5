"""The group engine on AXI4 memories, beside the golden model: every packet and every byte.

The engines are side by side in one design, each under the name of its configuration. Parameters:
``groups`` (by these names ``links``, ``channels``, ``interleave_bytes``, ``channel_bytes`` and
``id_width``).
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge

from golden.memory_node.node import (
    Group,
    PacketFlit,
    channel_of,
    flits_of,
    packet_of,
    packets_in,
)
from golden.memory_node.packet import LINE_BYTES, Operation, Packet, Status
from hw.memory_node.group.layouts import Allocation, Events
from hw_tests.axi_memory import CHANNEL_STALLS, HABITS, AxiMemory, foreign_memory
from hw_tests.bench import bench_parameters
from hw_tests.memory_node.traffic import Requester, from_port, lines_of, to_port
from hw_tests.side_by_side import Side
from hw_tests.stalls import STALLS
from hw_tests.streams import StreamSink, StreamSource, pack, unpack, value_of

GROUPS: dict[str, dict[str, int]] = bench_parameters()["groups"]
NODE = 7
OWNER = 3


class Bench:
    """An engine with memories, and its golden model."""

    def __init__(
        self,
        dut: Any,
        name: str,
        *,
        stalls: str = "none",
        habit: str = HABITS[0],
        link_stalls: str = "none",
        failing: int = 0,
    ) -> None:
        self.dut = Side(dut, name)
        self.rng = random.Random(f"{name} {stalls} {habit} {link_stalls}")
        self.shape = shape = GROUPS[name]
        channels, size = shape["channels"], shape["channel_bytes"]
        self.group = Group(bytearray(self.rng.randbytes(channels * size)), owner=OWNER)
        self.memories = [np.zeros(size, np.uint8) for _ in range(channels)]
        self._copy_to(self.memories)
        failing_of: list[set[int]] = [set() for _ in range(channels)]
        for _ in range(failing):
            line = self.rng.randrange(0, channels * size, LINE_BYTES)
            self.group.failing.add(line)
            channel, place = self.place(line)
            failing_of[channel].add(place)
        self.axi: list[Any] = []
        for index, memory in enumerate(self.memories):
            options: dict[str, Any] = {
                "stalls": CHANNEL_STALLS[stalls],
                "reset": dut.rst,
                "seed": index,
            }
            port = (self.dut, f"memory_{index}", dut.clk, memory)
            if habit == "foreign":
                named: Any = (dut, f"{name}_memory_{index}", dut.clk, memory)
                self.axi.append(foreign_memory(*named, **options))
            else:
                self.axi.append(
                    AxiMemory(
                        *port,
                        habit=habit,
                        ids=shape["links"],
                        failing=failing_of[index],
                        **options,
                    )
                )
        pause = STALLS[link_stalls]
        self.sources = [
            StreamSource(self.dut, f"requests_{link}", dut.clk, pause=pause)
            for link in range(shape["links"])
        ]
        self.sinks = [
            StreamSink(self.dut, f"answers_{link}", dut.clk, pause=pause)
            for link in range(shape["links"])
        ]
        self.events: list[Counter[str]] = [Counter() for _ in self.sinks]

    def place(self, address: int) -> tuple[int, int]:
        return channel_of(
            address,
            channels=self.shape["channels"],
            interleave_bytes=self.shape["interleave_bytes"],
        )

    def _copy_to(self, memories: list[Any]) -> None:
        whole = np.frombuffer(self.group.memory, np.uint8)
        for line in range(0, len(whole), LINE_BYTES):
            channel, at = self.place(line)
            memories[channel][at : at + LINE_BYTES] = whole[line : line + LINE_BYTES]

    async def reset(self, *, base: int, size: int) -> None:
        dut = self.dut
        cocotb.start_soon(Clock(dut.clk, 2, unit="ns").start())
        dut.rst.value = 1
        dut.node.value = NODE
        self.group.base, self.group.size = base, size
        dut.allocation.value = pack(
            Allocation, base=base // LINE_BYTES, size=size // LINE_BYTES, owner=OWNER
        )
        await ClockCycles(dut.clk, 4)
        dut.rst.value = 0
        cocotb.start_soon(self._watch())

    async def _watch(self) -> None:
        edge = RisingEdge(self.dut.clk)
        ports = [getattr(self.dut, f"events_{link}") for link in range(len(self.sinks))]
        while True:
            await edge
            for port, counts in zip(ports, self.events, strict=True):
                value = value_of(port)
                if not value:
                    continue
                fields = unpack(Events, value)
                refused = fields.pop("refused")
                counts.update({name: count for name, count in fields.items() if count})
                counts.update(each.name for each in Status if refused >> each & 1)

    async def answers(self, counts: list[int], *, cycles: int = 60_000) -> None:
        """Waits for so many answers on each link, and that nothing else comes."""
        edge = RisingEdge(self.dut.clk)
        for _ in range(cycles):
            tails = [sum(flit >> 1 & 1 for flit in sink.taken) for sink in self.sinks]
            if all(have >= want for have, want in zip(tails, counts, strict=True)):
                break
            for _ in range(20):
                await edge
        else:
            raise AssertionError(f"answers {tails} of {counts} on the links")
        await ClockCycles(self.dut.clk, 200)

    def check(self, sent: list[list[PacketFlit]]) -> None:
        """What came back and what is in the memories is what the golden model says."""
        for link, (flits, sink) in enumerate(zip(sent, self.sinks, strict=True)):
            counts: Counter[str] = Counter()
            self.group.counts = counts
            expected = [
                answer for packet in packets_in(flits) for answer in self.group.answer(NODE, packet)
            ]
            found = [from_port(payload) for payload in sink.taken]
            for index, (want, have) in enumerate(zip(expected, found, strict=False)):
                assert have == want, f"flit {index} of link {link}"
            assert len(found) == len(expected), f"link {link}"
            seen = self.events[link]
            assert seen["request"] == counts["requests"]
            assert seen["line_read"] == counts["lines_read"]
            assert seen["line_written"] == counts["lines_written"]
            for status in Status:
                assert seen[status.name] == counts[f"refused_{status.name}"], status
        memories = [np.zeros_like(each) for each in self.memories]
        self._copy_to(memories)
        for channel, (want, have) in enumerate(zip(memories, self.memories, strict=True)):
            different = np.flatnonzero(want != have)
            assert not different.size, f"channel {channel} at {different[:8]}"

    def requesters(self) -> list[Requester]:
        """One for each link, with lines of its own."""
        size, links = self.group.size, self.shape["links"]
        share = size // LINE_BYTES // links
        return [
            Requester(
                rng=self.rng,
                node=NODE,
                owner=OWNER,
                first=link * share,
                end=(link + 1) * share,
                size=size,
            )
            for link in range(links)
        ]

    async def run(self, *, packets: int, wrong: float) -> None:
        """Sends ``packets`` on each link, ``wrong`` of them with a fault, and checks all."""
        sent: list[list[PacketFlit]] = []
        for requester, source in zip(self.requesters(), self.sources, strict=True):
            flits: list[PacketFlit] = []
            for _ in range(packets):
                spoilt = self.rng.random() < wrong
                if spoilt:
                    flits += requester.strays()
                flits += requester.wrong() if spoilt else requester.right()
            source.queue.extend(map(to_port, flits))
            sent.append(flits)
        await self.answers([packets] * len(sent))
        self.check(sent)


CASES = [
    *((name, stalls, habit) for name in GROUPS for stalls, habit in (("none", "eager"),)),
    *(("odd", stalls, habit) for habit in HABITS for stalls in ("none", "random", "heavy")),
    *(("odd", stalls, "foreign") for stalls in ("none", "random")),
    *((name, "random", "on_valid") for name in GROUPS),
]


@cocotb.test(timeout_time=5, timeout_unit="ms")
@cocotb.parametrize((("name", "stalls", "habit"), list(dict.fromkeys(CASES))))
async def random_requests(dut: Any, name: str, stalls: str, habit: str) -> None:
    """Right and wrong requests over few pages, so that reads and writes meet."""
    bench = Bench(dut, name, stalls=stalls, habit=habit, link_stalls=stalls)
    whole = len(bench.group.memory)
    pages = 3 * bench.shape["links"]
    base = LINE_BYTES * bench.rng.randrange(100)
    await bench.reset(base=base, size=min(whole - base, 4096 * pages))
    await bench.run(packets=25 if stalls == "heavy" else 60, wrong=0.25)
    refused = [sum(each[status.name] for each in bench.events) for status in Status]
    assert stalls == "heavy" or all(refused[1:5]), f"not every refusal was seen: {refused}"


@cocotb.test(timeout_time=5, timeout_unit="ms")
@cocotb.parametrize(name=list(GROUPS))
async def up_to_the_end_of_the_memory(dut: Any, name: str) -> None:
    """An allocation of the last pages."""
    bench = Bench(dut, name)
    whole = len(bench.group.memory)
    size = 4096 * 3 * bench.shape["links"]
    await bench.reset(base=whole - size, size=size)
    await bench.run(packets=40, wrong=0.2)


@cocotb.test(timeout_time=5, timeout_unit="ms")
@cocotb.parametrize(name=list(GROUPS))
async def beyond_the_end_of_the_memory(dut: Any, name: str) -> None:
    """Nothing of an allocation that is not all there is valid."""
    bench = Bench(dut, name)
    whole = len(bench.group.memory)
    size = 4096 * 3 * bench.shape["links"]
    await bench.reset(base=whole - size + LINE_BYTES, size=size)
    await bench.run(packets=20, wrong=0.0)
    assert all(each["BOUNDS"] == 20 for each in bench.events)


@cocotb.test(timeout_time=5, timeout_unit="ms")
@cocotb.parametrize(name=list(GROUPS), stalls=["none", "random"])
async def errors_of_memory(dut: Any, name: str, stalls: str) -> None:
    """Lines for which memory answers with an error, to reads and to writes."""
    bench = Bench(dut, name, stalls=stalls, failing=40)
    await bench.reset(base=0, size=len(bench.group.memory))
    await bench.run(packets=50, wrong=0.0)
    assert any(each["MEMORY"] for each in bench.events)


@cocotb.test(timeout_time=5, timeout_unit="ms")
@cocotb.parametrize(name=list(GROUPS))
async def asks_for_no_more_than_it_holds(dut: Any, name: str) -> None:
    """Whole reads, whose answers nobody takes for a while: no line is lost."""
    bench = Bench(dut, name)
    await bench.reset(base=0, size=len(bench.group.memory))
    sent: list[list[PacketFlit]] = []
    for source, sink in zip(bench.sources, bench.sinks, strict=True):
        sink.pause = 1.0
        packet = Packet(destination=NODE, source=OWNER, operation=Operation.READ, lines=64)
        flits = [
            flit for page in range(20) for flit in flits_of(replace(packet, address=4096 * page))
        ]
        source.queue.extend(map(to_port, flits))
        sent.append(flits)
    await ClockCycles(dut.clk, 1000)
    for sink in bench.sinks:
        sink.pause = 0.0
    await bench.answers([20] * len(sent))
    bench.check(sent)


@cocotb.test(timeout_time=5, timeout_unit="ms")
@cocotb.parametrize(habit=HABITS)
async def what_is_done_can_be_read(dut: Any, habit: str) -> None:
    """A read on another link, asked for as soon as a write is answered."""
    bench = Bench(dut, "odd", stalls="heavy", habit=habit)
    await bench.reset(base=0, size=len(bench.group.memory))
    edge = RisingEdge(dut.clk)
    for index in range(12):
        write = Packet(
            destination=NODE,
            source=OWNER,
            operation=Operation.WRITE,
            lines=(1, 9, 24)[index % 3],
            address=LINE_BYTES * bench.rng.randrange(1000),
            data=lines_of(bench.rng, (1, 9, 24)[index % 3]),
        )
        read = replace(write, operation=Operation.READ, data=b"")
        for source, sink, packet in zip(bench.sources, bench.sinks, (write, read), strict=True):
            source.queue.extend(map(to_port, flits_of(packet)))
            sink.taken.clear()
            while not (sink.taken and sink.taken[-1] >> 1 & 1):
                await edge
        found = packet_of([from_port(each) for each in bench.sinks[1].taken])
        assert found.data == write.data, f"write {index}"


@cocotb.test(timeout_time=5, timeout_unit="ms")
@cocotb.parametrize(name=list(GROUPS), kind=["reads", "writes", "both"])
async def keeps_links_and_memory_busy(dut: Any, name: str, kind: str) -> None:
    """Packets of 4 KB one after the other on all links: a flit a cycle on the busiest wire."""
    bench = Bench(dut, name)
    links, channels = bench.shape["links"], bench.shape["channels"]
    size = len(bench.group.memory)
    await bench.reset(base=0, size=size)
    share = size // links // 4096
    packets = 24 if kind != "both" else 48
    order = {
        "reads": [Operation.READ] * packets,
        "writes": [Operation.WRITE] * packets,
        "both": [Operation.READ, Operation.WRITE] * (packets // 2),
    }[kind]
    sent: list[list[PacketFlit]] = []
    for link, source in enumerate(bench.sources):
        flits: list[PacketFlit] = []
        for index, operation in enumerate(order):
            packet = Packet(
                destination=NODE,
                source=OWNER,
                operation=operation,
                tag=index,
                lines=64,
                address=4096 * (link * share + index % share),
                data=lines_of(bench.rng, 64) if operation == Operation.WRITE else b"",
            )
            flits += flits_of(packet)
        source.queue.extend(map(to_port, flits))
        sent.append(flits)
    start = bench.axi[0].cycle
    await bench.answers([len(order)] * links)
    bench.check(sent)
    # The middle half of the answers: what fills and empties does not count.
    ends = [
        [cycle for flit, cycle in zip(sink.taken, sink.cycles, strict=True) if flit >> 1 & 1]
        for sink in bench.sinks
    ]
    quarter = len(order) // 4
    cycles = max(each[3 * quarter] - each[quarter] for each in ends)
    reads, writes = order.count(Operation.READ), order.count(Operation.WRITE)
    per_link = max(65 * reads + writes, 65 * writes + reads)
    # A channel reads and writes a line a cycle each, in these memories.
    per_channel = max(reads, writes) * links * 64 / channels
    bound = max(per_link, per_channel) * 2 * quarter / len(order)
    first = bench.sinks[0].cycles[0] - start
    whole = ends[0][0] - start
    print(f"{name} {kind}: {cycles} cycles, {bound / cycles:.1%} of what links and memory allow")
    print(f"{name} {kind}: first flit after {first}, first packet after {whole}")
    assert bound / cycles > 0.95
