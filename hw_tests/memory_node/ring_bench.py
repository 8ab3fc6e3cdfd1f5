"""A stop of a ring under random traffic, and a ring of stops.

The design has the :class:`~hw.memory_node.ring.stop.RingStop` ``stop``, the
:class:`~hw_tests.memory_node.ring_of_stops.RingOfStops` ``ring`` and the
:class:`~hw.memory_node.ring.detour.Detour` ``detour``.
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge

from golden.memory_node.node import MemoryNode, PacketFlit, flits_of
from golden.memory_node.packet import Packet
from hw_tests.bench import bench_parameters
from hw_tests.memory_node.traffic import (
    Flits,
    a_packet,
    check_mixed,
    lines_of,
    quiet,
    taken,
    to_port,
)
from hw_tests.side_by_side import Side
from hw_tests.stalls import STALLS
from hw_tests.streams import StreamSink, StreamSource

STOPS: int = bench_parameters()["stops"]
LINKS: int = bench_parameters()["links"]
NODE = 5
CHANNELS = 4


async def start(dut: Any) -> None:
    cocotb.start_soon(Clock(dut.clk, 2, unit="ns").start())
    dut.rst.value = 1
    for name in ("stop_dead", "stop_date_line", "ring_date_line", "detour_dead"):
        getattr(dut, name).value = 0
    dut.stop_node.value = NODE
    await ClockCycles(dut.clk, 4)
    dut.rst.value = 0


@cocotb.test(timeout_time=2, timeout_unit="ms")
@cocotb.parametrize(stalls=list(STALLS), date_line=[0, 1])
async def passes_and_tells_apart(dut: Any, stalls: str, date_line: int) -> None:
    """All virtual channels of both sides, and answers: nothing is lost, mixed or misplaced."""
    rng = random.Random(f"{stalls} {date_line}")
    await start(dut)
    dut.stop_date_line.value = date_line
    side = Side(dut, "stop")
    pause = STALLS[stalls]
    counts = [0, 0]

    async def count() -> None:
        while True:
            await RisingEdge(dut.clk)
            for each in range(2):
                counts[each] += int(getattr(side, f"passed_{each}").value).bit_count()

    cocotb.start_soon(count())
    node = MemoryNode(node=NODE, links=2, groups=2, group_bytes=0, date_line=bool(date_line))
    leaving: dict[tuple[str, int, int], list[list[Flits]]] = defaultdict(list)
    sinks = {
        ("transmit", each, channel): StreamSink(
            side, f"transmit_{each}_{channel}", dut.clk, pause=pause, seed=1
        )
        for each in range(2)
        for channel in range(CHANNELS)
    } | {
        (name, each, 0): StreamSink(side, f"{name}_{each}", dut.clk, pause=pause, seed=2)
        for name in ("requests", "responses")
        for each in range(2)
    }
    for each in range(2):
        for channel in range(CHANNELS):
            source = StreamSource(side, f"receive_{each}_{channel}", dut.clk, pause=pause)
            own: list[Flits] = []
            through: list[Flits] = []
            place = None
            for _ in range(40):
                destination = NODE if rng.random() < 0.4 else NODE ^ rng.randint(1, 255)
                packet = a_packet(rng, destination)
                source.queue.extend(map(to_port, packet))
                if rng.random() < 0.1:
                    source.queue.append(to_port(PacketFlit(False, True, lines_of(rng, 1))))
                if destination == NODE:
                    own.append(packet)
                else:
                    sent = node.take(each, channel, packet)
                    assert sent is not None
                    place = ("transmit", sent.link, sent.channel)
                    through.append(packet)
            assert place is not None
            leaving[place].append(through)
            leaving["requests" if channel < 2 else "responses", each, 0].append(own)
        source = StreamSource(side, f"answers_{each}", dut.clk, pause=pause)
        answers = [a_packet(rng, rng.randrange(256)) for _ in range(40)]
        for packet in answers:
            source.queue.extend(map(to_port, packet))
        leaving["transmit", each, 2].append(answers)
    await quiet(dut, sinks.values())
    for place, sink in sinks.items():
        check_mixed(taken(sink), leaving[place])
    assert counts == [node.counts["passed", each] for each in range(2)]


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def takes_turns(dut: Any) -> None:
    """With a ring that is full, what passes and answers both get half of the way out."""
    rng = random.Random(1)
    await start(dut)
    side = Side(dut, "stop")
    passing = StreamSource(side, "receive_0_2", dut.clk)
    answers = StreamSource(side, "answers_1", dut.clk)
    sink = StreamSink(side, "transmit_1_2", dut.clk)
    for source, destination in ((passing, NODE + 1), (answers, NODE + 2)):
        for _ in range(30):
            packet = flits_of(
                Packet(
                    destination=destination, source=0, operation=3, lines=3, data=lines_of(rng, 3)
                )
            )
            source.queue.extend(map(to_port, packet))
    await quiet(dut, [sink], cycles=50)
    order = [packet[0].payload[0] for packet in taken(sink)]
    assert order[:40] in ([NODE + 1, NODE + 2] * 20, [NODE + 2, NODE + 1] * 20)
    assert sink.cycles[-1] - sink.cycles[0] == len(sink.taken) - 1, "there were gaps"


@cocotb.test(timeout_time=2, timeout_unit="ms")
@cocotb.parametrize(channel=list(range(CHANNELS)), own=[False, True])
async def ends_what_a_dead_link_began(dut: Any, channel: int, own: bool) -> None:
    """A link dies within a packet: it is ended, and others get through."""
    rng = random.Random(channel)
    await start(dut)
    side = Side(dut, "stop")
    source = StreamSource(side, f"receive_0_{channel}", dut.clk)
    other = StreamSource(side, "answers_1", dut.clk)
    name = f"transmit_1_{channel}"
    if own:
        name = ("requests" if channel < 2 else "responses") + "_0"
    sink = StreamSink(side, name, dut.clk)
    all_sinks = [sink]
    answers = sink
    if own or channel != 2:
        answers = StreamSink(side, "transmit_1_2", dut.clk)
        all_sinks.append(answers)
    packet = flits_of(
        Packet(
            destination=NODE if own else NODE + 1,
            source=0,
            operation=2,
            lines=4,
            data=lines_of(rng, 4),
        )
    )
    source.queue.extend(map(to_port, packet[:3]))
    await ClockCycles(dut.clk, 20)
    answer = a_packet(rng, 9)
    other.queue.extend(map(to_port, answer))
    await ClockCycles(dut.clk, 20)
    side.dead.value = 1
    await quiet(dut, all_sinks, cycles=60)
    end = PacketFlit(False, True, bytes(64))
    found = taken(sink)
    assert found[0] == (*packet[:3], end)
    assert taken(answers)[-1] == answer


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def what_a_dead_link_has_received_comes_whole(dut: Any) -> None:
    rng = random.Random(5)
    await start(dut)
    side = Side(dut, "stop")
    source = StreamSource(side, "receive_0_0", dut.clk)
    sink = StreamSink(side, "transmit_1_0", dut.clk, pause=0.5)
    packet = flits_of(
        Packet(destination=NODE + 1, source=0, operation=2, lines=30, data=lines_of(rng, 30))
    )
    source.queue.extend(map(to_port, packet))
    await ClockCycles(dut.clk, 5)
    side.dead.value = 1
    await quiet(dut, [sink], cycles=60)
    assert taken(sink) == [packet]


def ring_traffic(dut: Any, seed: int) -> tuple[list[StreamSink], dict[Any, list[Flits]]]:
    """Every stop sends on both sides, to the last stop that it reaches there and to others."""
    rng = random.Random(seed)
    side = Side(dut, "ring")
    sent: dict[Any, list[Flits]] = defaultdict(list)
    for stop in range(STOPS):
        for way in range(2):
            source = StreamSource(side, f"answers_{stop}_{way}", dut.clk)
            for index in range(40):
                distance = rng.choice((STOPS - 1, rng.randint(1, STOPS - 1)))
                target = (stop + (distance if way else -distance)) % STOPS
                packet = a_packet(rng, target, source=stop, tag=2 * index + way)
                source.queue.extend(map(to_port, packet))
                # What goes on comes in on the other side.
                sent[target, 1 - way].append(packet)
    sinks = [
        StreamSink(side, f"responses_{stop}_{way}", dut.clk, pause=0.3, seed=seed)
        for stop in range(STOPS)
        for way in range(2)
    ]
    return sinks, sent


@cocotb.test(timeout_time=2, timeout_unit="ms")
@cocotb.parametrize(date_line=list(range(STOPS)), seed=[1, 2])
async def a_ring_goes_on(dut: Any, date_line: int, seed: int) -> None:
    """With a date line anywhere, all arrives, each stop's packets in order."""
    await start(dut)
    dut.ring_date_line.value = 1 << date_line
    sinks, sent = ring_traffic(dut, seed)
    await quiet(dut, sinks)
    for index, sink in enumerate(sinks):
        place = divmod(index, 2)
        by_source: dict[int, list[Flits]] = defaultdict(list)
        for packet in sent[place]:
            by_source[packet[0].payload[1]].append(packet)
        check_mixed(taken(sink), by_source.values())


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def a_ring_without_a_date_line_gets_stuck(dut: Any) -> None:
    """The same traffic fills every stop of a ring where all stay in one virtual channel."""
    await start(dut)
    sinks, sent = ring_traffic(dut, 1)
    await quiet(dut, sinks)
    arrived = sum(each >> 1 & 1 for sink in sinks for each in sink.taken)
    assert arrived < sum(map(len, sent.values()))


