"""A simulated vault for benches, with a record of the commands."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.logic.expose import expose
from hw.pim.vault.interface import vault_request_layout, vault_response_layout
from hw.pim.vault.timing import VAULT_PARTS, VaultPart
from hw.sim.pim_system import SimulatedVault
from hw_tests.dram.command_trace import command_trace

__all__ = ["TAG_BITS", "VaultSystem"]

TAG_BITS = 8


class VaultSystem(wiring.Component):
    """A simulated vault; the commands are recorded in the file ``NAME.csv``.

    The members are those of the vault but for the commands, and ``flush`` for the record.
    """

    i: Any
    o: Any
    idle: Any
    flush: Any
    violation: Any

    def __init__(self, part: VaultPart, name: str) -> None:
        self.part = part
        self._name = name
        super().__init__(
            {
                "i": In(stream.Signature(vault_request_layout(part.geometry, TAG_BITS))),
                "o": Out(stream.Signature(vault_response_layout(TAG_BITS))),
                "idle": Out(1),
                "flush": In(1),
                "violation": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        m.submodules.vault = vault = SimulatedVault(self.part, tag_bits=TAG_BITS)
        expose(m, self, vault, ("i", "o", "idle", "violation"))
        part = self.part
        figures = asdict(part.geometry) | ({} if part.name in VAULT_PARTS else asdict(part.timing))
        settings = " ".join(f"{name}={value}" for name, value in figures.items())
        m.submodules.trace = command_trace(
            platform,
            vault.commands,
            file=f"{self._name}.csv",
            header=f"# nearmem vault trace v1 preset={part.name} {settings}\n"
            "tck,vault,command,layer,bank,row,column",
            flush=self.flush,
        )
        return m
