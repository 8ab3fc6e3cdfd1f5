"""A PHY on the DFI of a controller, written from the truth table of JESD79-4."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.dram.dfi import DfiSignature
from hw.dram.fabric_timing import read_latency
from hw.dram.geometry import DramGeometry
from hw.dram.interface import DramCommand, DramSignature
from hw.dram.timing import DramTiming

__all__ = ["DfiPhy"]


class DfiPhy(wiring.Component):
    """Gives a simulated DRAM what the signals of DFI say, and shows its data ``late`` cycles later.

    Write data without their enable are lost. ``bad`` is set, until reset, by what no DDR4 device in
    its normal operation is to be shown: mode registers, calibration, reserved codes, an automatic
    precharge, a burst chop, low CKE or RESET_n.
    """

    def __init__(self, *, geometry: DramGeometry, timing: DramTiming, late: int = 0) -> None:
        self._geometry = geometry
        self._read_latency = read_latency(timing)
        self._late = late
        super().__init__(
            {
                "dfi": In(DfiSignature(geometry)),
                "dram": Out(DramSignature(geometry)),
                "bad": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        dfi: Any = self.dfi
        dram: Any = self.dram
        bad = Signal(4)
        for n in range(4):
            address = getattr(dfi, f"address_p{n}")
            act_n, ras_n, cas_n, we_n, cs_n = (
                getattr(dfi, f"{name}_p{n}") for name in ("act_n", "ras_n", "cas_n", "we_n", "cs_n")
            )
            command = getattr(dram, f"command_p{n}")
            row = Cat(address[:14], we_n, cas_n, ras_n, address[17:])
            m.d.comb += [
                getattr(dram, f"bank_group_p{n}").eq(getattr(dfi, f"bg_p{n}")),
                getattr(dram, f"bank_p{n}").eq(getattr(dfi, f"bank_p{n}")),
                getattr(dram, f"address_p{n}").eq(Mux(act_n, address[:10], row)),
            ]
            wrong = Signal(name=f"wrong_p{n}")
            with m.If(cs_n):
                m.d.comb += command.eq(DramCommand.NOP)
            with m.Elif(~act_n):
                m.d.comb += command.eq(DramCommand.ACT)
            with m.Else(), m.Switch(Cat(we_n, cas_n, ras_n)):
                with m.Case("001"):
                    m.d.comb += command.eq(DramCommand.REF)
                with m.Case("010"):
                    m.d.comb += command.eq(Mux(address[10], DramCommand.PREA, DramCommand.PRE))
                with m.Case("100"):
                    m.d.comb += [
                        command.eq(DramCommand.WR),
                        wrong.eq(address[10] | ~address[12]),
                    ]
                with m.Case("101"):
                    m.d.comb += [
                        command.eq(DramCommand.RD),
                        wrong.eq(address[10] | ~address[12]),
                    ]
                with m.Case("111"):
                    m.d.comb += command.eq(DramCommand.NOP)
                with m.Default():
                    m.d.comb += wrong.eq(1)
            m.d.comb += bad[n].eq(
                wrong | ~getattr(dfi, f"cke_p{n}") | ~getattr(dfi, f"reset_n_p{n}")
            )
            part = slice(128 * n, 128 * (n + 1))
            with m.If(getattr(dfi, f"wrdata_en_p{n}")):
                m.d.comb += [
                    dram.write_data[part].eq(getattr(dfi, f"wrdata_p{n}")),
                    dram.write_mask[part.start // 8 : part.stop // 8].eq(
                        getattr(dfi, f"wrdata_mask_p{n}")
                    ),
                ]
            enable = getattr(dfi, f"rddata_en_p{n}")
            for _ in range(self._read_latency + self._late):
                later = Signal()
                m.d.sync += later.eq(enable)
                enable = later
            word = dram.read_data[part]
            for _ in range(self._late):
                later = Signal(128)
                m.d.sync += later.eq(word)
                word = later
            m.d.comb += [
                getattr(dfi, f"rddata_valid_w{n}").eq(enable),
                getattr(dfi, f"rddata_w{n}").eq(word),
            ]
        with m.If(bad.any()):
            m.d.sync += self.bad.eq(1)
        return m
