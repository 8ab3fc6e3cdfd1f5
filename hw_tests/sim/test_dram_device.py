"""The DRAM devices of channel and vault: timing rules at their edges, data, refusals."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from hw.dram.presets import DDR4_1600_16GBIT_X8, DDR4_2400_8GBIT_X8
from hw.pim.vault.timing import vault_part
from hw.sim.dram_device import Ddr4Device, DramDevice
from hw.sim.vault_device import VaultDevice
from hw.verilog.writer import to_verilog
from hw_tests.bench import run_bench
from hw_tests.dram.probes import PROBE_TIMING
from hw_tests.pim.vault.vault_probes import PROBE_ROWS, PROBE_TIMINGS
from hw_tests.side_by_side import SideBySide

KINDS: dict[str, tuple[type[DramDevice], Any, list[Any]]] = {
    "ddr4": (
        Ddr4Device,
        replace(DDR4_1600_16GBIT_X8.geometry, rows=4, columns=256),
        [PROBE_TIMING, DDR4_1600_16GBIT_X8.timing, DDR4_2400_8GBIT_X8.timing],
    ),
    "vault": (
        VaultDevice,
        replace(vault_part("hmc2").geometry, rows=PROBE_ROWS),
        list(PROBE_TIMINGS.values()),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_rules_and_data(kind: str) -> None:
    device, geometry, timings = KINDS[kind]

    class WithoutCcd(device):
        """No sensible timing lets data overlap without breaking tCCD: that rule is off."""

        def parameters(self) -> dict[str, int]:
            return {**super().parameters(), "T_CCD_S": 1, "T_CCD_L": 1}

    class HalfTheRows(device):
        """Its commands have more address bits than its rows need."""

        def parameters(self) -> dict[str, int]:
            return {**super().parameters(), "ROW_BITS": geometry.row_bits - 1}

    devices = [device(geometry=geometry, timing=timing) for timing in timings]
    devices += [each(geometry=geometry, timing=timings[0]) for each in (WithoutCcd, HalfTheRows)]
    run_bench(
        SideBySide({f"device_{index}": each for index, each in enumerate(devices)}),
        top=f"{kind}_devices",
        module="hw_tests.sim.dram_device_bench",
        parameters={
            "kind": kind,
            "timings": [asdict(timing) for timing in timings],
            "rows": geometry.rows,
        },
    )


@pytest.mark.parametrize("kind", KINDS)
def test_is_for_verilog_only(kind: str) -> None:
    device, geometry, timings = KINDS[kind]
    simulated = device(geometry=geometry, timing=timings[0])
    with pytest.raises(TypeError, match="to_verilog"):
        simulated.elaborate(None)
    assert "module dram_device" in to_verilog(simulated, "device")
