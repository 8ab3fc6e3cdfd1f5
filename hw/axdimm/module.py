"""The module: its channels behind one host link."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.axdimm.channel import axdimm_channel
from hw.axdimm.config import ModuleConfig
from hw.axdimm.host_link import HostLinkSignature
from hw.dram.interface import DramSignature
from hw.verilog import Shared

__all__ = ["Axdimm"]


class Axdimm(wiring.Component):
    """All channels on one host link; the host sees each as a rank (paper section 3.1).

    The channels share nothing but the link: modes and work are independent. The upper bits of
    ``link_req_line`` select the channel. The link brings at most one request in two fabric
    cycles and reads have the same fixed latency in every channel, so no two answers meet.

    Members
    -------
    link : In(:class:`~hw.axdimm.host_link.HostLinkSignature`)
        The host.
    dram0, dram1, ... : Out(:class:`~hw.dram.interface.DramSignature`)
        The DRAM of each channel.
    """

    def __init__(self, config: ModuleConfig) -> None:
        self._config = config
        self._select_bits = (config.channels - 1).bit_length()
        super().__init__(
            {
                "link": In(
                    HostLinkSignature(address_width=config.address_width + self._select_bits)
                ),
                **{
                    f"dram{index}": Out(DramSignature(config.part.geometry))
                    for index in range(config.channels)
                },
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        link = self.link
        line_bits = len(link.req_line) - self._select_bits
        channel = axdimm_channel(self._config)
        ready = Signal(self._config.channels)
        m.d.comb += link.req_ready.eq(ready.all())
        for index in range(self._config.channels):
            part = Shared(channel, name="axdimm_channel")
            m.submodules[f"channel{index}"] = part
            m.d.comb += [
                part.link.req_valid.eq(link.req_valid & (link.req_line[line_bits:] == index)),
                part.link.req_write.eq(link.req_write),
                part.link.req_line.eq(link.req_line[:line_bits]),
                part.link.req_data.eq(link.req_data),
                ready[index].eq(part.link.req_ready),
            ]
            with m.If(part.link.rsp_valid):
                m.d.comb += [
                    link.rsp_valid.eq(1),
                    link.rsp_late.eq(part.link.rsp_late),
                    link.rsp_data.eq(part.link.rsp_data),
                ]
            wiring.connect(m, part.dram, wiring.flipped(getattr(self, f"dram{index}")))
        return m
