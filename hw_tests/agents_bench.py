"""Managers and sources that break a rule: the AXI memory and the stream's sink fail the test.

Each of these tests ends at the first edge at which its fault can be seen. And the memory's habits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cocotb
import numpy as np
import pytest
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge

from hw_tests.axi_memory import HABITS, AxiMemory
from hw_tests.streams import StreamSink, StreamSource, value_of

MEMORY_BYTES = 8192
BURST = {"valid": 1, "id": 1, "addr": 64, "len": 1, "size": 3, "burst": 1}
WRONG = {
    "has ID 2": {"id": 2},
    "is of type 2": {"burst": 2},
    "has size 2": {"size": 2},
    "is not aligned": {"addr": 68},
    "crosses 4 KB": {"addr": 4088},
    "leaves the memory of 8192 bytes": {"addr": 8192},
}


def on(channel: str, **values: int) -> dict[str, int]:
    return {f"m_axi_{channel}{name}": value for name, value in values.items()}


def data(**values: int) -> dict[str, int]:
    """Write data behind an address that is taken, or waits."""
    return on("aw", valid=0) | on("w", valid=1, **values)


FAULTS: list[tuple[str, Sequence[dict[str, int]], bool]] = [
    *(
        (f"{channel} burst of 2 beats at 0x[0-9a-f]+ {what}$", [on(channel, **BURST | wrong)], True)
        for channel in ("ar", "aw")
        for what, wrong in WRONG.items()
    ),
    *(
        (
            f"{channel} changed while it waited: .*, 0x1, 0x3, 0x1. to .*, 0x0, 0x3, 0x1.$",
            [on(channel, **BURST), on(channel, len=0)],
            True,
        )
        for channel in ("ar", "aw")
    ),
    *(
        (f"{channel} was withdrawn", [on(channel, **BURST), on(channel, valid=0)], True)
        for channel in ("ar", "aw")
    ),
    ("w changed while", [on("aw", **BURST) | on("w", valid=1), on("w", data=1)], True),
    ("w was withdrawn", [on("aw", **BURST) | on("w", valid=1), on("w", valid=0)], True),
    ("write data before its address", [on("w", valid=1)], False),
    ("WLAST is 1 at beat 1", [on("aw", **BURST), data(last=1)], False),
    ("WLAST is 0 at beat 2", [on("aw", **BURST), data(last=0), data(last=0)], False),
    ("i changed while it waited: .0x0. to .0x1.", [{"i_valid": 1}, {"i_payload": 1}], True),
    ("i was withdrawn", [{"i_valid": 1}, {"i_valid": 0}], True),
]
"""Messages, what makes the memory or the sink say them, and whether they let it wait."""


async def start(dut: Any, *, waits: bool = False, **options: Any) -> AxiMemory:
    Clock(dut.clk, 2, unit="ns").start()
    for name in ("arvalid", "awvalid", "wvalid", "wdata", "wlast"):
        getattr(dut, f"m_axi_{name}").value = 0
    dut.i_valid.value = dut.i_payload.value = 0
    stalls = dict.fromkeys(("ar", "aw", "w"), float(waits))
    contents = np.zeros(MEMORY_BYTES, np.uint8)
    memory = AxiMemory(dut, "m_axi", dut.clk, contents, stalls=stalls, ids=2, **options)
    StreamSink(dut, "i", dut.clk, pause=float(waits))
    await ClockCycles(dut.clk, 2)
    return memory


async def follow(dut: Any, cycles: Sequence[dict[str, int]]) -> None:
    for values in cycles:
        for name, value in values.items():
            getattr(dut, name).value = value
        await RisingEdge(dut.clk)


def fault(message: str, cycles: Sequence[dict[str, int]], waits: bool) -> Any:
    async def noticed(dut: Any) -> None:
        await start(dut, waits=waits)
        await follow(dut, cycles)

    error = pytest.RaisesExc(AssertionError, match=message)
    return cocotb.test(name=f"notices: {message}", expect_error=(error,))(noticed)


for number, (message, cycles, waits) in enumerate(FAULTS):
    globals()[f"fault_{number}"] = fault(message, cycles, waits)


@cocotb.test(expect_error=(pytest.RaisesExc(ZeroDivisionError),))
async def errors_of_functions_fail_the_test(dut: Any) -> None:
    await start(dut, read_error=lambda index: 1 // index)
    await follow(dut, [on("ar", **BURST), on("ar", valid=0)])


@cocotb.test(expect_error=(pytest.RaisesExc(OverflowError, match="0x100 for agents.o_payload"),))
async def payloads_have_to_fit(dut: Any) -> None:
    await start(dut)
    StreamSource(dut, "o", dut.clk).queue.extend([255, 256])
    dut.o_ready.value = 1
    await ClockCycles(dut.clk, 3)


@cocotb.test()
@cocotb.parametrize(habit=HABITS)
async def habits(dut: Any, habit: str) -> None:
    """When the memory takes an address and the two beats that come behind it, and answers."""
    memory = await start(dut, habit=habit)
    eager, begin = value_of(dut.m_axi_awready), memory.cycle
    await follow(dut, [on("aw", **BURST) | on("w", strb=255, data=3) | on("b", ready=1)])
    taken: dict[str, list[int]] = {"aw": [], "w": [], "b": []}
    while not taken["b"]:
        for channel, cycles in taken.items():
            ports = (getattr(dut, f"m_axi_{channel}{name}") for name in ("valid", "ready"))
            if all(map(value_of, ports)):
                cycles.append(memory.cycle)
        data_due = memory.cycle > begin + 2 and len(taken["w"]) < 2
        values = on("aw", valid=int(not taken["aw"])) | on("w", valid=int(data_due))
        await follow(dut, [values | (on("w", last=1, data=4) if taken["w"] else {})])
    (address,), (first, last), (answer,) = taken.values()
    assert {
        "eager": eager and address < first,
        "on_valid": not eager,
        "together": address == first,
        "data_first": address > last,
        "late": address < first and answer > last + 150,
    }[habit]
    assert memory.memory.view(np.uint64)[8:10].tolist() == [3, 4]
    assert memory.quiet
    assert memory.answers == 1
