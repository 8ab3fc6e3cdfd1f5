"""PIM pool with its memory, for simulation."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.logic.expose import expose
from hw.pim.bank.bank import PimBank
from hw.pim.config import PimConfig
from hw.pim.pool import bank_kinds, bank_module
from hw.pim.pool_control import PoolControl
from hw.pim.vault.controller import VaultController
from hw.pim.vault.interface import (
    VaultCommandsSignature,
    vault_request_layout,
    vault_response_layout,
)
from hw.pim.vault.timing import VaultPart, VaultTiming
from hw.sim.assembly import Assembly, PoweredUp
from hw.sim.vault_device import VaultDevice

__all__ = ["SimulatedVault", "pim_system"]


def pim_system(
    config: PimConfig, part: VaultPart, *, memory_timing: VaultTiming | None = None
) -> Assembly:
    """Return the parts of :class:`~hw.pim.pool.PimPool`, and a simulated vault for each bank.

    The instances are ``control``, ``bank_0``, ``vault_0``, and so on. The control's members for the
    host stay unconnected, and so do the outputs of each vault such as ``violation``.

    Parameters
    ----------
    config, part
        Configurations of the pool and its vaults, as for :class:`~hw.pim.pool.PimPool`.
    memory_timing
        Timing that the vaults check, if it differs from their controllers'; to provoke a violation.
    """
    part = part.with_capacity(config.vault_bytes)
    control = PoolControl(config, part.geometry)
    vault = SimulatedVault(part, tag_bits=control.tag_bits, memory_timing=memory_timing)
    kinds = bank_kinds(config)
    system = Assembly(
        components={
            "pim_control": PoweredUp(control),
            "pim_vault": PoweredUp(vault),
            **{
                bank_module(*kind): PoweredUp(PimBank(config, multipliers=kind[0], adders=kind[1]))
                for kind in sorted(set(kinds))
            },
        },
        instances={"control": "pim_control"},
    )
    if config.has_core_clock:
        system.core_clock_ratios["pim_control"] = config.core_clock_ratio
    for number, kind in enumerate(kinds):
        bank, own_vault = f"bank_{number}", f"vault_{number}"
        system.instances |= {bank: bank_module(*kind), own_vault: "pim_vault"}
        system.connect(("control", "work"), (bank, "work"))
        system.connect(("control", bank), (bank, ""))
        system.connect(("control", f"{own_vault}_request"), (own_vault, "i"))
        system.connect(("control", f"{own_vault}_response"), (own_vault, "o"))
    return system


class SimulatedVault(wiring.Component):
    """Vault controller with its device.

    ``memory_timing`` is the timing that the device checks, if it differs from the controller's; to
    provoke a violation.

    Members
    -------
    i, o, idle
        Members of :class:`~hw.pim.vault.controller.VaultController`.
    violation : Out(1)
        Member of :class:`~hw.sim.vault_device.VaultDevice`.
    commands : Out(:class:`~hw.pim.vault.interface.VaultCommandsSignature`)
        Commands from the controller to the device, for observation.
    """

    def __init__(
        self, part: VaultPart, *, tag_bits: int, memory_timing: VaultTiming | None = None
    ) -> None:
        self._part = part
        self._memory_timing = memory_timing or part.timing
        self._tag_bits = tag_bits
        super().__init__(
            {
                "i": In(stream.Signature(vault_request_layout(part.geometry, tag_bits))),
                "o": Out(stream.Signature(vault_response_layout(tag_bits))),
                "idle": Out(1),
                "violation": Out(1),
                "commands": Out(VaultCommandsSignature(part.geometry)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        geometry, timing = self._part.geometry, self._part.timing
        m: Any = Module()
        m.submodules.controller = controller = VaultController(
            geometry=geometry, timing=timing, tag_bits=self._tag_bits
        )
        m.submodules.device = device = VaultDevice(geometry=geometry, timing=self._memory_timing)
        wiring.connect(m, controller.dram, device.dram)
        expose(m, self, controller, ("i", "o", "idle"))
        expose(m, self, device, ("violation",))
        expose(m, self.commands, controller.dram, self.commands.signature.members)
        return m
