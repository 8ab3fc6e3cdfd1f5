"""The module with its DRAM, as one design for cocotb."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from hw.axdimm.config import ModuleConfig
from hw.axdimm.module import Axdimm
from hw.expose import expose
from hw.sim.dram_device import Ddr4Device

__all__ = ["ModuleWithDram"]


class ModuleWithDram(wiring.Component):
    """The module, a DRAM on each channel, the host's side and the DRAMs' verdicts as ports."""

    def __init__(self, config: ModuleConfig) -> None:
        self._config = config
        self._module = Axdimm(config)
        self._host = {
            name: member
            for name, member in self._module.signature.members.items()
            if not name.startswith("dram")
        }
        super().__init__({**self._host, "violations": Out(config.channels)})

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        part = self._config.part
        m.submodules.module = module = self._module
        expose(m, self, module, self._host)
        for index in range(self._config.channels):
            device = Ddr4Device(geometry=part.geometry, timing=part.timing)
            m.submodules[f"dram{index}"] = device
            wiring.connect(m, getattr(module, f"dram{index}"), device.dram)
            m.d.comb += self.violations[index].eq(device.violation)
        return m
