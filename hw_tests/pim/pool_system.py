"""The pool as one component, as it is written as Verilog, with the DRAM of its vaults."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from hw.logic.expose import expose
from hw.logic.shared import Shared
from hw.pim.config import PimConfig
from hw.pim.pool import PimPool
from hw.pim.vault.timing import VaultPart
from hw.sim.vault_device import VaultDevice

__all__ = ["PoolSystem"]


class PoolSystem(wiring.Component):
    """The members are those of the pool but for its vaults, and ``violation`` of any of these."""

    violation: Any

    def __init__(self, config: PimConfig, part: VaultPart) -> None:
        self._pool = PimPool(config, part)
        members = self._pool.signature.members
        self._vaults = [name for name in members if name.startswith("vault_")]
        self._outside = {name: members[name] for name in members if name not in self._vaults}
        super().__init__({**self._outside, "violation": Out(1)})

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        m.submodules.pool = pool = self._pool
        expose(m, self, pool, self._outside)
        part = pool.part
        device = VaultDevice(geometry=part.geometry, timing=part.timing)
        devices: Any = [Shared(device, name="pim_vault_device") for _ in self._vaults]
        for name, vault in zip(self._vaults, devices, strict=True):
            m.submodules[f"device_{name}"] = vault
            wiring.connect(m, getattr(pool, name), vault.dram)
        m.d.comb += self.violation.eq(Cat(vault.violation for vault in devices).any())
        return m
