"""Timing and geometry of a vault: what is refused, distances in fabric cycles, the address map."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest
from amaranth.lib import data

from golden.pim.vault_map import VaultAddressMap
from hw.pim.vault.distances import VaultDistances
from hw.pim.vault.geometry import VaultGeometry
from hw.pim.vault.timing import VAULT_PARTS, vault_part


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cl": 0}, "cl must be a positive integer, got 0"),
        ({"t_rp": 1.5}, "t_rp must be an integer, got 1.5"),
        ({"t_wr": 161}, "t_wr must be at most 160 tCK, got 161"),
        ({"cwl": 3}, r"cwl must be at least 4 \(the data paths are registered\), got 3"),
        ({"cl": 12}, "cl must be at least 13"),
        ({"t_ccd_s": 3}, "t_ccd_s must be at least 4"),
        ({"t_ccd_l": 4, "t_ccd_s": 5}, "t_ccd_l must be at least 5"),
        ({"t_rrd_l": 6}, "t_rrd_l must be at least 7"),
        ({"t_wtr_l": 2}, "t_wtr_l must be at least 3"),
        ({"t_rc": 33}, "t_rc must be at least 34"),
        ({"t_faw": 6}, "t_faw must be at least 7"),
        ({"t_refi": 200}, "t_refi must be at least 201"),
    ],
)
def test_refused_timing(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(vault_part("hmc2").timing, **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 1}, "layers must be a power of two from 2 to 8, got 1"),
        ({"banks_per_layer": 3}, "banks_per_layer must be a power of two from 2 to 4, got 3"),
        ({"rows": 1}, "rows must be a power of two from 2 to 262144, got 1"),
    ],
)
def test_refused_geometry(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VaultGeometry(**change)


def test_parts() -> None:
    part = vault_part("hmc2")
    # 8 GB in 32 vaults, 10 GB/s from 32 bytes in four clocks.
    assert part.geometry.capacity_bytes == (8 << 30) // 32
    assert 32 / (4 * part.timing.tck_ps / 1000) == 10.0
    assert part.with_capacity(1 << 13).geometry.rows == 2
    for wrong in (1 << 12, 3 << 13, 5000):
        with pytest.raises(ValueError, match=r"4096 bytes .* got"):
            part.with_capacity(wrong)
    with pytest.raises(ValueError, match="no vault part 'hbm'; known parts: hmc2, cashmc, tiny"):
        vault_part("hbm")


@pytest.mark.parametrize("name", VAULT_PARTS)
def test_distances_are_the_least_that_keep_the_clocks(name: str) -> None:
    timing = vault_part(name).timing
    found = VaultDistances.of(timing)
    slot = found.activate_slot
    row_cycle = max(timing.t_rc, timing.t_ras + timing.t_rp)
    for cycles, clocks, first, second in (
        (found.activate_to_column, timing.t_rcd, slot, 0),
        (found.activate_to_activate, timing.t_rrd_s, slot, slot),
        (found.activate_to_activate_same_layer, timing.t_rrd_l, slot, slot),
        (found.four_activates, timing.t_faw, slot, slot),
        (found.column_to_column_same_layer, timing.t_ccd_l, 0, 0),
        (found.read_to_write, timing.cl + 6 - timing.cwl, 0, 0),
        (found.write_to_read, timing.cwl + 4 + timing.t_wtr_s, 0, 0),
        (found.write_to_read_same_layer, timing.cwl + 4 + timing.t_wtr_l, 0, 0),
        (found.refresh_to_activate, timing.t_rfc, slot, slot),
        (found.activate_to_column + found.read_to_activate, row_cycle, slot, slot),
    ):
        distance = 4 * cycles + second - first
        assert clocks <= distance < clocks + 4
    assert 4 * found.write_to_activate + slot >= timing.cwl + 4 + timing.t_wr + timing.t_rp


def test_address_fields() -> None:
    for geometry in (VaultGeometry(rows=4), VaultGeometry(layers=2, banks_per_layer=4, rows=2)):
        decoder = VaultAddressMap(**asdict(geometry))
        assert 1 << geometry.address_bits == decoder.capacity_bytes
        for address in range(0, geometry.capacity_bytes, 32):
            place: Any = data.Const(geometry.address_layout, address)
            layer = 2 * place.layer_high + place.layer_low
            found = (layer, place.bank, place.row, place.column)
            assert found == decoder.decode(address)
