"""The DDR4 controller with its device, under AXI traffic."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from hw.dram.config import ControllerConfig
from hw.dram.controller import Ddr4Controller
from hw.dram.presets import DDR4_1600_16GBIT_X8, PARTS, TINY, DramPart
from hw.verilog.writer import to_verilog
from hw_tests.bench import run_bench
from hw_tests.collisions import with_useless_collisions
from hw_tests.dram.system import DramSystem, StreamSystem
from hw_tests.side_by_side import SideBySide

# All but the one that the stream is on.
SMALL = [
    part if part is TINY else part.with_capacity(2 << 20)
    for part in PARTS.values()
    if part is not DDR4_1600_16GBIT_X8
]
# No refresh is put off, so that each closes the rows.
TIGHT = replace(
    TINY,
    name="tight",
    timing=replace(TINY.timing, t_refi=TINY.timing.t_rfc + TINY.timing.beside_refresh),
)


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([TINY], id="tiny"),
        pytest.param(SMALL, id="all", marks=pytest.mark.soak),
    ],
)
def test_traffic(parts: list[DramPart]) -> None:
    systems = {part.name: DramSystem(part, trace=f"{part.name}.csv") for part in parts}
    systems["tight"] = DramSystem(TIGHT, ControllerConfig(refresh_postpone=1), trace="tight.csv")
    stream = StreamSystem(DDR4_1600_16GBIT_X8.with_capacity(32 << 20), trace="stream.csv")
    side_by_side = SideBySide({**systems, "stream": stream})
    run_bench(
        with_useless_collisions(to_verilog(side_by_side, "dram_systems")),
        top="dram_systems",
        module="hw_tests.dram.controller_bench",
        parameters={"maps": {part.name: asdict(part.geometry) for part in (*parts, TIGHT)}},
    )


@pytest.mark.skipif(shutil.which("iverilog") is None, reason="Icarus Verilog is not installed")
def test_compiles_in_icarus(tmp_path: Path) -> None:
    source = tmp_path / "system.v"
    source.write_text(to_verilog(StreamSystem(TINY, trace="trace.csv"), "system"))
    command = ["iverilog", "-g2012", "-o", str(tmp_path / "system.vvp"), str(source)]
    subprocess.run(command, check=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"queue_depth": 12}, "queue_depth must be a power of two from 8 to 256, got 12"),
        ({"queue_depth": 4}, "got 4"),
        ({"write_buffer_lines": 32}, "write_buffer_lines must be a power of two from 64"),
        ({"read_buffer_lines": 48}, "read_buffer_lines must be a power of two from 16"),
        ({"run_length": 0}, "run_length must be an integer from 1 to 255"),
        ({"refresh_postpone": 9}, "refresh_postpone must be an integer from 1 to 8"),
        ({"refresh_postpone": 0}, "got 0"),
        ({"refresh_pull_in": 9}, "refresh_pull_in must be an integer from 0 to 8"),
        ({"refresh_idle_cycles": 0}, "refresh_idle_cycles must be an integer from 1"),
        ({"reset_cycles": 0}, "reset_cycles must be an integer from 1"),
        ({"refresh": 1}, "refresh must be True or False, got 1"),
    ],
)
def test_refused_configurations(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(ControllerConfig(), **change)


def test_capacity_must_fit_the_address() -> None:
    with pytest.raises(ValueError, match="addr_width must be at least 17"):
        Ddr4Controller(geometry=TINY.geometry, timing=TINY.timing, addr_width=16, id_width=1)
