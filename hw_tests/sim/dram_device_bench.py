"""cocotb tests of a DRAM device: each rule at its edge, data and masks in every slot.

The design holds, as ``device_0`` and so on, one device for each timing of the parameters, then two
with the first timing: one without tCCD and one with half the rows. The parameter ``kind`` is
``ddr4`` or ``vault``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, FallingEdge

from hw.dram.interface import SLOTS, DramCommand
from hw.dram.timing import CommandTiming, DramTiming
from hw.pim.vault.interface import VaultCommand
from hw.pim.vault.timing import VaultTiming
from hw.sim.dram_device import Violation
from hw_tests.bench import bench_parameters
from hw_tests.dram.probes import Command, Probe, act, probes
from hw_tests.pim.vault.vault_probes import vault_probes
from hw_tests.side_by_side import Side


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What the devices have of their own."""

    commands: type[Enum]
    timing: type[CommandTiming]
    probes: Callable[[Any], Iterator[Probe]]
    group: str
    closing_read: str
    data_bytes: int
    columns: Sequence[int]
    """One for each slot."""
    refreshes: int
    """How many tREFI may pass without one."""


KIND = {
    "ddr4": Kind(
        commands=DramCommand,
        timing=DramTiming,
        probes=probes,
        group="bank_group",
        closing_read="RD",
        data_bytes=64,
        columns=range(16, 80, 16),
        refreshes=9,
    ),
    "vault": Kind(
        commands=VaultCommand,
        timing=VaultTiming,
        probes=vault_probes,
        group="layer",
        closing_read="RDA",
        data_bytes=32,
        columns=range(3, 7),
        refreshes=1,
    ),
}[bench_parameters()["kind"]]
POISON = int.from_bytes(bytes.fromhex("7adaadde") * (KIND.data_bytes // 4), "little")
TIMINGS = [KIND.timing(**values) for values in bench_parameters()["timings"]]
WITHOUT_CCD = len(TIMINGS)
HALF_THE_ROWS = len(TIMINGS) + 1


class Player:
    """Drives commands on the four slots of device ``index``."""

    def __init__(self, dut: Any, index: int) -> None:
        cocotb.start_soon(Clock(dut.clk, 5, unit="ns").start())
        self.dut = Side(dut, f"device_{index}")

    def output(self, name: str) -> int:
        return int(getattr(self.dut, name).value)

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
        self._port("command", slot).value = int(KIND.commands[command.name].value)
        self._port(KIND.group, slot).value = command.group
        self._port("bank", slot).value = command.bank
        self._port("address", slot).value = command.address

    async def play(self, *commands: Command) -> None:
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


@cocotb.test(timeout_time=100, timeout_unit="ms")
@cocotb.parametrize(index=range(len(TIMINGS)))
async def every_rule_at_its_edge(dut: Any, index: int) -> None:
    player = Player(dut, index)
    checked = 0
    for probe in KIND.probes(TIMINGS[index]):
        for commands, accepted in probe.variants():
            await player.reset()
            await player.play(*commands)
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
    player = Player(dut, WITHOUT_CCD)
    for name in (each.name for each in KIND.commands if each.name[:2] in ("RD", "WR")):
        for distance in (3, 4):
            await player.reset()
            opened = (act(20), act(60, 1))
            await player.play(*opened, Command(100, name), Command(100 + distance, name, 1))
            assert player.output("violation") == (distance == 3)
            if distance == 3:
                assert player.output("violation_code") == Violation.BUS_OVERLAP


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def rows_and_commands_that_do_not_exist(dut: Any) -> None:
    player = Player(dut, HALF_THE_ROWS)
    rows = bench_parameters()["rows"] // 2
    for row in (rows - 1, rows):
        await player.reset()
        await player.play(Command(20, "ACT", 1, 1, row))
        assert player.output("violation") == (row == rows)
    assert player.output("violation_code") == Violation.ROW_RANGE
    await player.reset()
    player.dut.dram_command_p2.value = 7
    await ClockCycles(dut.clk, 2)
    player.dut.dram_command_p2.value = 0
    await FallingEdge(dut.clk)
    assert player.output("violation_code") == Violation.ENCODING


@cocotb.test(timeout_time=10, timeout_unit="ms")
async def overdue_refresh_is_noticed_without_commands(dut: Any) -> None:
    player = Player(dut, 0)
    await player.reset()
    limit = KIND.refreshes * TIMINGS[0].t_refi
    await ClockCycles(dut.clk, limit // SLOTS - 1)
    assert not player.output("violation")
    await ClockCycles(dut.clk, 4)
    assert player.output("violation")
    assert player.output("violation_tck") == limit


@cocotb.test(timeout_time=10, timeout_unit="ms")
@cocotb.parametrize(index=range(len(TIMINGS)))
async def data_and_masks_in_every_slot(dut: Any, index: int) -> None:
    """Data are taken and shown in exactly one cycle, the one that the interface promises."""
    timing = TIMINGS[index]
    size = KIND.data_bytes
    rng = random.Random(5)
    player = Player(dut, index)
    side = player.dut
    for slot, column in zip(range(SLOTS), KIND.columns, strict=True):
        await player.reset()
        await player.issue(act(0, slot, 1), slot)
        await ClockCycles(dut.clk, 20)
        await FallingEdge(dut.clk)
        first, second, mask = rng.randbytes(size), rng.randbytes(size), rng.getrandbits(size)
        for data, written_mask in ((first, 0), (second, mask)):
            side.dram_write_data.value = rng.getrandbits(8 * size)
            await player.issue(Command(0, "WR", slot, 1, column), slot)
            for _ in range((slot + timing.cwl) // SLOTS - 1):
                await FallingEdge(dut.clk)
            side.dram_write_data.value = int.from_bytes(data, "little")
            side.dram_write_mask.value = written_mask
            await FallingEdge(dut.clk)
            side.dram_write_data.value = rng.getrandbits(8 * size)
            side.dram_write_mask.value = 0
            await ClockCycles(dut.clk, 20)
            await FallingEdge(dut.clk)
        expected = bytes(first[i] if mask >> i & 1 else second[i] for i in range(size))

        await player.issue(Command(0, KIND.closing_read, slot, 1, column), slot)
        for _ in range(-(-(slot + timing.cl + 4) // SLOTS) - 1):
            assert player.output("dram_read_data") == POISON
            await FallingEdge(dut.clk)
        assert player.output("dram_read_data").to_bytes(size, "little") == expected
        await FallingEdge(dut.clk)
        assert player.output("dram_read_data") == POISON
        assert not player.output("violation")
