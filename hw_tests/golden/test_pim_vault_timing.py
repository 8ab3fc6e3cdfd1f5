"""The trace checker and the address map of a vault: rules at their edges, figures, refusals."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from golden.pim.vault_map import VaultAddressMap
from golden.pim.vault_timing import VAULT_TABLES, VaultChecker, VaultTable, check_vault_trace
from hw.pim.vault.timing import VAULT_PARTS, VaultTiming
from hw_tests.dram.probes import Command, Probe, act
from hw_tests.golden.edges import broken_rules, check_edge, play
from hw_tests.pim.vault.vault_probes import PROBE_ROWS, PROBE_TIMINGS, vault_probes


def _table(timing: VaultTiming) -> VaultTable:
    values = asdict(timing)
    del values["tck_ps"]
    return VaultTable(layers=8, banks_per_layer=2, rows=PROBE_ROWS, **values)


@pytest.mark.parametrize(
    ("timing", "probe"),
    [
        pytest.param(timing, probe, id=f"{name}-{probe.name}")
        for name, timing in PROBE_TIMINGS.items()
        for probe in vault_probes(timing)
    ],
)
def test_rule_at_its_edge(timing: VaultTiming, probe: Probe) -> None:
    check_edge(probe, lambda: VaultChecker(_table(timing)))


def test_other_rules() -> None:
    table = replace(_table(PROBE_TIMINGS["distinct"]), t_ccd_s=1, t_ccd_l=1)
    for distance, rules in ((3, ["data bus overlap"]), (4, [])):
        checker = VaultChecker(table)
        read = (Command(80, "RD"), Command(80 + distance, "RD", 1))
        play(checker, act(20), act(40, 1), *read)
        assert broken_rules(checker) == rules
    checker = VaultChecker(table)
    play(checker, Command(20, "ACT", address=PROBE_ROWS), Command(20, "REF"))
    assert {"row range", "order of time"} < set(broken_rules(checker))


def test_hardware_has_the_same_figures() -> None:
    """Both were taken from the sources, separately."""
    assert set(VAULT_TABLES) == set(VAULT_PARTS)
    for name, part in VAULT_PARTS.items():
        table = asdict(VAULT_TABLES[name])
        for key, value in {**asdict(part.geometry), **asdict(part.timing)}.items():
            if key != "tck_ps":
                assert value == table.pop(key), (name, key)
        assert table == {}


HEADER = [
    "# nearmem vault trace v1 preset=tiny tck_ps=800\n",
    "tck,vault,command,layer,bank,row,column\n",
]


def test_trace() -> None:
    lines = ["1,0,ACT,6,1,3,\n", "20,0,RD,6,1,,0\n", "28,0,RDA,6,1,,7\n", "100,0,REF,,,,\n"]
    report = check_vault_trace([*HEADER, *lines])
    assert report.violations == []
    assert report.counts == {"ACT": 1, "RD": 1, "RDA": 1, "REF": 1}
    assert (report.preset, report.last_tck, report.longest_refresh_gap) == ("tiny", 100, 100)
    late = f"{100 + VAULT_TABLES['tiny'].t_refi + 1},0,ACT,0,0,0,\n"
    report = check_vault_trace([*HEADER, *lines, late])
    assert [violation.rule for violation in report.violations] == ["tREFI"]
    few = HEADER[0].replace("tiny", "tiny layers=4 banks_per_layer=2 rows=2")
    with pytest.raises(ValueError, match=r"no bank 6\.1"):
        check_vault_trace([few, HEADER[1], *lines])
    report = check_vault_trace([few, HEADER[1], "1,0,ACT,3,1,2,\n"])
    assert [violation.rule for violation in report.violations] == ["row range"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["tck,command\n"], "not a vault trace"),
        ([HEADER[0].replace("tiny", "huge"), HEADER[1]], "known: hmc2"),
        ([HEADER[0].replace("tiny", "tiny rows=0"), HEADER[1]], "rows in the header .* got '0'"),
        ([HEADER[0], "tck,channel\n"], "column names"),
        ([*HEADER, "4,0,PRE,0,0,,\n"], "unknown command"),
        ([*HEADER, "4,0,ACT,8,0,1,\n"], "no bank"),
        ([*HEADER, "4,0,ACT,0,0,,\n"], "without a row"),
        ([*HEADER, "4,0,RD,0,0,,\n"], "without a column"),
    ],
)
def test_malformed_traces(lines: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_vault_trace(lines)


def test_address_map() -> None:
    decoder = VaultAddressMap(layers=8, banks_per_layer=2, rows=4)
    assert decoder.capacity_bytes == 16384
    for address, place in (
        (0, (0, 0, 0, 0)),
        (31, (0, 0, 0, 0)),
        (32, (1, 0, 0, 0)),
        (64, (0, 0, 0, 1)),
        (511, (1, 0, 0, 7)),
        (512, (2, 0, 0, 0)),
        (2048, (0, 1, 0, 0)),
        (4096, (0, 0, 1, 0)),
        (16383, (7, 1, 3, 7)),
    ):
        assert decoder.decode(address) == place
    with pytest.raises(ValueError, match="below 16384"):
        decoder.decode(16384)
    indices = [
        ((layer * 2 + bank) * 4 + row) * 8 + column
        for layer, bank, row, column in map(decoder.decode, range(0, 16384, 32))
    ]
    assert sorted(indices) == list(range(512))
