"""Simulation in parts: in two shares as all together."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
from amaranth.hdl import ClockDomain, ClockSignal, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.logic.clock_gate import ClockGate
from hw.sim.assembly import Assembly, PoweredUp, Wire
from sw_driver.simulator.library import load_library
from sw_driver.simulator.parts import parts_library

HARNESS = Path(__file__).with_name("parts_harness.cpp")
CYCLES = 20_000


class Node(wiring.Component):
    """Mixes its input into a state on a gated clock and one on the free-running one."""

    def __init__(self, factor: int) -> None:
        self._factor = factor
        super().__init__({"i": In(16), "go": In(1), "o": Out(16), "run": Out(1), "edges": Out(16)})

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        enable, state, gated = Signal(), Signal(16, init=self._factor), Signal(16)
        m.submodules.gate = gate = ClockGate()
        m.domains.gated = ClockDomain(reset_less=True, local=True)
        m.d.comb += [gate.enable.eq(enable), ClockSignal("gated").eq(gate.gated)]
        m.d.gated += [gated.eq(gated + self.i + 1), self.edges.eq(self.edges + 1)]
        mixed = Signal(32)
        m.d.comb += mixed.eq((state ^ gated ^ self.i) * self._factor)
        m.d.sync += [enable.eq(self.go ^ state[5]), state.eq(mixed[3:19] + mixed)]
        m.d.comb += [self.o.eq(state + gated), self.run.eq(state[3] != state[9])]
        return m


NAMES = ["first", *(f"node_{number}" for number in range(1, 11))]


def ring() -> Assembly:
    """Nodes of two kinds, each with the outputs of two as its inputs."""
    assembly = Assembly(
        components={f"kind_{factor}": PoweredUp(Node(factor)) for factor in (40503, 27)},
        instances={name: f"kind_{(40503, 27)[place % 2]}" for place, name in enumerate(NAMES)},
    )
    for place, name in enumerate(NAMES):
        data, go = (NAMES[(factor * place + 1) % len(NAMES)] for factor in (4, 7))
        go = "first" if place < 4 else go
        assembly.wires += [Wire((data, "o"), (name, "i")), Wire((go, "run"), (name, "go"))]
    return assembly


def build_ring() -> Path:
    return parts_library(
        ring,
        name="ring",
        about="a ring",
        parameters=[Path(__file__).read_text()],
        harness=HARNESS,
        unused=["axdimm", "kernel", "pim", "rules"],
    )


@pytest.fixture(scope="module")
def simulation() -> Any:
    return load_library(build_ring(), HARNESS)


def test_both_ways_to_simulate_are_the_same(simulation: Any) -> None:
    """Every output of every part in every cycle."""
    assert simulation.nm_same(CYCLES) == CYCLES


def test_the_comparison_is_of_something(simulation: Any) -> None:
    """Data do not repeat, and the gated clocks stop about as often as they run."""
    edges = (ctypes.c_uint64 * 2)()
    simulation.nm_edges(CYCLES, edges)
    assert min(edges) > CYCLES / 4
    assert simulation.nm_states(CYCLES) == CYCLES


def test_free_outputs_are_those_without_a_wire() -> None:
    free = ring().free_outputs()
    assert {port for _, port in free} == {"edges", "run"}
    assert [name for name, port in free if port == "edges"] == NAMES
