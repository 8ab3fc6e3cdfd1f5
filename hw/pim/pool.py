"""Pool: all banks with their units, their control and the memory controllers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from hw.logic.expose import expose
from hw.logic.shared import Shared
from hw.pim.bank.bank import PimBank
from hw.pim.bank.interface import BankSignature
from hw.pim.config import PimConfig
from hw.pim.pool_control import PoolControl
from hw.pim.vault.controller import VaultController
from hw.pim.vault.interface import VaultSignature
from hw.pim.vault.timing import VaultPart

__all__ = ["PimPool", "bank_kinds", "bank_module"]


def bank_module(multipliers: int, adders: int) -> str:
    """Return the Verilog module name of a bank with these units."""
    return f"pim_bank_{multipliers}_{adders}"


def bank_kinds(config: PimConfig) -> list[tuple[int, int]]:
    """Return the multipliers and adders of each bank, by bank number."""
    return list(zip(config.placement.multipliers, config.placement.adders, strict=True))


class PimPool(wiring.Component):
    """Fixed-function half of the logic layer, up to the DRAM of its vaults (docs/pim-spec.md).

    Parameters
    ----------
    config
        The pool.
    part
        Timing and organisation of the vaults; the number of rows is set to make ``vault_bytes``.
        ``ValueError`` if no number of rows does.

    Members
    -------
    s_axi, host_request, host_response, irq, core_clk
        Of :class:`~hw.pim.pool_control.PoolControl`.
    vault_0, vault_1, ... : Out(:class:`~hw.pim.vault.interface.VaultSignature`)
        The DRAM of the banks.

    Examples
    --------
    >>> from hw.pim.config import PIM_PRESETS
    >>> from hw.pim.vault.timing import vault_part
    >>> pool = PimPool(PIM_PRESETS["tiny"], vault_part("tiny"))
    >>> [name for name in pool.signature.members if not name.startswith("vault")]
    ['s_axi', 'host_request', 'host_response', 'irq']
    >>> pool.part.geometry.rows
    8
    """

    def __init__(self, config: PimConfig, part: VaultPart) -> None:
        self.config = config
        self._part = part.with_capacity(config.vault_bytes)
        self._control = PoolControl(config, self._part.geometry)
        super().__init__(
            {
                **self._outside,
                **{
                    f"vault_{bank}": Out(VaultSignature(self._part.geometry))
                    for bank in range(config.banks)
                },
            }
        )

    @property
    def part(self) -> VaultPart:
        """Vault timing and organisation, with the number of rows that makes ``vault_bytes``."""
        return self._part

    @property
    def _outside(self) -> dict[str, wiring.Member]:
        """Members of the control that leave the pool: neither a bank's nor a vault's."""
        members = self._control.signature.members
        return {
            name: members[name]
            for name in members
            if name.split("_")[0] not in ("work", "bank", "vault")
        }

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        config = self.config
        m.submodules.control = control = self._control
        expose(m, self, control, self._outside)
        kinds = bank_kinds(config)
        banks = {
            kind: PimBank(config, multipliers=kind[0], adders=kind[1])
            for kind in sorted(set(kinds))
        }
        controller = VaultController(
            geometry=self._part.geometry, timing=self._part.timing, tag_bits=control.tag_bits
        )
        for number, kind in enumerate(kinds):
            bank: Any = Shared(banks[kind], name=bank_module(*kind))
            vault: Any = Shared(controller, name="pim_vault_controller")
            m.submodules[f"bank_{number}"] = bank
            m.submodules[f"controller_{number}"] = vault
            # The work is not among a bank's own members: all banks share it.
            own = BankSignature(config).flip()
            end = SimpleNamespace(
                signature=own, **{name: getattr(bank, name) for name in own.members}
            )
            wiring.connect(m, getattr(control, f"bank_{number}"), end)
            m.d.comb += bank.work.eq(control.work)
            wiring.connect(m, getattr(control, f"vault_{number}_request"), vault.i)
            wiring.connect(m, vault.o, getattr(control, f"vault_{number}_response"))
            wiring.connect(m, vault.dram, wiring.flipped(getattr(self, f"vault_{number}")))
        return m
