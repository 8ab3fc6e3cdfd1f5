"""A small register map with a field of each kind, and a bank of it behind AXI4-Lite."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.axi.bus import AXI4LiteSignature
from hw.csr.axi4_lite import AXI4LiteSubordinate
from hw.csr.bank import CsrBank
from hw.csr.register_map import RegisterMap, load_registers

__all__ = ["ADDR_WIDTH", "CsrSample", "sample_map"]

ADDR_WIDTH = 12

_RDL = """
addrmap csr_sample {
    default regwidth = 64;
    default accesswidth = 64;
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
};
"""


def sample_map(text: str = _RDL) -> RegisterMap:
    """The register map ``csr_sample`` of ``text``."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "sample.rdl"
        path.write_text(text)
        return load_registers("csr_sample", path)


class CsrSample(wiring.Component):
    """The bank behind AXI4-Lite, its fields as ports, and the write strobe of the bus."""

    def __init__(self) -> None:
        super().__init__(
            {
                "s_axi": In(AXI4LiteSignature(addr_width=ADDR_WIDTH, data_width=64)),
                "write": Out(1),
                "id_state": In(4),
                "setting_low": Out(3),
                "setting_high": Out(32),
                "control_go": Out(1),
                "control_kept": Out(1),
                "counter_count": In(48),
                "events_seen": In(8),
                "events_seen_kept": Out(8),
                "events_now": In(4),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.lite = lite = AXI4LiteSubordinate(addr_width=ADDR_WIDTH, parts=True)
        bank: Any = CsrBank(sample_map(), addr_width=ADDR_WIDTH, strobes=True)
        m.submodules.bank = bank
        wiring.connect(m, wiring.flipped(self.s_axi), lite.s_axi)
        m.d.comb += [
            bank.address.eq(lite.address),
            bank.write.eq(lite.write),
            bank.write_data.eq(lite.write_data),
            bank.strobes.eq(lite.strobes),
            lite.read_data.eq(bank.read_data),
            lite.hit.eq(bank.hit),
            self.write.eq(lite.write),
            bank.id_state.eq(self.id_state),
            bank.counter_count.eq(self.counter_count),
            bank.events_seen.eq(self.events_seen),
            bank.events_now.eq(self.events_now),
            self.events_seen_kept.eq(bank.events_seen_kept),
            self.setting_low.eq(bank.setting_low),
            self.setting_high.eq(bank.setting_high),
            self.control_go.eq(bank.control_go),
            self.control_kept.eq(bank.control_kept),
        ]
        return m
