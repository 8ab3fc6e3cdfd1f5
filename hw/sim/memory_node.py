"""Memory-node with its DRAM, for simulation."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from hw.logic.expose import expose
from hw.memory_node.config import MemoryNodeConfig
from hw.memory_node.node import MemoryNode
from hw.sim.dram_device import Ddr4Device

__all__ = ["SimulatedMemoryNode"]


class SimulatedMemoryNode(wiring.Component):
    """A memory-node on DRAM that carries data and checks every command.

    Members
    -------
    s_axi, wire_in, wire_out
        See :class:`~hw.memory_node.node.MemoryNode`.
    violation : Out(1)
        A DRAM got a command that breaks a rule.
    """

    def __init__(self, config: MemoryNodeConfig) -> None:
        self._config = config
        self._node = MemoryNode(config)
        members = self._node.signature.members
        self._outside = {name: members[name] for name in ("s_axi", "wire_in", "wire_out")}
        super().__init__({**self._outside, "violation": Out(1)})

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        config = self._config
        m.submodules.node = node = self._node
        expose(m, self, node, self._outside)
        devices = [
            Ddr4Device(
                geometry=config.part.geometry,
                timing=config.part.timing,
                check_refresh=config.controller.refresh,
            )
            for _ in range(config.channels)
        ]
        for index, device in enumerate(devices):
            m.submodules[f"dram_{index}"] = device
            wiring.connect(m, getattr(node, f"dram{index}"), device.dram)
        m.d.comb += self.violation.eq(Cat(device.violation for device in devices).any())
        return m
