"""AXI4-Lite subordinate in front of a register bank."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.axi.bus import AXI4LiteSignature, Response
from hw.csr.bank import CSR_DATA_WIDTH, CsrBusSignature

__all__ = ["AXI4LiteSubordinate"]


class AXI4LiteSubordinate(wiring.Component):
    """AXI4-Lite (64 bits) to the bus of a :class:`~hw.csr.bank.CsrBank`.

    It handles one access at a time, writes first. It answers a write two cycles after the later
    of its address and data, and a read two cycles after its address. No output depends
    combinationally on an input of ``s_axi``.

    An access with ``hit`` low gets SLVERR and writes nothing. A write without strobes gets OKAY
    and writes nothing. A write with some strobes writes these bytes if ``parts``. It writes the
    whole register if ``lower`` and the lower four strobes are set. Otherwise it gets SLVERR, which
    IHI 0022 allows for unsupported strobes.

    Parameters
    ----------
    addr_width
        Width of the addresses in bits.
    parts
        Support writes to a part of a register.
    lower
        Accept the strobes of the lower four bytes as enough, as a 32-bit manager has them. Use it
        for registers without writable bits above.

    Members
    -------
    s_axi : In(:class:`~hw.axi.bus.AXI4LiteSignature`)
        The manager.
    bus : Out(:class:`~hw.csr.bank.CsrBusSignature`, with strobes if ``parts``)
        Towards the bank.

    Examples
    --------
    >>> from hw.sim.outputs import outputs
    >>> port = AXI4LiteSubordinate(addr_width=12)
    >>> read = {"s_axi_arvalid": 1, "s_axi_araddr": 8, "bus_hit": 1, "bus_read_data": 42}
    >>> after = outputs(port, 2, **read)
    >>> after["s_axi_rvalid"], after["s_axi_rdata"], after["s_axi_rresp"]
    (1, 42, 0)
    """

    bus: Any

    def __init__(self, *, addr_width: int, parts: bool = False, lower: bool = False) -> None:
        self._parts = parts
        self._lower = lower
        super().__init__(
            {
                "s_axi": In(AXI4LiteSignature(addr_width=addr_width, data_width=CSR_DATA_WIDTH)),
                "bus": Out(CsrBusSignature(addr_width=addr_width, strobes=parts)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        axi, bus = self.s_axi, self.bus

        aw_full, w_full, ar_full = Signal(), Signal(), Signal()
        aw_address = Signal.like(axi.awaddr, reset_less=True)
        ar_address = Signal.like(axi.araddr, reset_less=True)
        strobes = Signal.like(axi.wstrb, reset_less=True)
        data = Signal.like(axi.wdata, reset_less=True)
        m.d.comb += [
            axi.awready.eq(~aw_full),
            axi.wready.eq(~w_full),
            axi.arready.eq(~ar_full),
            bus.write_data.eq(data),
        ]
        if self._parts:
            m.d.comb += bus.strobes.eq(strobes)
        whole = strobes[: CSR_DATA_WIDTH // 16] if self._lower else strobes
        supported = strobes.any() if self._parts else whole.all()
        with m.If(axi.awvalid & ~aw_full):
            m.d.sync += [aw_full.eq(1), aw_address.eq(axi.awaddr)]
        with m.If(axi.wvalid & ~w_full):
            m.d.sync += [w_full.eq(1), data.eq(axi.wdata), strobes.eq(axi.wstrb)]
        with m.If(axi.arvalid & ~ar_full):
            m.d.sync += [ar_full.eq(1), ar_address.eq(axi.araddr)]

        b_valid, r_valid = Signal(), Signal()
        b_response = Signal.like(axi.bresp, reset_less=True)
        r_response = Signal.like(axi.rresp, reset_less=True)
        r_data = Signal.like(axi.rdata, reset_less=True)
        m.d.comb += [
            axi.bvalid.eq(b_valid),
            axi.bresp.eq(b_response),
            axi.rvalid.eq(r_valid),
            axi.rresp.eq(r_response),
            axi.rdata.eq(r_data),
        ]
        with m.If(axi.bready):
            m.d.sync += b_valid.eq(0)
        with m.If(axi.rready):
            m.d.sync += r_valid.eq(0)

        # Address and data of a write have arrived.
        whole_write = Signal()
        writing = whole_write & ~b_valid
        m.d.sync += whole_write.eq((aw_full | axi.awvalid) & (w_full | axi.wvalid) & ~writing)
        with m.If(writing):
            m.d.comb += [
                bus.address.eq(aw_address),
                bus.write.eq(bus.hit & supported),
            ]
            m.d.sync += [
                aw_full.eq(0),
                w_full.eq(0),
                b_valid.eq(1),
                b_response.eq(Response.OKAY),
            ]
            with m.If(~bus.hit | (strobes.any() & ~supported)):
                m.d.sync += b_response.eq(Response.SLVERR)
        with m.Else():
            m.d.comb += bus.address.eq(ar_address)
            with m.If(ar_full & ~r_valid):
                m.d.sync += [
                    ar_full.eq(0),
                    r_valid.eq(1),
                    r_data.eq(bus.read_data),
                    r_response.eq(Response.OKAY),
                ]
                with m.If(~bus.hit):
                    m.d.sync += r_response.eq(Response.SLVERR)
        return m
