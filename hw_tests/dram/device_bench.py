"""cocotb tests of the device: each rule at its edge, data and masks in every slot.

The design holds one device for each timing of the parameters, and then one with the first timing
but without tCCD. All get the same commands; a test looks at one of them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, FallingEdge

from hw.dram.device import Violation
from hw.dram.interface import DramCommand
from hw.dram.timing import DramTiming
from hw_tests.bench import bench_parameters
from hw_tests.dram.probes import Command, probes

SLOTS = 4
POISON = int.from_bytes(bytes.fromhex("7adaadde") * 16, "little")
TIMINGS = [DramTiming(**values) for values in bench_parameters()["timings"]]


class Player:
    """Drives commands on the four slots and looks at device ``index``."""

    def __init__(self, dut: Any, index: int) -> None:
        self.dut = dut
        self._index = index

    def output(self, name: str) -> int:
        return int(getattr(self.dut, f"{name}_{self._index}").value)

    async def reset(self) -> None:
        dut = self.dut
        for slot in range(SLOTS):
            self._port("command", slot).value = 0
        dut.dram_write_mask.value = 0
        dut.dram_write_data.value = 0
        dut.rst.value = 1
        await ClockCycles(dut.clk, 2)
        await FallingEdge(dut.clk)
        dut.rst.value = 0

    def _port(self, name: str, slot: int) -> Any:
        return getattr(self.dut, f"dram_{name}_p{slot}")

    async def issue(self, command: Command, slot: int) -> None:
        """Gives one command in this cycle, whatever its time."""
        self._set(command, slot)
        await FallingEdge(self.dut.clk)
        self._port("command", slot).value = 0

    def _set(self, command: Command, slot: int) -> None:
        self._port("command", slot).value = int(DramCommand[command.name].value)
        self._port("bank_group", slot).value = command.bank_group
        self._port("bank", slot).value = command.bank
        self._port("address", slot).value = command.address

    async def play(self, commands: Sequence[Command]) -> None:
        """Gives the commands, whose time counts from the reset, and waits for the last."""
        cycle = 0
        pending = sorted(commands, key=lambda command: command.tck)
        while pending:
            wait = pending[0].tck // SLOTS - cycle
            if wait:
                await ClockCycles(self.dut.clk, wait)
                await FallingEdge(self.dut.clk)
                cycle += wait
            used = []
            while pending and pending[0].tck // SLOTS == cycle:
                command = pending.pop(0)
                used.append(command.tck % SLOTS)
                self._set(command, used[-1])
            await FallingEdge(self.dut.clk)
            for slot in used:
                self._port("command", slot).value = 0
            cycle += 1
        await FallingEdge(self.dut.clk)


def _start(dut: Any) -> None:
    cocotb.start_soon(Clock(dut.clk, 5, unit="ns").start())


@cocotb.test(timeout_time=100, timeout_unit="ms")
@cocotb.parametrize(index=range(len(TIMINGS)))
async def every_rule_at_its_edge(dut: Any, index: int) -> None:
    _start(dut)
    player = Player(dut, index)
    checked = 0
    for probe in probes(TIMINGS[index]):
        for commands, accepted in probe.variants():
            await player.reset()
            await player.play(commands)
            refused = player.output("violation") == 1
            assert refused != accepted, f"{probe.name}: {commands}"
            checked += 1
            if refused:
                code = Violation(player.output("violation_code"))
                assert code is probe.code, f"{probe.name}: refused for {code!r}"
                # A refresh is noticed to be overdue before the command that comes too late.
                tck = player.output("violation_tck")
                late = code is Violation.T_REFI and tck < commands[-1].tck
                assert late or tck == commands[-1].tck, f"{probe.name}: at {tck}"
    dut._log.info("%d sequences checked", checked)
    assert checked > 50


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def bursts_may_not_overlap_on_the_bus(dut: Any) -> None:
    _start(dut)
    player = Player(dut, len(TIMINGS))
    for name in ("RD", "WR"):
        for distance in (3, 4):
            await player.reset()
            await player.play(
                [
                    Command(20, "ACT", 0, 0, 1),
                    Command(60, name, 0, 0, 8),
                    Command(60 + distance, name, 0, 0, 16),
                ]
            )
            assert player.output("violation") == (distance == 3)
            if distance == 3:
                assert player.output("violation_code") == Violation.BUS_OVERLAP


@cocotb.test(timeout_time=10, timeout_unit="ms")
async def overdue_refresh_is_noticed_without_commands(dut: Any) -> None:
    _start(dut)
    player = Player(dut, 0)
    await player.reset()
    await ClockCycles(dut.clk, 9 * TIMINGS[0].t_refi // SLOTS - 1)
    assert not player.output("violation")
    await ClockCycles(dut.clk, 4)
    assert player.output("violation")
    assert player.output("violation_tck") == 9 * TIMINGS[0].t_refi


@cocotb.test(timeout_time=10, timeout_unit="ms")
@cocotb.parametrize(index=range(len(TIMINGS)))
async def data_and_masks_in_every_slot(dut: Any, index: int) -> None:
    """Data are taken and shown in exactly one cycle, the one that the interface promises."""
    _start(dut)
    timing = TIMINGS[index]
    rng = random.Random(5)
    player = Player(dut, index)
    for slot in range(SLOTS):
        await player.reset()
        await player.issue(Command(0, "ACT", slot, 2, 3), slot)
        await ClockCycles(dut.clk, 20)
        await FallingEdge(dut.clk)
        column = 16 * (slot + 1)
        first, second, mask = rng.randbytes(64), rng.randbytes(64), rng.getrandbits(64)
        for data, written_mask in ((first, 0), (second, mask)):
            dut.dram_write_data.value = rng.getrandbits(512)
            await player.issue(Command(0, "WR", slot, 2, column), slot)
            for _ in range((slot + timing.cwl) // SLOTS - 1):
                await FallingEdge(dut.clk)
            dut.dram_write_data.value = int.from_bytes(data, "little")
            dut.dram_write_mask.value = written_mask
            await FallingEdge(dut.clk)
            dut.dram_write_data.value = rng.getrandbits(512)
            dut.dram_write_mask.value = 0
            await ClockCycles(dut.clk, 20)
            await FallingEdge(dut.clk)
        expected = bytes(first[i] if mask >> i & 1 else second[i] for i in range(64))

        await player.issue(Command(0, "RD", slot, 2, column), slot)
        for _ in range(-(-(slot + timing.cl + 4) // SLOTS) - 1):
            assert player.output("read_data") == POISON
            await FallingEdge(dut.clk)
        assert player.output("read_data").to_bytes(64, "little") == expected
        await FallingEdge(dut.clk)
        assert player.output("read_data") == POISON
        assert not player.output("violation")
