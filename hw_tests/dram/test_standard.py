"""Numbers that a DDR4 has: those of the parts, those of another clock, and what is refused."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from fractions import Fraction
from math import ceil
from typing import Any

import pytest

from hw.axdimm.config import configure
from hw.dram.presets import PARTS, DramPart
from hw.dram.standard import clocks, standard_timing
from hw.pim.vault.timing import vault_part

COLUMNS = "tck_ps cl cwl t_rcd t_rp t_ras t_rc t_ccd_l t_rrd_s t_rrd_l t_faw t_wr t_wtr_s t_wtr_l"
# Clocks as data sheets and public simulators print them, by part; t_rtp, t_rfc and t_refi at last.
PRINTED = {
    "ddr4_1600_16gbit_x8": (1250, 11, 9, 11, 11, 28, 39, 5, 4, 5, 20, 12, 2, 6, 6, 440, 6240),
    "ddr4_1600_8gbit_x16": (1250, 11, 9, 11, 11, 28, 39, 5, 5, 6, 28, 12, 2, 6, 6, 280, 6240),
    "ddr4_1866_8gbit_x8": (1071, 13, 10, 13, 13, 32, 45, 5, 4, 5, 22, 14, 3, 7, 7, 327, 7277),
    "ddr4_2133_8gbit_x4": (937, 15, 11, 15, 15, 36, 51, 6, 4, 6, 16, 16, 3, 8, 8, 374, 8318),
    "ddr4_2400_8gbit_x8": (833, 16, 12, 16, 16, 39, 55, 6, 4, 6, 26, 18, 3, 9, 9, 421, 9360),
    "ddr4_2400_8gbit_x16": (833, 17, 12, 17, 17, 39, 56, 6, 7, 8, 36, 18, 3, 9, 9, 421, 9360),
    "ddr4_2666_16gbit_x8": (750, 19, 14, 19, 19, 43, 62, 7, 4, 7, 28, 20, 4, 10, 10, 734, 10397),
    "ddr4_2933_16gbit_x4": (682, 21, 16, 21, 21, 47, 68, 8, 4, 8, 16, 22, 4, 11, 11, 807, 11436),
    "ddr4_3200_8gbit_x8": (625, 22, 16, 22, 22, 52, 74, 8, 4, 8, 34, 24, 4, 12, 12, 560, 12480),
    "ddr4_3200_16gbit_x16": (625, 22, 16, 22, 22, 52, 74, 8, 9, 11, 48, 24, 4, 12, 12, 880, 12480),
}
NAMES = [*COLUMNS.split(), "t_rtp", "t_rfc", "t_refi"]
CLOCKS_PS = (1250, 1071, 937, 833, 750, 682, 625)
STANDARD = [name for name in PARTS if name != "tiny"]


def numbers(part: DramPart) -> tuple[int, ...]:
    assert part.timing.t_ccd_s == 4
    return tuple(getattr(part.timing, name) for name in NAMES)


def test_parts_are_those_printed() -> None:
    assert {name: numbers(PARTS[name]) for name in STANDARD} == PRINTED


@pytest.mark.parametrize(
    ("width_bits", "t_rrd_s", "t_rrd_l", "t_faw"),
    [
        (4, (4, 4, 4, 4, 4, 4, 4), (5, 5, 6, 6, 7, 8, 8), (16, 16, 16, 16, 16, 16, 16)),
        (8, (4, 4, 4, 4, 4, 4, 4), (5, 5, 6, 6, 7, 8, 8), (20, 22, 23, 26, 28, 31, 34)),
        (16, (5, 5, 6, 7, 8, 8, 9), (6, 6, 7, 8, 9, 10, 11), (28, 28, 32, 36, 40, 44, 48)),
    ],
)
def test_activates_by_page_and_speed(
    width_bits: int, t_rrd_s: tuple[int, ...], t_rrd_l: tuple[int, ...], t_faw: tuple[int, ...]
) -> None:
    """As printed from DDR4-1600 to DDR4-3200; and refreshes by density."""
    for tck_ps, *expected in zip(CLOCKS_PS, t_rrd_s, t_rrd_l, t_faw, strict=True):
        timing = standard_timing(tck_ps, bin_ps=13750, density_gbit=8, width_bits=width_bits)
        assert [timing[name] for name in ("t_rrd_s", "t_rrd_l", "t_faw")] == expected
    for gbit, t_rfc in ((2, 128), (4, 208), (8, 280), (16, 440)):
        timing = standard_timing(1250, bin_ps=13750, density_gbit=gbit, width_bits=width_bits)
        assert timing["t_rfc"] == t_rfc


@pytest.mark.parametrize("name", STANDARD)
def test_a_part_is_as_large_as_its_dies(name: str) -> None:
    """64 data bits of dies with the density and width that the name says."""
    _, _, density, width = name.split("_")
    gbit, bits = int(density.removesuffix("gbit")), int(width.removeprefix("x"))
    part = PARTS[name]
    assert 8 * part.geometry.capacity_bytes == (gbit << 30) * 64 // bits
    assert (part.density_gbit, part.width_bits, part.geometry.columns) == (gbit, bits, 1024)
    assert configure(part=name).address_width == part.geometry.capacity_bytes.bit_length() - 1


@pytest.mark.parametrize(
    ("duration_ps", "tck_ps", "expected"),
    [(13750, 1250, 11), (13320, 833, 16), (10025, 1000, 10), (10026, 1000, 11), (1, 1000, 0)],
)
def test_rounding(duration_ps: int, tck_ps: int, expected: int) -> None:
    assert clocks(duration_ps, tck_ps) == expected


# Nanoseconds of an x8 die of 16 Gbit, and of the bin of the paper's part, by the grade of the clock
# (JESD79-4): tRAS, tCCD_L, tRRD_S, tRRD_L, tFAW, and CWL in clocks.
GRADES = {
    (1600, 1400, 1250): ("35", "6.25", "5", "6", "25", 9),
    (1249, 1100): ("34", "5.355", "4.2", "5.3", "23", 10),
    (1000, 938): ("33", "5.355", "3.7", "5.3", "21", 11),
    (900,): ("32", "5", "3.3", "4.9", "21", 12),
    (800,): ("32", "5", "3", "4.9", "21", 14),
    (700,): ("32", "5", "2.7", "4.9", "21", 16),
    (640, 625): ("32", "5", "2.5", "4.9", "21", 16),
}


@pytest.mark.parametrize(
    ("tck_ps", "grade"), [(tck_ps, grade) for key, grade in GRADES.items() for tck_ps in key]
)
def test_times_follow_the_clock(tck_ps: int, grade: tuple[Any, ...]) -> None:
    part = configure(tck_ps=tck_ps).part
    timing = part.timing

    def least(ns: str) -> int:
        return ceil(Fraction(ns) * 1000 / tck_ps - Fraction("0.025"))

    t_ras, t_ccd_l, t_rrd_s, t_rrd_l, t_faw, cwl = grade
    row = least("13.75")
    assert asdict(timing) == {
        "tck_ps": tck_ps,
        "cl": max(row, cwl),
        "cwl": cwl,
        "t_rcd": row,
        "t_rp": row,
        "t_ras": least(t_ras),
        "t_rc": least(str(Fraction(t_ras) + Fraction("13.75"))),
        "t_ccd_s": 4,
        "t_ccd_l": max(5, least(t_ccd_l)),
        "t_rrd_s": max(4, least(t_rrd_s)),
        "t_rrd_l": max(4, least(t_rrd_l)),
        "t_faw": max(20, least(t_faw)),
        "t_wr": least("15"),
        "t_wtr_s": max(2, least("2.5")),
        "t_wtr_l": max(4, least("7.5")),
        "t_rtp": max(4, least("7.5")),
        "t_rfc": least("550"),
        "t_refi": 7_800_000 // tck_ps,
    }
    assert part.name == "ddr4_1600_16gbit_x8" + ("" if tck_ps == 1250 else "_changed")


def test_what_is_given_does_not_follow() -> None:
    timing = configure(tck_ps=625, t_rcd=30, t_refi=9000).part.timing
    assert (timing.t_rcd, timing.t_refi, timing.t_rp, timing.t_rfc) == (30, 9000, 22, 880)
    # 160 ns every 2 us, which no standard says, are still so long.
    tiny = configure("tiny", tck_ps=625).part.timing
    assert (tiny.t_rfc, tiny.t_refi, tiny.t_rcd) == (256, 3200, 22)
    for part in PARTS.values():
        assert part.timing_at(part.timing.tck_ps, allow_nonstandard=True) == asdict(part.timing)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"t_rfc": 10},
            "t_rfc must be at least 440 tCK, got 10: JESD79-4 has no such DDR4 of 16 Gbit x8",
        ),
        ({"t_rfc": 439}, "at least 440 tCK, got 439"),
        ({"part": "ddr4_2400_8gbit_x8", "t_rfc": 420}, "at least 421 tCK, got 420"),
        ({"tck_ps": 625, "t_rcd": 11, "t_rp": 19}, "t_rcd .* 20 tCK, got 11; t_rp .* 20 tCK, got"),
        ({"t_rcd": 9}, "t_rcd must be at least 10 tCK, got 9"),
        ({"t_ras": 27}, "t_ras must be at least 28"),
        ({"t_rc": 37}, "t_rc must be at least 38"),
        ({"cl": 9}, "cl must be at least 10"),
        ({"tck_ps": 750, "cwl": 12}, "cwl must be at least 14"),
        ({"t_ccd_l": 4}, "t_ccd_l must be at least 5"),
        ({"t_rrd_l": 4}, "t_rrd_l must be at least 5"),
        ({"part": "ddr4_1600_8gbit_x16", "t_rrd_s": 4}, "t_rrd_s must be at least 5"),
        ({"part": "ddr4_2133_8gbit_x4", "t_faw": 15}, "t_faw must be at least 16"),
        ({"t_wr": 11}, "t_wr must be at least 12"),
        ({"t_wtr_s": 1}, "t_wtr_s must be at least 2"),
        ({"t_wtr_l": 5}, "t_wtr_l must be at least 6"),
        ({"t_rtp": 5}, "t_rtp must be at least 6"),
        ({"t_refi": 6241}, "t_refi must be at most 6240 tCK, got 6241"),
        ({"bank_groups": 2}, "bank_groups must be 4, got 2: .* choose another part"),
        ({"part": "ddr4_3200_16gbit_x16", "bank_groups": 4}, "bank_groups must be 2, got 4"),
        ({"banks_per_group": 2}, "banks_per_group must be 4, got 2"),
        ({"columns": 512}, "columns must be 1024, got 512"),
        ({"rows": 1 << 18}, "rows must be at most 131072, got 262144"),
        ({"capacity_bytes": 32 << 30}, "rows must be at most 131072, got 262144"),
        (
            {"tck_ps": 624},
            "tck_ps must be an integer from 625 to 1600, .* got 624: .* allow_nonstandard=true",
        ),
        ({"tck_ps": 1601}, "got 1601"),
        ({"tck_ps": 1000.0}, r"got 1000\.0"),
        ({"tck_ps": "1000"}, "got '1000'"),
        ({"tck_ps": 0}, "got 0"),
        ({"tck_ps": 0, "allow_nonstandard": True}, "tck_ps must be an integer from 1 .* got 0"),
        ({"allow_nonstandard": 1}, "allow_nonstandard must be True or False, got 1"),
        ({"preset": "tiny", "allow_nonstandard": False}, "columns must be 1024, got 256"),
    ],
)
def test_what_no_ddr4_has_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        configure(**options)
    if options.keys().isdisjoint({"allow_nonstandard", "tck_ps"}):
        part = configure(**options, allow_nonstandard=True).part
        assert part.name == f"{options.get('part', 'ddr4_1600_16gbit_x8')}_changed"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width_bits": 32}, "one of 4, 8, 16, got 32"),
        ({"density_gbit": 3}, "2, 4, 8, 16, got 3"),
        ({"bin_ps": 0}, "bin_ps must be .* got 0"),
        ({"bin_ps": 12499, "allow_nonstandard": False}, "bin_ps must be .*12500.* got 12499"),
    ],
)
def test_dies_that_do_not_exist(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(PARTS["tiny"], **change)


def test_the_fastest_bins_are_taken() -> None:
    """1600J, 2133N and 3200W of the standard."""
    for tck_ps, row, t_ras in ((1250, 10, 28), (937, 14, 36), (625, 20, 52)):
        config = configure(tck_ps=tck_ps, cl=row, t_rcd=row, t_rp=row, t_rc=row + t_ras)
        assert config.part.timing.t_rcd == row


@pytest.mark.parametrize("part", [PARTS["ddr4_2400_8gbit_x8"], PARTS["tiny"], vault_part("hmc2")])
def test_a_changed_part_has_another_name(part: Any) -> None:
    name = part.name
    for of in ("timing", "geometry"):
        figures = getattr(part, of)
        for field in fields(figures):
            value = getattr(figures, field.name)
            for other in (value + 1, value - 1, 2 * value, value // 2):
                loose = {"allow_nonstandard": True} if isinstance(part, DramPart) else {}
                try:
                    changed = replace(
                        part, **{of: replace(figures, **{field.name: other})}, **loose
                    )
                except ValueError:
                    continue
                kept = field.name == "rows" and (other < value or not name.startswith("ddr4"))
                assert changed.name == (name if kept else f"{name}_changed"), field.name
                assert replace(changed, **{of: figures}).name == name
    assert replace(part, name="mine", timing=replace(part.timing, t_rp=30)).name == "mine"
    assert part.with_capacity(part.geometry.capacity_bytes).name == name
