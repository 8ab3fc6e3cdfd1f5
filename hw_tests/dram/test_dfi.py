"""The controller's commands and data in the signals of DFI, read back from JESD79-4."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.dram.dfi import DfiPort, DfiSignature, dfi_timing
from hw.dram.interface import DramSignature
from hw.dram.presets import PARTS
from hw_tests.bench import run_bench
from hw_tests.dram.dfi_phy import DfiPhy
from hw_tests.soak import for_soak

LATE = 3


class ThereAndBack(wiring.Component):
    """What is said ``there`` comes ``back`` from a PHY; ``dfi`` shows it on its way."""

    def __init__(self, part: Any) -> None:
        settings: dict[str, Any] = {"geometry": part.geometry, "timing": part.timing}
        self._port = DfiPort(**settings)
        self._phy = DfiPhy(**settings, late=LATE)
        self._shown = {
            name: Out(member.shape)
            for name, member in DfiSignature(part.geometry).members.items()
            if member.flow is Out
        }
        super().__init__(
            {
                "there": In(DramSignature(part.geometry, read_valid=True)),
                "back": Out(DramSignature(part.geometry)),
                "dfi": Out(wiring.Signature(self._shown)),
                "bad": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        m.submodules.port = port = self._port
        m.submodules.phy = phy = self._phy
        wiring.connect(m, wiring.flipped(self.there), port.dram)
        wiring.connect(m, port.dfi, phy.dfi)
        wiring.connect(m, phy.dram, wiring.flipped(self.back))
        m.d.comb += self.bad.eq(phy.bad)
        m.d.comb += [getattr(self.dfi, name).eq(getattr(port.dfi, name)) for name in self._shown]
        return m


@pytest.mark.parametrize("name", ["tiny", *for_soak(*sorted(PARTS.keys() - {"tiny"}))])
def test_dfi(name: str) -> None:
    part = PARTS[name]
    run_bench(
        ThereAndBack(part),
        top="dfi_port",
        module="hw_tests.dram.dfi_bench",
        parameters={
            "row_bits": part.geometry.row_bits,
            "column_bits": part.geometry.column_bits,
            "timing": asdict(part.timing),
            "late": LATE,
            "dfi": dfi_timing(part.timing),
        },
    )
