"""Geometry, timing and presets: derived numbers and refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hw.dram.fabric_timing import FabricTiming
from hw.dram.geometry import DramGeometry
from hw.dram.presets import DDR4_1600_8GBIT_X16, DDR4_1600_16GBIT_X8, PARTS, part
from hw.dram.timing import DramTiming


def test_channel_of_the_paper() -> None:
    geometry = DDR4_1600_16GBIT_X8.geometry
    assert geometry.capacity_bytes == 16 << 30
    assert (geometry.banks, geometry.row_bytes, geometry.bursts_per_row) == (16, 8192, 128)
    assert (geometry.address_bits, geometry.line_bits) == (17, 28)
    small = geometry.with_capacity(64 << 20)
    assert small == replace(geometry, rows=512)
    assert small.address_bits == 10
    assert DDR4_1600_8GBIT_X16.geometry.capacity_bytes == 4 << 30


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bank_groups": 1}, "bank_groups must be a power of two from 2 to 4, got 1"),
        ({"bank_groups": 8}, "got 8"),
        ({"banks_per_group": 3}, "banks_per_group must be"),
        ({"rows": 1}, "rows must be"),
        ({"columns": 128}, "columns must be a power of two from 256"),
    ],
)
def test_refused_geometry(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(DDR4_1600_16GBIT_X8.geometry, **change)


@pytest.mark.parametrize("capacity", [0, 1 << 17, (1 << 20) + 64, 3 << 20])
def test_refused_capacity(capacity: int) -> None:
    with pytest.raises(ValueError, match="capacity must be 131072 bytes"):
        DDR4_1600_16GBIT_X8.with_capacity(capacity)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"t_rcd": 0}, "t_rcd must be a positive integer, got 0"),
        ({"cl": 8}, "cl must be at least 9"),
        ({"cl": 4, "cwl": 4}, "cwl must be at least 5"),
        ({"t_rc": 27}, "t_rc must be at least 28"),
        ({"t_ccd_l": 9}, "t_ccd_l at most 8"),
        ({"t_ccd_s": 5}, "t_ccd_s must be 4"),
        ({"t_rrd_l": 3}, "t_rrd_l must be at least 4"),
        ({"t_wtr_l": 1}, "t_wtr_l must be at least 2"),
        ({"t_refi": 529}, r"t_refi must be at least 530 .* t_rfc may be 439\), got 529"),
    ],
)
def test_refused_timing(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(DDR4_1600_16GBIT_X8.timing, **change)


def test_names() -> None:
    assert all(part(name).name == name for name in PARTS)
    with pytest.raises(ValueError, match="known parts: ddr4_1600_16gbit_x8"):
        part("ddr5")


@pytest.mark.parametrize("name", PARTS)
def test_fabric_distances_are_long_enough_and_no_longer(name: str) -> None:
    timing: DramTiming = PARTS[name].timing
    fabric = FabricTiming.of(timing)
    activate, precharge = fabric.activate_slot, fabric.precharge_slot
    assert len({0, activate, precharge}) == 3
    for cycles, first, second, tck in (
        (fabric.activate_to_column, activate, 0, timing.t_rcd),
        (fabric.precharge_to_activate, precharge, activate, timing.t_rp),
        (fabric.activate_to_precharge, activate, precharge, timing.t_ras),
        (fabric.read_to_precharge, 0, precharge, timing.t_rtp),
        (fabric.write_to_precharge, 0, precharge, timing.cwl + 4 + timing.t_wr),
        (fabric.activate_to_activate, activate, activate, timing.t_rrd_s),
        (fabric.activate_to_activate_same_group, activate, activate, timing.t_rrd_l),
        (fabric.four_activates, activate, activate, timing.t_faw),
        (fabric.column_to_column_same_group, 0, 0, timing.t_ccd_l),
        (fabric.read_to_write, 0, 0, timing.cl + 6 - timing.cwl),
        (fabric.write_to_read, 0, 0, timing.cwl + 4 + timing.t_wtr_s),
        (fabric.write_to_read_same_group, 0, 0, timing.cwl + 4 + timing.t_wtr_l),
        (fabric.refresh_to_activate, activate, activate, timing.t_rfc),
    ):
        assert tck <= 4 * cycles + second - first < tck + 4
    assert 4 * fabric.refresh_interval <= timing.t_refi


def test_row_cycle_covers_t_rc() -> None:
    timing = replace(DDR4_1600_16GBIT_X8.timing, t_rc=60)
    fabric = FabricTiming.of(timing)
    assert 4 * (fabric.activate_to_precharge + fabric.precharge_to_activate) >= timing.t_rc


def test_geometry_is_keyword_only() -> None:
    with pytest.raises(TypeError):
        DramGeometry(4, 4, 8)  # pyright: ignore[reportCallIssue]
