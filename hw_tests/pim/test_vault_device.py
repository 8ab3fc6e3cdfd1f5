"""The device of a vault: timing rules at their edges, data, refusals."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.pim.vault_device import VaultDevice
from hw.pim.vault_interface import VaultSignature
from hw.pim.vault_timing import vault_part
from hw.verilog import to_verilog
from hw_tests.bench import run_bench
from hw_tests.pim.vault_probes import PROBE_ROWS, PROBE_TIMINGS

GEOMETRY = replace(vault_part("hmc2").geometry, rows=PROBE_ROWS)


class _WithoutCcd(VaultDevice):
    """No sensible timing lets data overlap without breaking tCCD, so that rule is switched off."""

    def parameters(self) -> dict[str, int]:
        return {**super().parameters(), "T_CCD_S": 1, "T_CCD_L": 1}


class _HalfTheRows(VaultDevice):
    """A device whose commands have more address bits than its rows need."""

    def parameters(self) -> dict[str, int]:
        return {**super().parameters(), "ROW_BITS": self.geometry.row_bits - 1}


class _Devices(wiring.Component):
    """Several devices under the same commands, each with outputs of its own."""

    dram: Any

    def __init__(self, devices: list[VaultDevice]) -> None:
        self._devices = devices
        members = {
            name: member
            for name, member in VaultSignature(GEOMETRY).members.items()
            if name != "read_data"
        }
        super().__init__(
            {
                "dram": In(wiring.Signature(members)),
                **{
                    f"{name}_{index}": Out(width)
                    for index in range(len(devices))
                    for name, width in (
                        ("read_data", 256),
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
    timings = list(PROBE_TIMINGS.values())
    devices = [VaultDevice(geometry=GEOMETRY, timing=timing) for timing in timings]
    devices.append(_WithoutCcd(geometry=GEOMETRY, timing=timings[0]))
    devices.append(_HalfTheRows(geometry=GEOMETRY, timing=timings[0]))
    run_bench(
        _Devices(devices),
        top="vault_devices",
        module="hw_tests.pim.vault_device_bench",
        parameters={"timings": [asdict(timing) for timing in timings]},
    )


def test_is_for_verilog_only() -> None:
    device = VaultDevice(geometry=GEOMETRY, timing=vault_part("tiny").timing)
    with pytest.raises(TypeError, match="to_verilog"):
        device.elaborate(None)
    assert "module vault_device" in to_verilog(device, "device")
