"""A base machine of round numbers, and rows of one system."""

from __future__ import annotations

from hw_tests.driver.system.sentinel.steps import a_machine
from sw_driver.machine import Machine, Memory, assumed
from sw_driver.machine.parts import link
from sw_driver.system.compare.bases import BASES
from sw_driver.system.compare.comparison import Row, compare
from sw_driver.system.compare.system import System
from sw_driver.system.outcome import Outcome
from sw_driver.workload import Trace, load_trace

V100 = BASES["v100"]
_WHY = "a round number"


def a_base(gpu_bytes: int, other_bytes: int = 1 << 30, **gb_per_s: float) -> Machine:
    """Whose GPU reads its memory at 2 bytes a ns, and others at 1, or as it is said of a link."""
    (device,) = a_machine(1).devices
    others = {"pcie": "host", "cxl": "cxl", "node": "memory_node"}
    rates = dict.fromkeys(others, 1.0) | gb_per_s
    return Machine(
        name="round",
        memories=(
            Memory(name="gpu", capacity_bytes=assumed(gpu_bytes, _WHY)),
            *(
                Memory(name=variant, capacity_bytes=assumed(other_bytes, _WHY))
                for variant in others.values()
            ),
        ),
        devices=(
            type(device)(
                name="gpu",
                memory="gpu",
                tflop_per_s=device.tflop_per_s,
                gb_per_s=device.gb_per_s,
                launch_ns=device.launch_ns,
            ),
        ),
        links=tuple(
            link(name, "gpu", other, assumed(rates[name], _WHY), assumed(0, _WHY))
            for name, other in others.items()
        ),
    )


def row(system: System, trace: Trace | str, machine: Machine = V100, **changes: object) -> Row:
    """On a machine with ``changes``, of which the keys have ``__`` for a dot."""
    trace = load_trace(trace) if isinstance(trace, str) else trace
    keys = {key.replace("__", "."): str(value) for key, value in changes.items()}
    (made,) = compare(trace, machine.override(keys), [system], lambda _: None)
    return made


def ran(system: System, trace: Trace | str, machine: Machine = V100, **changes: object) -> Outcome:
    made = row(system, trace, machine, **changes)
    assert made.outcome, made.reason
    return made.outcome


def both_ways(link: str, gb_per_s: float) -> dict[str, str]:
    return {f"{link}.{way}_gb_per_s": str(gb_per_s) for way in ("read", "write")}
