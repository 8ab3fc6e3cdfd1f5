"""cocotb tests of a vault's device: each rule at its edge, data and masks in every slot.

The design holds one device for each timing of the parameters, then two with the first timing: one
without tCCD and one with half the rows. All get the same commands; a test looks at one of them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, FallingEdge

from hw.pim.vault_device import VaultViolation
from hw.pim.vault_interface import VAULT_SLOTS, VaultCommand
from hw.pim.vault_timing import VaultTiming
from hw_tests.bench import bench_parameters
from hw_tests.pim.vault_probes import PROBE_ROWS, VaultProbeCommand, vault_probes

POISON = int.from_bytes(bytes.fromhex("7adaadde") * 8, "little")
TIMINGS = [VaultTiming(**values) for values in bench_parameters()["timings"]]
WITHOUT_CCD = len(TIMINGS)
HALF_THE_ROWS = len(TIMINGS) + 1


class Player:
    """Drives commands on the four slots and looks at device ``index``."""

    def __init__(self, dut: Any, index: int) -> None:
        self.dut = dut
        self._index = index

    def output(self, name: str) -> int:
        return int(getattr(self.dut, f"{name}_{self._index}").value)

    async def reset(self) -> None:
        dut = self.dut
        for slot in range(VAULT_SLOTS):
            self._port("command", slot).value = 0
        dut.dram_write_mask.value = 0
        dut.dram_write_data.value = 0
        dut.rst.value = 1
        await ClockCycles(dut.clk, 2)
        await FallingEdge(dut.clk)
        dut.rst.value = 0

    def _port(self, name: str, slot: int) -> Any:
        return getattr(self.dut, f"dram_{name}_p{slot}")

    async def issue(self, command: VaultProbeCommand, slot: int) -> None:
        """Gives one command in this cycle, whatever its time."""
        self._set(command, slot)
        await FallingEdge(self.dut.clk)
        self._port("command", slot).value = 0

    def _set(self, command: VaultProbeCommand, slot: int) -> None:
        self._port("command", slot).value = int(VaultCommand[command.name].value)
        self._port("layer", slot).value = command.layer
        self._port("bank", slot).value = command.bank
        self._port("address", slot).value = command.address

    async def play(self, commands: Sequence[VaultProbeCommand]) -> None:
        """Gives the commands, whose time counts from the reset, and waits for the last."""
        cycle = 0
        pending = sorted(commands, key=lambda command: command.tck)
        while pending:
            wait = pending[0].tck // VAULT_SLOTS - cycle
            if wait:
                await ClockCycles(self.dut.clk, wait)
                await FallingEdge(self.dut.clk)
                cycle += wait
            used = []
            while pending and pending[0].tck // VAULT_SLOTS == cycle:
                command = pending.pop(0)
                used.append(command.tck % VAULT_SLOTS)
                self._set(command, used[-1])
            await FallingEdge(self.dut.clk)
            for slot in used:
                self._port("command", slot).value = 0
            cycle += 1
        await FallingEdge(self.dut.clk)


def _start(dut: Any) -> None:
    cocotb.start_soon(Clock(dut.clk, 3200, unit="ps").start())


@cocotb.test(timeout_time=100, timeout_unit="ms")
@cocotb.parametrize(index=range(len(TIMINGS)))
async def every_rule_at_its_edge(dut: Any, index: int) -> None:
    _start(dut)
    player = Player(dut, index)
    checked = 0
    for probe in vault_probes(TIMINGS[index]):
        for commands, accepted in probe.variants():
            await player.reset()
            await player.play(commands)
            refused = player.output("violation") == 1
            assert refused != accepted, f"{probe.name}: {commands}"
            checked += 1
            if refused:
                code = VaultViolation(player.output("violation_code"))
                assert code is probe.code, f"{probe.name}: refused for {code!r}"
                assert player.output("violation_tck") == commands[-1].tck, probe.name
    dut._log.info("%d sequences checked", checked)
    assert checked > 60


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def bursts_may_not_overlap_on_the_bus(dut: Any) -> None:
    _start(dut)
    player = Player(dut, WITHOUT_CCD)
    for name in ("RD", "RDA", "WR", "WRA"):
        for distance in (3, 4):
            await player.reset()
            await player.play(
                [
                    VaultProbeCommand(20, "ACT", 0, 0),
                    VaultProbeCommand(40, "ACT", 1, 0),
                    VaultProbeCommand(80, name, 0, 0),
                    VaultProbeCommand(80 + distance, name, 1, 0),
                ]
            )
            assert player.output("violation") == (distance == 3)
            if distance == 3:
                assert player.output("violation_code") == VaultViolation.BUS_OVERLAP


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def rows_and_commands_that_do_not_exist(dut: Any) -> None:
    _start(dut)
    player = Player(dut, HALF_THE_ROWS)
    for row in (PROBE_ROWS // 2 - 1, PROBE_ROWS // 2):
        await player.reset()
        await player.play([VaultProbeCommand(20, "ACT", 1, 1, row)])
        assert player.output("violation") == (row == PROBE_ROWS // 2)
    assert player.output("violation_code") == VaultViolation.ROW_RANGE
    await player.reset()
    dut.dram_command_p2.value = 7
    await ClockCycles(dut.clk, 2)
    dut.dram_command_p2.value = 0
    await FallingEdge(dut.clk)
    assert player.output("violation_code") == VaultViolation.ENCODING


@cocotb.test(timeout_time=10, timeout_unit="ms")
async def overdue_refresh_is_noticed_without_commands(dut: Any) -> None:
    _start(dut)
    player = Player(dut, 0)
    await player.reset()
    t_refi = TIMINGS[0].t_refi
    await ClockCycles(dut.clk, t_refi // VAULT_SLOTS)
    assert not player.output("violation")
    await ClockCycles(dut.clk, 4)
    assert player.output("violation")
    assert player.output("violation_tck") == t_refi + 1


@cocotb.test(timeout_time=10, timeout_unit="ms")
@cocotb.parametrize(index=range(len(TIMINGS)))
async def data_and_masks_in_every_slot(dut: Any, index: int) -> None:
    """Data are taken and shown in exactly one cycle, the one that the interface promises."""
    _start(dut)
    timing = TIMINGS[index]
    rng = random.Random(5)
    player = Player(dut, index)
    for slot in range(VAULT_SLOTS):
        await player.reset()
        await player.issue(VaultProbeCommand(0, "ACT", slot, 1, 3), slot)
        await ClockCycles(dut.clk, 20)
        await FallingEdge(dut.clk)
        column = slot + 3
        first, second, mask = rng.randbytes(32), rng.randbytes(32), rng.getrandbits(32)
        for data, written_mask in ((first, 0), (second, mask)):
            dut.dram_write_data.value = rng.getrandbits(256)
            await player.issue(VaultProbeCommand(0, "WR", slot, 1, column), slot)
            for _ in range((slot + timing.cwl) // VAULT_SLOTS - 1):
                await FallingEdge(dut.clk)
            dut.dram_write_data.value = int.from_bytes(data, "little")
            dut.dram_write_mask.value = written_mask
            await FallingEdge(dut.clk)
            dut.dram_write_data.value = rng.getrandbits(256)
            dut.dram_write_mask.value = 0
            await ClockCycles(dut.clk, 20)
            await FallingEdge(dut.clk)
        expected = bytes(first[i] if mask >> i & 1 else second[i] for i in range(32))

        await player.issue(VaultProbeCommand(0, "RDA", slot, 1, column), slot)
        for _ in range(-(-(slot + timing.cl + 4) // VAULT_SLOTS) - 1):
            assert player.output("read_data") == POISON
            await FallingEdge(dut.clk)
        assert player.output("read_data").to_bytes(32, "little") == expected
        await FallingEdge(dut.clk)
        assert player.output("read_data") == POISON
        assert not player.output("violation")
