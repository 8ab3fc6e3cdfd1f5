"""A vault for benches: controller and device, with a record of the commands."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.pim.vault.controller import VaultController
from hw.pim.vault.interface import vault_request_layout, vault_response_layout
from hw.pim.vault.timing import VaultPart
from hw.sim.vault_device import VaultDevice
from hw_tests.dram.command_trace import command_trace

__all__ = ["TAG_BITS", "VaultSystem"]

TAG_BITS = 8


class VaultSystem(wiring.Component):
    """A controller with its device; the commands are recorded in the file ``NAME.csv``.

    The members are those of controller and device, and ``flush`` for the record.
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
        geometry, timing = self.part.geometry, self.part.timing
        m: Any = Module()
        m.submodules.controller = controller = VaultController(
            geometry=geometry, timing=timing, tag_bits=TAG_BITS
        )
        m.submodules.device = device = VaultDevice(geometry=geometry, timing=timing)
        wiring.connect(m, wiring.flipped(self.i), controller.i)
        wiring.connect(m, wiring.flipped(self.o), controller.o)
        wiring.connect(m, controller.dram, device.dram)
        m.d.comb += [self.idle.eq(controller.idle), self.violation.eq(device.violation)]
        settings = " ".join(f"{name}={value}" for name, value in asdict(geometry).items())
        m.submodules.trace = command_trace(
            platform,
            controller.dram,
            file=f"{self._name}.csv",
            header=f"# nearmem vault trace v1 preset={self.part.name} {settings}\n"
            "tck,vault,command,layer,bank,row,column",
            flush=self.flush,
        )
        return m
