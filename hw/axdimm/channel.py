"""One channel of the module: arbiter, kernel and DRAM controller."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.adam.kernel import CHECK_CYCLES, AdamKernel
from hw.axdimm.arbiter import Arbiter
from hw.axdimm.config import ModuleConfig
from hw.axdimm.host_link import HostLinkSignature
from hw.axdimm.run_account import RUN_COMMANDS, RunAccount
from hw.dram.controller import Ddr4Controller
from hw.dram.interface import DramSignature

__all__ = ["Channel"]


class Channel(wiring.Component):
    """Arbiter, Adam kernel and DDR4 controller (paper section 3.1, Figure 2).

    Parameters
    ----------
    config: the module.
    unit: the kernel's functional unit, see :class:`hw.adam.kernel.AdamKernel`.
    arbiter: class of the arbiter.

    Members
    -------
    link: the host.
    dram: the DRAM of the channel.
    read_done: see :class:`~hw.axdimm.arbiter.Arbiter`.
    idle: no request of the host is queued or in flight, and the DRAM controller holds none.
    """

    def __init__(
        self, config: ModuleConfig, *, unit: Any = None, arbiter: type[Arbiter] = Arbiter
    ) -> None:
        self._arbiter = arbiter
        self._config = config
        self._unit = unit
        super().__init__(
            {
                "link": In(HostLinkSignature(address_width=config.address_width)),
                "dram": Out(DramSignature(config.part.geometry)),
                "read_done": Out(1),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        config = self._config
        m.submodules.arbiter = arbiter = self._arbiter(
            capacity_bytes=config.capacity_bytes,
            read_latency=config.read_latency_fabric_cycles,
            lanes=config.lanes,
            block_bytes=config.block_bytes,
        )
        m.submodules.kernel = kernel = AdamKernel(config.kernel, unit=self._unit)
        m.submodules.controller = controller = Ddr4Controller(
            geometry=config.part.geometry,
            timing=config.part.timing,
            addr_width=config.address_width,
            id_width=len(arbiter.memory.arid),
            config=config.controller,
        )
        m.submodules.account = account = RunAccount(check_cycles=CHECK_CYCLES)
        wiring.connect(m, wiring.flipped(self.link), arbiter.link)
        wiring.connect(m, kernel.m_axi, arbiter.kernel)
        wiring.connect(m, arbiter.kernel_csr, kernel.s_axi)
        wiring.connect(m, arbiter.memory, controller.s_axi)
        wiring.connect(m, controller.dram, wiring.flipped(self.dram))
        wiring.connect(m, account.o, arbiter.run)
        m.d.comb += [getattr(account, name).eq(getattr(controller, name)) for name in RUN_COMMANDS]
        m.d.comb += [
            arbiter.kernel_busy.eq(kernel.busy),
            arbiter.memory_idle.eq(controller.idle),
            self.idle.eq(arbiter.idle),
            self.read_done.eq(arbiter.read_done),
            controller.prompt.eq(arbiter.memory_prompt),
            arbiter.refreshes.eq(controller.refreshes),
            arbiter.activates.eq(controller.activates),
            arbiter.precharges.eq(controller.precharges),
            arbiter.longest_refresh_gap.eq(controller.longest_refresh_gap),
            account.begins.eq(kernel.begins),
            account.running.eq(kernel.running),
            account.activity.eq(controller.activity),
        ]
        return m
