"""The module with its DRAM, as one design for cocotb."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from hw.axdimm.config import ModuleConfig
from hw.axdimm.module import Axdimm
from hw.logic.expose import expose
from hw.sim.dram_device import Ddr4Device
from hw_tests.dram.dfi_phy import DfiPhy

__all__ = ["ModuleWithDram"]


class ModuleWithDram(wiring.Component):
    """The module with a PHY and a DRAM on each channel; ports: the host's side, the verdicts.

    The PHYs have different latencies.
    """

    def __init__(self, config: ModuleConfig) -> None:
        self._config = config
        self._module = Axdimm(config)
        self._host = {
            name: member
            for name, member in self._module.signature.members.items()
            if not name.startswith("dfi")
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
            phy = DfiPhy(geometry=part.geometry, timing=part.timing, late=4 * index)
            m.submodules[f"phy{index}"] = phy
            wiring.connect(m, getattr(module, f"dfi{index}"), phy.dfi)
            wiring.connect(m, phy.dram, device.dram)
            m.d.comb += self.violations[index].eq(device.violation | phy.bad)
        return m
