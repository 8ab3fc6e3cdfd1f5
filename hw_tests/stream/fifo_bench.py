"""FIFO: order, depth, level, latency, flush."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, FallingEdge, RisingEdge

from hw_tests.bench import bench_parameters
from hw_tests.stalls import STALLS
from hw_tests.streams import StreamSink, StreamSource, value_of

DEPTH: int = bench_parameters()["depth"]
LATENCY = 2


async def reset(dut: Any) -> None:
    dut.rst.value = 1
    dut.flush.value = 0
    cocotb.start_soon(Clock(dut.clk, 2, unit="ns").start())
    await ClockCycles(dut.clk, 2)
    dut.rst.value = 0


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(i_stalls=list(STALLS), o_stalls=list(STALLS))
async def order_and_level(dut: Any, i_stalls: str, o_stalls: str) -> None:
    await reset(dut)
    source = StreamSource(dut, "i", dut.clk, pause=STALLS[i_stalls])
    sink = StreamSink(dut, "o", dut.clk, pause=STALLS[o_stalls])
    data = list(range(1, 201))
    source.queue.extend(data)
    full = False
    while len(sink.taken) < len(data):
        await RisingEdge(dut.clk)
        # The queue of the source holds what is not taken yet; both sides act at the same edge,
        # so within a cycle of each other.
        inside = len(data) - len(source.queue) - len(sink.taken)
        level = value_of(dut.level)
        assert abs(level - inside) <= 1
        assert level <= DEPTH
        full |= level == DEPTH
    assert sink.taken == data
    if i_stalls == "none" and o_stalls == "none":
        assert sink.cycles[-1] - sink.cycles[0] == len(data) - 1
    if i_stalls == "none" and o_stalls == "heavy":
        assert full


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(share=[0.1, 0.5, 0.9])
async def output_of_every_cycle(dut: Any, share: float) -> None:
    """Whatever the sides do, a payload is there as many cycles after its writing as it should."""
    await reset(dut)
    chance = random.Random(f"every cycle {share}")
    inside: deque[tuple[int, int]] = deque()
    written = 0
    for cycle in range(2000):
        # Either side has spells, so that the FIFO is full, empty and in between for a while.
        spell = share if cycle & 64 else 1 - share
        ready, valid = chance.random() < spell, chance.random() < 0.6
        dut.o_ready.value = ready
        dut.i_valid.value = valid
        dut.i_payload.value = written + 1
        await FallingEdge(dut.clk)
        there = bool(inside) and inside[0][1] + LATENCY <= cycle
        assert value_of(dut.level) == len(inside)
        assert bool(dut.i_ready.value) == (len(inside) < DEPTH)
        assert bool(dut.o_valid.value) == there
        if there:
            assert value_of(dut.o_payload) == inside[0][0]
        if valid and len(inside) < DEPTH:
            written += 1
            inside.append((written, cycle))
        if there and ready:
            inside.popleft()
        await RisingEdge(dut.clk)
    assert written > 300


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def fills_to_the_depth_and_flushes(dut: Any) -> None:
    await reset(dut)
    source = StreamSource(dut, "i", dut.clk)
    dut.o_ready.value = 0
    for fill in [*range(1, DEPTH + 1), DEPTH, 2, 1]:
        source.queue.extend(range(fill))
        await ClockCycles(dut.clk, fill + 4)
        assert value_of(dut.level) == fill
        assert value_of(dut.o_valid) == 1
        assert value_of(dut.i_ready) == (fill < DEPTH)
        dut.flush.value = 1
        await RisingEdge(dut.clk)
        dut.flush.value = 0
        await RisingEdge(dut.clk)
        assert value_of(dut.level) == 0
        assert value_of(dut.o_valid) == 0
    sink = StreamSink(dut, "o", dut.clk)
    source.queue.extend([5, 6, 7])
    await ClockCycles(dut.clk, 9)
    assert sink.taken == [5, 6, 7]