@cocotb.test(timeout_time=2, timeout_unit="ms")
@cocotb.parametrize(dead=list(range(1 << LINKS)))
async def answers_take_another_link(dut: Any, dead: int) -> None:
    """Each on its own link, or on the next that lives."""
    rng = random.Random(dead)
    await start(dut)
    side = Side(dut, "detour")
    side.dead.value = dead
    leaving: dict[int, list[list[Flits]]] = defaultdict(list)
    for link in range(LINKS):
        source = StreamSource(side, f"i_{link}", dut.clk, pause=0.3)
        packets = [a_packet(rng, link, tag=tag) for tag in range(20)]
        for packet in packets:
            source.queue.extend(map(to_port, packet))
        ways = [(link + each) % LINKS for each in range(LINKS)]
        leaving[next((each for each in ways if not dead >> each & 1), link)].append(packets)
    sinks = [StreamSink(side, f"o_{link}", dut.clk, pause=0.3) for link in range(LINKS)]
    await quiet(dut, sinks, cycles=100)
    for link, sink in enumerate(sinks):
        check_mixed(taken(sink), leaving[link])


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def a_link_dies_between_answers(dut: Any) -> None:
    """A packet that has begun stays on its link; those behind it do not."""
    rng = random.Random(3)
    await start(dut)
    side = Side(dut, "detour")
    source = StreamSource(side, "i_0", dut.clk)
    sinks = [StreamSink(side, f"o_{link}", dut.clk, pause=0.5) for link in range(LINKS)]
    packets = [
        flits_of(Packet(destination=0, source=0, operation=3, lines=5, data=lines_of(rng, 5)))
        for _ in range(12)
    ]
    for packet in packets:
        source.queue.extend(map(to_port, packet))
    await ClockCycles(dut.clk, 37)
    side.dead.value = 1
    await quiet(dut, sinks, cycles=100)
    before, after = taken(sinks[0]), taken(sinks[1])
    assert before
    assert after
    assert [*before, *after] == packets
