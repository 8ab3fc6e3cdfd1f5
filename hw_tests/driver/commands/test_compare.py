"""``nearmem compare``: what it prints, writes and refuses."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from hw_tests.driver.refusals import assert_refused
from hw_tests.driver.system.sentinel.steps import a_step
from sw_driver.cli import main
from sw_driver.system.compare.bases import BASES, IDLE_KEYS
from sw_driver.system.compare.device import RECOMPUTED
from sw_driver.system.compare.page import ASSUMPTIONS
from sw_driver.system.compare.system import ALWAYS
from sw_driver.system.compare.systems import SYSTEMS
from sw_driver.system.compare.variation import outcomes
from sw_driver.workload import load_trace, peak_bytes

FIELDS = [
    "network", "system", "step_ns", "memory_bytes", "least_bytes", "parts_ns", "energy_j",
    "largest_parameters", "mark", "reason", "assumes",
]  # fmt: skip


def rows(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict]:
    assert main(["compare", *words, "--json"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    return json.loads(output.out)["results"]


def test_json_is_a_row_of_each_system(capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(capsys, "gpt-tiny")
    assert [each["system"] for each in found] == [each.name for each in SYSTEMS]
    for row in found:
        assert [*row] == FIELDS
        assert row["reason"] == ""
        assert sum(row["parts_ns"].values()) == row["step_ns"] > 0
        assert row["mark"] in ("predicted", "calibrated")
        for place, nbytes in row["least_bytes"].items():
            assert nbytes <= row["memory_bytes"][place], row
    first = found[0]
    assert first["memory_bytes"] == {"gpu": peak_bytes(load_trace("gpt-tiny"))}
    assert first["parts_ns"]["waiting"] == 0
    assert found == rows(capsys, "gpt-tiny", "--machine", "v100", "--memory", "32GiB")


def test_settings_change_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    """With 600 kB of memory all is still on the GPU, with 500 it is not."""
    slower = rows(capsys, "gpt-tiny", "--memory", "600000", "--set", "pcie.read_gb_per_s=1")
    steps = {row["system"]: row["step_ns"] for row in rows(capsys, "gpt-tiny")}
    slow_steps = {row["system"]: row["step_ns"] for row in slower}
    assert slow_steps["all on the GPU"] == steps["all on the GPU"]
    assert slow_steps["MemFerry"] > steps["MemFerry"]
    small = rows(capsys, "gpt-tiny", "--memory", "500e3")
    assert small[0]["step_ns"] is None
    assert small[0]["energy_j"] is None
    assert re.search(r"at least .* of gpu", small[0]["reason"])
    assert small[0]["memory_bytes"] == small[0]["least_bytes"]
    assert small[0]["least_bytes"] == {"gpu": peak_bytes(load_trace("gpt-tiny"))}


@pytest.mark.soak
def test_all_systems_can_be_given_what_recomputes(capsys: pytest.CaptureFixture[str]) -> None:
    plain, again = rows(capsys, "gpt3-xl"), rows(capsys, "gpt3-xl", "--recompute")
    for one, other in zip(plain, again, strict=True):
        assert other["network"] == "gpt3-xl, recomputed"
        assert ASSUMPTIONS.index(RECOMPUTED) + 1 in other["assumes"]
        assert other["least_bytes"].get("gpu", 0) <= one["least_bytes"].get("gpu", 0)
        if other["step_ns"] is not None:
            assert sum(other["parts_ns"].values()) == other["step_ns"]
            assert other["parts_ns"]["recomputing"] > 0
    alone = plain[1]
    assert alone["system"] == "recomputation"
    for other in again[:2]:
        for key in ("step_ns", "parts_ns", "memory_bytes", "largest_parameters"):
            assert other[key] == alone[key]


def test_keys_on_which_nothing_depends_are_known() -> None:
    """With others, and with much less memory for more to move, no row is another."""
    trace = load_trace("word2vec")
    small = BASES["v100"].override({"gpu.capacity_bytes": "100e6"})
    assert {*IDLE_KEYS} <= {*small.keys}
    values = dict(zip(sorted(IDLE_KEYS), ("at_once", "1", "apart", "apart"), strict=True))
    assert outcomes((trace, small)) == outcomes((trace, small.override(values)))


def test_a_person_sees_who_runs_who_cannot_and_what_is_assumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a" / "b"
    words = ["compare", "word2vec", "gpt-tiny", "--memory", "50e6"]
    assert main([*words, "--out", str(out)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for said in (
        "word2vec on v100 with 47.7 MiB step GPU memory elsewhere largest energy assumes",
        "gpt-tiny on v100 with 47.7 MiB step",
        "all on the GPU cannot 98.1 MiB",
        "all on the GPU: needs at least 98.1 MiB of gpu, which has 47.7 MiB",
        f"Assumptions 1 to {len(ALWAYS)} hold for all systems. Assumed: 1. One GPU trains",
        "word2vec on v100 with 47.7 MiB: - Fastest: ",
        "gpt-tiny on v100 with 47.7 MiB: - Fastest: ",
        "- With everything in the GPU's memory: 436.1 µs, with gpu 98.1 MiB",
    ):
        assert said in shown
    pictures = ["pareto.svg", "parts.svg", "sensitivity.svg"]
    assert sorted(each.name for each in (out / "compare").iterdir()) == pictures
    page = (out / "compare.md").read_text()
    assert "nearmem compare word2vec gpt-tiny --machine v100 --set=gpu.capacity_bytes=" in page
    assert all(f"(compare/{picture})" in page for picture in pictures)
    assert all(f"compare/{picture}" in shown for picture in pictures)
    assert main([*words, "--out", str(tmp_path / "again"), "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    for file in [out / "compare.md", *(out / "compare").iterdir()]:
        again = tmp_path / "again" / file.relative_to(out)
        assert again.read_bytes() == file.read_bytes(), file.name


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gpt-tinny"], ["'gpt-tinny'", "did you mean gpt-tiny"]),
        (["gpt-tiny", "gpt3"], ["'gpt3'", "did you mean gpt3-xl"]),
        (["gpt-tiny", "--machine", "v10"], ["--machine is 'v10'", "did you mean v100"]),
        (["gpt-tiny", "--memory", "0"], ["'0'", "an integer of at least 1, such as 16GiB"]),
        (["gpt-tiny", "--memory=-1GiB"], ["'-1GiB'", "an integer of at least 1"]),
        (["gpt-tiny", "--memory", "nan"], ["'nan'", "an integer of at least 1"]),
        (["gpt-tiny", "--set", "pcie.read_gb_per_s"], ["--set is ", "KEY=VALUE"]),
        (
            ["gpt-tiny", "--set", "cpu.gb_per_s=1", "--set", "cpu.gb_per_s=2"],
            ["--set has 'cpu.gb_per_s' twice", "give it once"],
        ),
        (["gpt-tiny", "--set", "pci.read_gb_per_s=1"], ["'pci.read_gb_per_s'", "did you mean"]),
        (["gpt-tiny", "--set", "pcie.read_gb_per_s=nan"], ["pcie.read_gb_per_s is 'nan'"]),
        (["gpt-tiny", "--set", "pcie.read_gb_per_s=0"], ["pcie.read_gb_per_s is 0"]),
        (["gpt-tiny", "--set", "gpu.gb_per_s=-3"], ["gpu.gb_per_s is -3"]),
        (["gpt-tiny", "--set", "host.capacity_bytes=0"], ["host.capacity_bytes is 0"]),
        (
            ["gpt-tiny", "--machine", "rtx4090", "--set", "node.read_gb_per_s=3"],
            ["rtx4090: the key is 'node.read_gb_per_s'"],
        ),
        (
            ["gpt-tiny", "--memory", "1GiB", "--set", "gpu.capacity_bytes=1GiB"],
            ["--memory is 1073741824", "gpu.capacity_bytes", "leave one out"],
        ),
        (["gpt-tiny", "--set", "gpu.cache_bytes=1"], ["'gpu.cache_bytes'", "nothing depends"]),
        (["gpt-tiny", "--rule", "sgd"], ["'sgd'", "leave it out"]),
        (["gpt-tiny", "--out", "/dev/null"], ["/dev/null"]),
    ],
)
def test_refusals_take_one_line(
    arguments: list[str], said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(capsys, ["compare", *arguments], said)


def test_what_is_no_training_step_has_reasons(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    a_step(2, sizes={}).save(tmp_path / "nothing.json.gz")
    assert_refused(capsys, ["compare", f"{tmp_path}/nothing.json.gz"], ["has no operation"])
    a_step(1, (0, "p0 > a0"), (1, "a0 >"), sizes={"p0": 4, "a0": 8}).save(tmp_path / "no.json.gz")
    for row in rows(capsys, f"{tmp_path}/no.json.gz"):
        assert bool(row["reason"]) == (row["step_ns"] is None), row
    (tmp_path / "users.py").write_text("")
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "sw_driver.workload.capture", raising=False)
    assert_refused(capsys, ["compare", f"{tmp_path}/users.py:net"], ["PyTorch"])
