"""AXDIMM module: its channels behind one host link."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from hw.axdimm.channel import axdimm_channel
from hw.axdimm.config import ModuleConfig
from hw.axdimm.host_axi import HostAxiSignature
from hw.axdimm.host_link import HostLinkSignature
from hw.logic.shared import Shared

__all__ = ["Axdimm"]


class Axdimm(wiring.Component):
    """All channels on one host link; the host sees each as a rank (paper section 3.1).

    The channels share only the link: modes and work are independent. The upper bits of
    ``link_req_line`` select the channel. The link brings at most one request in two fabric
    cycles and reads have the same fixed latency in every channel, so two answers never coincide.

    With an AXI4 host each channel has a port of its own, and the bus before them selects.

    Members
    -------
    link : In(:class:`~hw.axdimm.host_link.HostLinkSignature`)
        The host, if it is on the link.
    s_axi0, s_axi1, ... : In(:class:`~hw.axdimm.host_axi.HostAxiSignature`)
        The host of each channel, if it is on AXI4.
    dfi0, dfi1, ... : Out(:class:`~hw.dram.dfi.DfiSignature`)
        The PHY of each channel.
    m_axi0, m_axi1, ... : Out(:class:`~hw.axi.bus.AXI4Signature`)
        The memory of each channel, in their place if the configuration says ``axi4``.

    Examples
    --------
    >>> from hw.axdimm.config import configure
    >>> module = Axdimm(configure("tiny"))
    >>> list(module.signature.members)
    ['link', 'dfi0', 'dfi1']
    >>> outside = Axdimm(configure("tiny", host="axi4", memory="axi4"))
    >>> list(outside.signature.members)
    ['s_axi0', 's_axi1', 'm_axi0', 'm_axi1']
    """

    def __init__(self, config: ModuleConfig) -> None:
        self._config = config
        self._channel = axdimm_channel(config)
        self._select_bits = (config.channels - 1).bit_length()
        width = config.address_width
        if config.host == "axi4":
            port = In(HostAxiSignature(address_width=width))
            host = {f"s_axi{index}": port for index in range(config.channels)}
        else:
            host = {"link": In(HostLinkSignature(address_width=width + self._select_bits))}
        super().__init__(
            {
                **host,
                **{
                    f"{name}{index}": member
                    for index in range(config.channels)
                    for name, member in self._channel.memory_side.items()
                },
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        parts: list[Any] = []
        for index in range(self._config.channels):
            part = Shared(self._channel, name="axdimm_channel")
            parts.append(part)
            m.submodules[f"channel{index}"] = part
            for name in self._channel.memory_side:
                outside = getattr(self, f"{name}{index}")
                wiring.connect(m, getattr(part, name), wiring.flipped(outside))
        if self._config.host == "axi4":
            for index, part in enumerate(parts):
                wiring.connect(m, wiring.flipped(getattr(self, f"s_axi{index}")), part.s_axi)
        else:
            self._connect_link(m, parts)
        return m

    def _connect_link(self, m: Any, parts: list[Any]) -> None:
        link = self.link
        line_bits = len(link.req_line) - self._select_bits
        ready = Signal(len(parts))
        m.d.comb += link.req_ready.eq(ready.all())
        for index, part in enumerate(parts):
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
