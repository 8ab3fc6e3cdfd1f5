"""cocotb tests of the arbiter, with managers and a subordinate of another make."""

from __future__ import annotations

import logging
import random
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, Combine, RisingEdge
from cocotbext.axi import AxiLiteBus, AxiLiteMaster, AxiLiteRam

from hw_tests.bench import bench_parameters
from hw_tests.lite_master import LiteMaster
from hw_tests.stalls import STALLS, pause_channels

MANAGERS = bench_parameters()["managers"]
BYTES = 512
"""That are each manager's own."""


async def begin(
    dut: Any, stalls: str, *, foreign: bool = True
) -> tuple[list[AxiLiteMaster], AxiLiteRam]:
    managers = [
        AxiLiteMaster(AxiLiteBus.from_prefix(dut, f"s_axi_{number}"), dut.clk, dut.rst)
        for number in range(MANAGERS if foreign else 0)
    ]
    memory = AxiLiteRam(AxiLiteBus.from_prefix(dut, "m_axi"), dut.clk, dut.rst, size=4096)
    for each in (*managers, memory):
        for side in (each.write_if, each.read_if):
            side.log.setLevel(logging.WARNING)
    cocotb.start_soon(Clock(dut.clk, 2, unit="ns").start())
    dut.rst.value = 1
    await ClockCycles(dut.clk, 4)
    dut.rst.value = 0
    for number, each in enumerate((*managers, memory)):
        pause_channels(each, STALLS[stalls], number)
    return managers, memory


@cocotb.test(timeout_time=2, timeout_unit="ms")
@cocotb.parametrize(stalls=list(STALLS))
async def all_at_once(dut: Any, stalls: str) -> None:
    """Each manager writes and reads places of its own and finds what it wrote there; of 32 bits or
    64, several under way."""
    managers, memory = await begin(dut, stalls)

    async def use(number: int) -> None:
        rng, manager = random.Random(number), managers[number]
        contents = bytearray(BYTES)
        for _ in range(10):
            size = rng.choice((4, 8, 8, 24))
            place = rng.randrange(0, BYTES - size, 4 if size == 4 else 8)
            data = rng.randbytes(size)
            await manager.write(BYTES * number + place, data)
            contents[place : place + size] = data
            place = rng.randrange(0, BYTES - 8, 8)
            both = [manager.read(BYTES * number + place, 8) for _ in range(3)]
            for each in [cocotb.start_soon(read) for read in both]:
                assert (await each).data == contents[place : place + 8]
        assert memory.read(BYTES * number, BYTES) == contents

    await Combine(*(cocotb.start_soon(use(number)) for number in range(MANAGERS)))


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def accesses_in_a_row(dut: Any) -> None:
    masters = [LiteMaster(dut, f"s_axi_{number}", dut.clk) for number in range(MANAGERS)]
    _, memory = await begin(dut, "random", foreign=False)
    memory.write(0, random.Random(1).randbytes(4096))
    rows = [
        master.in_a_row(
            range(BYTES * number, BYTES * number + 128, 8),
            dict.fromkeys(range(BYTES * number + 128, BYTES * (number + 1), 8), (1 << 64) - 1),
            seed=1,
        )
        for number, master in enumerate(masters)
    ]
    await Combine(*map(cocotb.start_soon, rows))


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def managers_take_turns(dut: Any) -> None:
    """Of managers that always ask none gets ahead of another."""
    managers, _ = await begin(dut, "none")
    order: dict[str, list[int]] = {"aw": [], "ar": []}

    async def watch() -> None:
        while True:
            await RisingEdge(dut.clk)
            for channel, seen in order.items():
                if all(int(getattr(dut, f"m_axi_{channel}{name}").value) for name in HANDSHAKE):
                    seen.append(int(getattr(dut, f"m_axi_{channel}addr").value) // BYTES)

    cocotb.start_soon(watch())
    tasks = []
    for number, manager in enumerate(managers):
        tasks.append(cocotb.start_soon(manager.write(BYTES * number, bytes(160))))
        tasks.append(cocotb.start_soon(manager.read(BYTES * number, 160)))
    await Combine(*tasks)
    for seen in order.values():
        assert len(seen) == 20 * MANAGERS
        for place in range(0, len(seen), MANAGERS):
            assert sorted(seen[place : place + MANAGERS]) == list(range(MANAGERS))


HANDSHAKE = ("valid", "ready")
