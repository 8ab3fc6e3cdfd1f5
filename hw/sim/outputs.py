"""Outputs of a component for inputs that stay the same, by Amaranth's simulator."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Value
from amaranth.lib import wiring
from amaranth.sim import Simulator

__all__ = ["outputs"]


def outputs(component: wiring.Component, cycles: int = 0, **inputs: int) -> dict[str, int]:
    """Return all outputs by name once ``inputs`` have been held for clock cycles after a reset.

    Other inputs are 0. The members of an interface have its name and ``_`` before their own. It is
    for a look at one component; a simulated module comes from :mod:`sw_driver.simulator`.
    """
    ports = {
        "_".join(map(str, path)): (member.flow, Value.cast(value))
        for path, member, value in component.signature.flatten(component)
    }
    results: dict[str, int] = {}

    async def bench(context: Any) -> None:
        for name, number in inputs.items():
            context.set(ports[name][1], number)
        if cycles:
            await context.tick().repeat(cycles)
        results.update(
            (name, context.get(value))
            for name, (flow, value) in ports.items()
            if flow is wiring.Out
        )

    simulator = Simulator(component)
    if cycles:
        simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    return results
