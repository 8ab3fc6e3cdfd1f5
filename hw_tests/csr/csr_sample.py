"""A small register map with a field of each kind, and a bank of it behind AXI4-Lite."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.axi.bus import AXI4LiteSignature
from hw.csr.axi4_lite import AXI4LiteSubordinate
from hw.csr.bank import CsrBank
from hw.csr.register_map import RegisterMap, unrolled_registers
from hw.logic.expose import expose

__all__ = ["ADDR_WIDTH", "CsrSample", "sample_map"]

ADDR_WIDTH = 12

_RDL = """
default regwidth = 64;
default accesswidth = 64;
addrmap csr_element {
    littleendian;
    reg { field { sw = rw; hw = r; } kept[7:0] = 0x5A; } own @ 0x00;
    reg { field { sw = r; hw = w; } told[63:0] = 0; } other @ 0x10;
};
addrmap csr_view {
    littleendian;
    reg { field { sw = r; hw = w; } place[31:0] = 0; } first @ 0x00;
    reg {
        field { sw = r; hw = na; } seven[7:0] = 7;
        field { sw = r; hw = w; } place[63:32] = 0;
    } second @ 0x08;
};
addrmap csr_sample {
    littleendian;
    reg {
        field { sw = r; hw = na; } magic[15:0] = 0xCAFE;
        field { sw = r; hw = w; } state[23:20] = 0;
    } id @ 0x000;
    reg {
        field { sw = rw; hw = r; } low[4:2] = 5;
        field { sw = rw; hw = r; } high[63:32] = 0x12345678;
    } setting @ 0x040;
    reg {
        field { sw = w; hw = r; singlepulse; } go[0:0] = 0;
        field { sw = rw; hw = r; } kept[1:1] = 1;
    } control @ 0x080;
    reg {
        field { sw = r; hw = w; } count[47:0] = 0;
    } counter @ 0x200;
    reg {
        field { sw = rw; hw = w; woclr; } seen[11:4] = 0x81;
        field { sw = r; hw = w; } now[15:12] = 0;
    } events @ 0x240;
    csr_element element[3] @ 0x400 += 0x20;
    csr_view view[3] @ 0x600 += 0x40;
    external mem { mementries = 5; memwidth = 64; sw = r; } words @ 0x800;
};
"""


def sample_map(text: str = _RDL) -> RegisterMap:
    """The register map ``csr_sample`` of ``text``."""
    return unrolled_registers("csr_sample", text, selected="view")


class CsrSample(wiring.Component):
    """The bank behind AXI4-Lite, its fields as ports, and the write strobe of the bus.

    Of what is there several times, the view and the memory, hardware shows the number of the word
    that is addressed, in the memory with its complement above.
    """

    def __init__(self) -> None:
        self._bank: Any = CsrBank(sample_map(), addr_width=ADDR_WIDTH, strobes=True)
        members = self._bank.signature.members
        self._fields = [name for name in members if name.split("_")[0] not in _HERE]
        super().__init__(
            {
                "s_axi": In(AXI4LiteSignature(addr_width=ADDR_WIDTH, data_width=64)),
                "write": Out(1),
                **{name: members[name] for name in self._fields},
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.lite = lite = AXI4LiteSubordinate(addr_width=ADDR_WIDTH, parts=True)
        m.submodules.bank = bank = self._bank
        wiring.connect(m, wiring.flipped(self.s_axi), lite.s_axi)
        wiring.connect(m, lite.bus, bank.bus)
        expose(m, self, bank, self._fields)
        word = lite.bus.address[3:]
        m.d.comb += [
            self.write.eq(lite.bus.write),
            bank.view_first_place.eq(word),
            bank.view_second_place.eq(word),
            bank.words_data.eq(Cat(word, ~word)),
        ]
        return m


_HERE = ("bus", "view", "words")
"""The members of the bank that are connected here."""
