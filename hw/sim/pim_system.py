"""The pool with its memory, to be simulated."""

from __future__ import annotations

from hw.pim.bank.bank import PimBank
from hw.pim.config import PimConfig
from hw.pim.pool import bank_kinds, bank_module
from hw.pim.pool_control import PoolCore
from hw.pim.vault.timing import VaultPart, VaultTiming
from hw.sim.assembly import Assembly, PoweredUp
from hw.sim.pim_memory import SimulatedVault

__all__ = ["pim_system"]


def pim_system(
    config: PimConfig, part: VaultPart, *, memory_timing: VaultTiming | None = None
) -> Assembly:
    """The parts of :class:`~hw.pim.pool.PimPool`, and a simulated vault for each bank.

    The instances are ``core``, and ``bank_0``, ``vault_0``, and so on. What is free are the core's
    ports for the host, and what each vault shows of itself, such as ``violation``.

    Parameters
    ----------
    config, part
        Of :class:`~hw.pim.pool.PimPool`.
    memory_timing
        What the vaults insist on, if not the timing that their controllers keep; to see a
        violation.
    """
    part = part.with_capacity(config.vault_bytes)
    core = PoolCore(config, part.geometry)
    vault = SimulatedVault(part, tag_bits=core.tag_bits, memory_timing=memory_timing)
    kinds = bank_kinds(config)
    system = Assembly(
        components={
            "pim_core": PoweredUp(core),
            "pim_vault": PoweredUp(vault),
            **{
                bank_module(*kind): PoweredUp(PimBank(config, multipliers=kind[0], adders=kind[1]))
                for kind in sorted(set(kinds))
            },
        },
        instances={"core": "pim_core"},
    )
    for number, kind in enumerate(kinds):
        bank, own_vault = f"bank_{number}", f"vault_{number}"
        system.instances |= {bank: bank_module(*kind), own_vault: "pim_vault"}
        system.connect(("core", "work"), (bank, "work"))
        system.connect(("core", bank), (bank, ""))
        system.connect(("core", f"{own_vault}_request"), (own_vault, "i"))
        system.connect(("core", f"{own_vault}_response"), (own_vault, "o"))
    return system
