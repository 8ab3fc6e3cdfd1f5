"""The DRAM device: timing rules at their edges, data, refusals."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.dram.device import Ddr4Device
from hw.dram.interface import DramSignature
from hw.dram.presets import DDR4_1600_16GBIT_X8, DDR4_2400_8GBIT_X8
from hw.verilog import to_verilog
from hw_tests.bench import run_bench
from hw_tests.dram.probes import PROBE_TIMING

GEOMETRY = replace(DDR4_1600_16GBIT_X8.geometry, rows=4, columns=256)
TIMINGS = [PROBE_TIMING, DDR4_1600_16GBIT_X8.timing, DDR4_2400_8GBIT_X8.timing]


class _WithoutCcd(Ddr4Device):
    """No JEDEC timing lets data overlap without breaking tCCD, so that rule is switched off."""

    def parameters(self) -> dict[str, int]:
        return {**super().parameters(), "T_CCD_S": 1, "T_CCD_L": 1}


class _Devices(wiring.Component):
    """Several devices under the same commands, each with outputs of its own."""

    dram: Any

    def __init__(self, devices: list[Ddr4Device]) -> None:
        self._devices = devices
        members = {
            name: member
            for name, member in DramSignature(GEOMETRY).members.items()
            if name != "read_data"
        }
        super().__init__(
            {
                "dram": In(wiring.Signature(members)),
                **{
                    f"{name}_{index}": Out(width)
                    for index in range(len(devices))
                    for name, width in (
                        ("read_data", 512),
                        ("violation", 1),
                        ("violation_code", 8),
                        ("violation_tck", 48),
                    )
                },
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        for index, device in enumerate(self._devices):
            m.submodules[f"device_{index}"] = device
            for name in self.dram.signature.members:
                m.d.comb += getattr(device.dram, name).eq(getattr(self.dram, name))
            m.d.comb += getattr(self, f"read_data_{index}").eq(device.dram.read_data)
            for name in ("violation", "violation_code", "violation_tck"):
                m.d.comb += getattr(self, f"{name}_{index}").eq(getattr(device, name))
        return m


def test_rules_and_data() -> None:
    devices = [Ddr4Device(geometry=GEOMETRY, timing=timing) for timing in TIMINGS]
    devices.append(_WithoutCcd(geometry=GEOMETRY, timing=PROBE_TIMING))
    run_bench(
        _Devices(devices),
        top="ddr4_devices",
        module="hw_tests.dram.device_bench",
        parameters={"timings": [asdict(timing) for timing in TIMINGS]},
    )


def test_is_for_verilog_only() -> None:
    device = Ddr4Device(geometry=GEOMETRY, timing=PROBE_TIMING)
    with pytest.raises(TypeError, match="to_verilog"):
        device.elaborate(None)
    assert "module ddr4_device" in to_verilog(device, "device")


def test_long_latency_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 40"):
        Ddr4Device(geometry=GEOMETRY, timing=replace(PROBE_TIMING, cl=41))
