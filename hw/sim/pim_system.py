"""The pool with its memory, to be simulated."""

from __future__ import annotations

from hw.pim.bank.bank import PimBank
from hw.pim.config import PimConfig
from hw.pim.pool import bank_kinds, bank_module
from hw.pim.pool_control import PoolControl
from hw.pim.vault.timing import VaultPart, VaultTiming
from hw.sim.assembly import Assembly, PoweredUp
from hw.sim.pim_memory import SimulatedVault

__all__ = ["pim_system"]


def pim_system(
    config: PimConfig, part: VaultPart, *, memory_timing: VaultTiming | None = None
) -> Assembly:
    """The parts of :class:`~hw.pim.pool.PimPool`, and a simulated vault for each bank.

    The instances are ``control``, and ``bank_0``, ``vault_0``, and so on. What is free are the
    control's members for the host, and what each vault shows of itself, such as ``violation``.

    Parameters
    ----------
    config, part
        Of :class:`~hw.pim.pool.PimPool`.
    memory_timing
        What the vaults insist on, if not the timing that their controllers keep; to see a
        violation.
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
    for number, kind in enumerate(kinds):
        bank, own_vault = f"bank_{number}", f"vault_{number}"
        system.instances |= {bank: bank_module(*kind), own_vault: "pim_vault"}
        system.connect(("control", "work"), (bank, "work"))
        system.connect(("control", bank), (bank, ""))
        system.connect(("control", f"{own_vault}_request"), (own_vault, "i"))
        system.connect(("control", f"{own_vault}_response"), (own_vault, "o"))
    return system
