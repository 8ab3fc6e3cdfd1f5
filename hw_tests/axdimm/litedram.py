"""LiteDRAM, a DRAM controller that is not ours, as the memory of a channel."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

from amaranth.hdl import ClockSignal, Instance, Module, ResetSignal
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from hw.axdimm.channel import Channel, channel_arbiter
from hw.axdimm.config import ModuleConfig
from hw.axdimm.host_link import HostLinkSignature
from hw.axdimm.memory import AxiMemory
from hw.axdimm.memory_join import ExclusiveJoin
from hw.axi.bus import AXI4Signature
from hw.kernel.kernel import Kernel
from hw.logic.line import LINE_BITS
from hw.sim.delay_unit import DelayUnit

__all__ = ["LITEDRAM_BYTES", "LiteDramChannel", "litedram_verilog"]

FABRIC_HZ = 200_000_000
ROWS = 2048
LITEDRAM_BYTES = 8 * ROWS * 8192
_ADDRESS_BITS = LITEDRAM_BYTES.bit_length() - 1


class LiteDramChannel(wiring.Component):
    """A channel with an AXI4 port, and LiteDRAM with its model of a PHY and a DRAM behind it.

    ``arithmetic`` is that of :class:`~hw.sim.channel.SimulatedChannel`.
    """

    def __init__(self, config: ModuleConfig, *, arithmetic: bool = True) -> None:
        self._config = config
        self._arithmetic = arithmetic
        super().__init__({"link": In(HostLinkSignature(address_width=config.address_width))})

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        config = self._config
        units = None if self._arithmetic else list(map(DelayUnit, config.kernel.update_rules))
        m.submodules.channel = channel = Channel(
            arbiter=channel_arbiter(config, ExclusiveJoin(addr_width=config.address_width)),
            kernel=Kernel(config.kernel, units=units),
            memory=AxiMemory(addr_width=config.address_width),
        )
        m.submodules.litedram = litedram = _LiteDram()
        wiring.connect(m, wiring.flipped(self.link), channel.link)
        for name, member in channel.m_axi.signature.members.items():
            source, target = channel.m_axi, litedram.s_axi
            if member.flow is wiring.In:
                source, target = target, source
            m.d.comb += getattr(target, name).eq(getattr(source, name))
        return m


class _LiteDram(wiring.Component):
    """The controller with its DRAM."""

    def __init__(self) -> None:
        super().__init__(
            {"s_axi": In(AXI4Signature(addr_width=_ADDRESS_BITS, data_width=LINE_BITS))}
        )

    def elaborate(self, platform: Any) -> Module:
        platform.add_file("litedram.v", litedram_verilog())
        m: Any = Module()
        ports: dict[str, Any] = {"i_sys_clk": ClockSignal(), "i_sys_rst": ResetSignal()}
        for name, member in self.s_axi.signature.members.items():
            direction = "i_" if member.flow is In else "o_"
            ports[f"{direction}s_axi_{name}"] = getattr(self.s_axi, name)
        m.submodules.litedram = Instance("litedram", **ports)
        return m


@cache
def litedram_verilog() -> str:
    """LiteDRAM with a 512-bit AXI4 port, its model of a PHY and DDR3-1600, as module ``litedram``.

    The timing is that of a DDR3 part but for tRFC, which is that of the paper's: LiteDRAM's model
    knows no bank groups, and what refresh leaves shall be the same.
    """
    from litedram.core import LiteDRAMCore
    from litedram.core.controller import ControllerSettings
    from litedram.frontend.axi import LiteDRAMAXI2Native, LiteDRAMAXIPort
    from litedram.modules import MT41K256M8, _SpeedgradeTimings
    from litedram.phy.model import SDRAMPHYModel, get_sdram_phy_settings
    from migen import Module as MigenModule
    from migen.fhdl import verilog

    timings = _SpeedgradeTimings(
        tRP=13.75, tRCD=13.75, tWR=15, tRFC=(None, 550), tFAW=(None, 25), tRAS=35
    )
    part = type("Part", (MT41K256M8,), {"nrows": ROWS, "speedgrade_timings": {"default": timings}})

    class LiteDram(MigenModule):
        def __init__(self) -> None:
            dram = part(FABRIC_HZ, "1:4")
            settings = get_sdram_phy_settings("DDR3", 64, FABRIC_HZ)
            self.submodules.phy = phy = SDRAMPHYModel(dram, settings=settings, clk_freq=FABRIC_HZ)
            self.submodules.core = core = LiteDRAMCore(
                phy,
                dram.geom_settings,
                dram.timing_settings,
                FABRIC_HZ,
                controller_settings=ControllerSettings(),
            )
            self.axi = LiteDRAMAXIPort(LINE_BITS, _ADDRESS_BITS, id_width=1)
            self.submodules.port = LiteDRAMAXI2Native(self.axi, core.crossbar.get_port(), 64, 64)

    design = LiteDram()
    ports = set()
    for name in AXI4Signature(addr_width=_ADDRESS_BITS, data_width=LINE_BITS).members:
        channel = next(each for each in ("aw", "ar", "w", "b", "r") if name.startswith(each))
        signal = getattr(getattr(design.axi, channel), name.removeprefix(channel))
        signal.name_override = f"s_axi_{name}"
        ports.add(signal)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = verilog.convert(design, ports, name="litedram")
    assert not result.data_files
    return str(result)
