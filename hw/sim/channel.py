"""Channel with its DRAM, for simulation."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import ClockDomain, ClockSignal, DomainRenamer, Module, ResetSignal, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.axdimm.channel import Channel, channel_arbiter, channel_controller
from hw.axdimm.config import ModuleConfig
from hw.axdimm.host_link import HostLinkSignature
from hw.axdimm.memory import Ddr4Memory
from hw.axdimm.memory_join import ExclusiveJoin
from hw.dram.controller import Ddr4Controller
from hw.dram.interface import DramSignature
from hw.dram.timing import DramTiming
from hw.kernel.kernel import Kernel
from hw.logic.expose import expose
from hw.sim.delay_unit import DelayUnit
from hw.sim.dram_device import Ddr4Device
from hw.sim.shared_join import SharedJoin

__all__ = ["SimulatedChannel"]


class SimulatedChannel(wiring.Component):
    """A channel on a DRAM that carries data and checks every command; its reset takes a cycle.

    Parameters
    ----------
    config
        Configuration of the module; its host is on the link.
    memory_timing
        Timing that the DRAM checks, if it differs from the controller's; to provoke a violation.
    arithmetic
        False replaces each functional unit by a :class:`~hw.sim.delay_unit.DelayUnit`: the same
        cycles in less time, with meaningless results.
    shared
        True lets host and kernel share the DRAM; see :class:`~hw.sim.shared_join.SharedJoin`.

    Members
    -------
    link : In(:class:`~hw.axdimm.host_link.HostLinkSignature`)
        The host.
    dram : Out(signature)
        Commands from the controller to the DRAM, for observation: members of
        :class:`~hw.dram.interface.DramSignature`.
    read_done : Out(1)
        See :class:`~hw.axdimm.arbiter.Arbiter`.
    idle : Out(1)
        See :class:`~hw.axdimm.channel.Channel`; all written data is in the DRAM then.
    violation, violation_code, violation_tck : Out
        See :class:`~hw.sim.dram_device.DramDevice`.
    """

    def __init__(
        self,
        config: ModuleConfig,
        *,
        memory_timing: DramTiming | None = None,
        arithmetic: bool = True,
        shared: bool = False,
    ) -> None:
        if config.host != "link":
            raise ValueError(
                f"a simulated channel has its host on the link, got host={config.host!r}: leave it "
                "out"
            )
        self._config = config
        self._arithmetic = arithmetic
        self._shared = shared
        self._memory_timing = memory_timing or config.part.timing
        commands = {
            name: Out(member.shape)
            for name, member in DramSignature(config.part.geometry).members.items()
            if name.rpartition("_")[0] in ("command", "bank_group", "bank", "address")
        }
        super().__init__(
            {
                "link": In(HostLinkSignature(address_width=config.address_width)),
                "dram": Out(wiring.Signature(commands)),
                "read_done": Out(1),
                "idle": Out(1),
                "violation": Out(1),
                "violation_code": Out(8),
                "violation_tck": Out(48),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        config = self._config
        # The generated Verilog has the reset in the logic of every register's next value, and
        # Verilator evaluates logic behind an input twice a cycle. A register avoids that.
        reset = Signal(init=1, reset_less=True)
        m.d.sync += reset.eq(ResetSignal("sync"))
        m.domains.fabric = ClockDomain(local=True)
        m.d.comb += [
            ClockSignal("fabric").eq(ClockSignal("sync")),
            ResetSignal("fabric").eq(reset),
        ]
        join = SharedJoin if self._shared else ExclusiveJoin
        units = None if self._arithmetic else list(map(DelayUnit, config.kernel.update_rules))
        channel = Channel(
            arbiter=channel_arbiter(config, join(addr_width=config.address_width)),
            kernel=Kernel(config.kernel, units=units),
            memory=Ddr4Memory(channel_controller(config, Ddr4Controller, reserve=False)),
        )
        device = Ddr4Device(
            geometry=config.part.geometry,
            timing=self._memory_timing,
            check_refresh=config.controller.refresh,
        )
        m.submodules.channel = DomainRenamer("fabric")(channel)
        m.submodules.dram = DomainRenamer("fabric")(device)
        wiring.connect(m, channel.dram, device.dram)
        expose(m, self, channel, ("link", "read_done", "idle"))
        expose(m, self.dram, channel.dram, self.dram.signature.members)
        expose(m, self, device, ("violation", "violation_code", "violation_tck"))
        return m
