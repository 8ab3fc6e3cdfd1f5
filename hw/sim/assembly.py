"""Designs simulated in parts: instances of a few components, and the wires between them."""

from __future__ import annotations

from typing import Any, NamedTuple

from amaranth.hdl import C, ClockDomain, ClockSignal, DomainRenamer, Module, ResetSignal, Shape
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

__all__ = ["Assembly", "PoweredUp", "Wire"]


class Wire(NamedTuple):
    """Wire from an output port to an input port, each an instance and the port's Verilog name."""

    source: tuple[str, str]
    target: tuple[str, str]


class Assembly:
    """Instances of components that share a clock; cores may run on a multiple of it.

    A simulator has one model of each component and runs it for each instance in turn. That is less
    code than a model of the whole design, which has code for each instance; code that runs again
    and again should fit into the processor's cache. Values move between the instances once a
    cycle, so no output may depend combinationally on an input.
    """

    def __init__(self, components: dict[str, wiring.Component], instances: dict[str, str]) -> None:
        self.components = components
        """Components by the names of their modules."""
        self.instances = instances
        """Name of the module of each instance."""
        self.core_clock_ratios: dict[str, int] = {}
        """Edges of ``core_clk`` in a cycle, by module; only of modules with that input."""
        self.wires: list[Wire] = []

    def connect(self, one: tuple[str, str], other: tuple[str, str]) -> None:
        """Connect an interface of an instance with the same one, flipped, of another.

        An interface is a member of the instance's component, or one of an array, such as
        ``wires_0``. An empty name means all ports that are not yet connected. Raises ``ValueError``
        if the interfaces do not fit.
        """
        here, there = self._ports(*one), self._ports(*other)
        if {path: (width, not out) for path, (width, out) in here.items()} != there:
            raise ValueError(f"{one} with the ports {here} does not fit to {other} with {there}")
        for path, (_, out) in here.items():
            ends = [
                (instance, "_".join((*([name] if name else []), *path)))
                for instance, name in (one, other)
            ]
            self.wires.append(Wire(*(ends if out else reversed(ends))))

    def free_outputs(self) -> list[tuple[str, str]]:
        """Return the outputs that are connected to nothing."""
        return [
            (instance, "_".join(path))
            for instance in self.instances
            for path, (_, out) in self._ports(instance, "").items()
            if out
        ]

    def _ports(self, instance: str, name: str) -> dict[tuple[str, ...], tuple[int, bool]]:
        """Return the width of each port of an interface, and whether it is an output."""
        component = self.components[self.instances[instance]]
        connected = {end for wire in self.wires for end in wire}
        ports: dict[tuple[str, ...], tuple[int, bool]] = {}
        for path, member, value in component.signature.flatten(component):
            parts = tuple(map(str, path))
            if not name and (instance, "_".join(parts)) in connected:
                continue
            for depth in range(len(parts) + 1):
                if "_".join(parts[:depth]) == name:
                    width = Shape.cast(value.shape()).width
                    ports[parts[depth:]] = width, member.flow is Out
        return ports


class PoweredUp(wiring.Component):
    """``component`` as a part to be simulated: after power-up, inputs taken at the falling edge.

    There is no reset: all registers begin with their values after one. Verilator evaluates logic
    behind an input at both edges of the clock. The generated Verilog has the reset in the logic of
    every register's next value, so it would be evaluated twice a cycle. The same holds for logic
    behind the other inputs, which therefore come from registers. ``core_clk`` needs none.
    """

    def __init__(self, component: wiring.Component) -> None:
        self._component = component
        super().__init__(component.signature)

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        m.domains.powered = ClockDomain(local=True)
        m.domains.falling = ClockDomain(local=True, clk_edge="neg", reset_less=True)
        m.d.comb += [
            ClockSignal("powered").eq(ClockSignal("sync")),
            ClockSignal("falling").eq(ClockSignal("sync")),
            ResetSignal("powered").eq(C(0)),
        ]
        m.submodules.component = DomainRenamer("powered")(self._component)
        inner = self._component.signature.flatten(self._component)
        outer = self.signature.flatten(self)
        for (path, member, inside), (_, _, outside) in zip(inner, outer, strict=True):
            if member.flow is Out:
                m.d.comb += outside.eq(inside)
            elif path == ("core_clk",):
                m.d.comb += inside.eq(outside)
            else:
                m.d.falling += inside.eq(outside)
        return m
