"""cocotb test of the DFI port: what goes in comes out of a PHY that knows JESD79-4 alone."""

from __future__ import annotations

import random
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, ReadOnly, RisingEdge

from hw_tests.bench import bench_parameters

NOP, ACT, PRE, PREA, RD, WR, REF = range(7)
CYCLES = 3000
TERMINATION_TCK = 6


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def commands_and_data_come_out_as_they_went_in(dut: Any) -> None:
    parameters = bench_parameters()
    rng = random.Random(cocotb.RANDOM_SEED)
    timing, dfi = parameters["timing"], parameters["dfi"]
    read_cycles = -(-(timing["cl"] + 4) // 4) + parameters["late"]
    write_cycles = timing["cwl"] // 4
    assert dfi == {"tphy_wrlat": 4 * write_cycles, "tphy_wrdata": 0, "trddata_en": 0}

    def signal(side: str, name: str, slot: int | None = None) -> Any:
        return getattr(dut, f"{side}_{name}" + ("" if slot is None else f"_p{slot}"))

    Clock(dut.clk, 5, unit="ns").start()
    dut.rst.value = 1
    for slot in range(4):
        signal("there", "command", slot).value = NOP
    await ClockCycles(dut.clk, 4)
    dut.rst.value = 0
    await RisingEdge(dut.clk)
    writes: set[int] = set()
    reads: set[int] = set()
    lines: dict[int, int] = {}
    seen: set[int] = set()
    for cycle in range(CYCLES):
        given = []
        for slot in range(4):
            # Columns have the first slot, and not every cycle.
            commands = (NOP, ACT, PRE, PREA, REF, *((RD, WR) if slot == 0 else ()))
            command = rng.choice(commands)
            seen.add(command)
            place = [
                rng.getrandbits(len(signal("there", name, slot))) for name in ("bank_group", "bank")
            ]
            address = rng.getrandbits(parameters["row_bits"])
            if command in (RD, WR):
                address = rng.getrandbits(parameters["column_bits"]) & ~7
                (reads if command == RD else writes).add(cycle)
            given.append((command, *place, address))
            for name, value in zip(
                ("command", "bank_group", "bank", "address"), given[-1], strict=True
            ):
                signal("there", name, slot).value = value
        data, mask = rng.getrandbits(512), rng.getrandbits(64)
        dut.there_write_data.value = data
        dut.there_write_mask.value = mask
        lines[cycle] = rng.getrandbits(512)
        dut.back_read_data.value = lines[cycle]
        await ReadOnly()
        for slot, (command, group, bank, address) in enumerate(given):
            assert int(signal("back", "command", slot).value) == command
            if command in (ACT, PRE, RD, WR):
                assert int(signal("back", "bank_group", slot).value) == group
                assert int(signal("back", "bank", slot).value) == bank
            if command in (ACT, RD, WR):
                assert int(signal("back", "address", slot).value) == address
            odt = any(
                0 <= 4 * cycle + slot - 4 * each < TERMINATION_TCK
                for each in (cycle, cycle - 1)
                if each in writes
            )
            assert int(signal("dfi", "odt", slot).value) == odt
            enabled = cycle - write_cycles in writes
            assert int(signal("dfi", "wrdata_en", slot).value) == enabled
            assert int(signal("dfi", "rddata_en", slot).value) == (cycle in reads)
        if cycle - write_cycles in writes:
            assert int(dut.back_write_data.value) == data
            assert int(dut.back_write_mask.value) == mask
        answered = cycle - read_cycles in reads
        assert int(dut.there_read_valid.value) == answered
        if answered:
            assert int(dut.there_read_data.value) == lines[cycle - parameters["late"]]
        await RisingEdge(dut.clk)
    assert seen == {NOP, ACT, PRE, PREA, RD, WR, REF}
    assert dut.bad.value == 0
