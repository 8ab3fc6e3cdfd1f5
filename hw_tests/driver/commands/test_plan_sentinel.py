"""``nearmem plan sentinel``: what it prints, writes and refuses."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hw_tests.driver.refusals import assert_refused
from hw_tests.driver.system.sentinel.steps import a_step
from sw_driver.cli import main
from sw_driver.machine.sentinel import TIERS
from sw_driver.workload.stages import OUTSIDE

MB = 10**6
CHAIN = a_step(
    2,
    (0, "p0 > p0 t0 a0"), (0, ">"), (1, "p1 > p1 t1"), (1, ">"),
    (2, "p2 > p2 t2"), (2, ">"), (3, "p3 a0 > p3 t3"), (3, ">"),
    sizes=dict.fromkeys(("p0", "p1", "p2", "p3", "t0", "t1", "t2", "t3", "a0"), 34 * MB),
)  # fmt: skip
XEON = TIERS["xeon"].devices[0]
FLOPS = round(4 * MB * XEON.tflop_per_s.value * 1000)
CHAIN = replace(CHAIN, ops=tuple(replace(op, flops=op.id % 2 * FLOPS) for op in CHAIN.ops))
"""In each of four visits weights of 34 MB are read and written, and 34 MB that live in it; behind a
cache of 30 MiB these are fetched, too, so that it moves four times 34 MB. The first also makes what
the last reads: twice 34 MB and once. Behind each there are 4 ms of arithmetic."""


@pytest.fixture
def chain(tmp_path: Path) -> str:
    CHAIN.save(tmp_path / "chain.json.gz")
    return f"{tmp_path}/chain.json.gz"


def test_the_plan_is_printed_as_json(chain: str, capsys: pytest.CaptureFixture[str]) -> None:
    for fast in ("60%", "122400000"):
        assert main(["plan", "sentinel", chain, "--fast", fast, "--json"]) == 0
        output = capsys.readouterr()
        figures = json.loads(output.out)["results"]
        assert [*figures][:8] == [
            "interval_layers", "pool_bytes", "lower_bound_bytes", "cases", "moved_bytes",
            "step_ns", "fast_only_ns", "slow_only_ns",
        ]  # fmt: skip
        assert output.err == ""
        assert (figures["fast_bytes"], figures["peak_bytes"]) == (122_400_000, 204 * MB)
        assert (figures["pool_bytes"], figures["lower_bound_bytes"]) == (34 * MB, 68 * MB)
        # 19 times 34 MB at 34 bytes a ns, and 87 ns; at 19, and 96 ns for reads and for writes.
        assert figures["fast_only_ns"] == (19 + 4 * 4) * MB + 8 * 87
        slow_ns = 19 * 34e6 / 19 + 16e6 + 4 * (87 + 2 * 96) + 4 * 87
        assert figures["slow_only_ns"] == pytest.approx(slow_ns, abs=8)
        assert figures["fast_only_ns"] < figures["step_ns"] < figures["first_touch_ns"] < slow_ns
        moving = figures["moving"]
        assert sum(each["moved_bytes"] for each in moving) == figures["moved_bytes"] > 0
        assert {each["tensor"] for each in moving} <= {"p0", "p1", "p2", "p3", "a0"}
        assert {each["nbytes"] for each in moving} == {34 * MB}


def test_a_person_sees_the_loss_what_moves_and_other_sizes(
    chain: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["plan", "sentinel", chain, "--fast", "60%", "--out", str(out)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for words in (
        "on sentinel with 122.4 MB of fast memory",
        "fast memory alone 35.001 ms +0.0%",
        "slow memory alone 50.001 ms +42.9%",
        "first touch ",
        "The least possible fast memory is 68.0 MB.",
        "p1 parameter 34.0 MB 68.0 MB",
        "20.0% 40.8 MB too small 40.0% 81.6 MB",
        " 60.0% 122.4 MB ",
    ):
        assert words in shown
    names = ["curve.svg", "timeline.json.gz", "timeline.png", "timeline.svg"]
    assert sorted(each.name for each in out.iterdir()) == names
    assert all(name in shown for name in names)
    assert "fast memory alone" in (out / "curve.svg").read_text()


def test_tensors_without_names_go_by_number_and_layer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "sentinel", "dcgan", "--fast", "40%", "--json"]) == 0
    moving = json.loads(capsys.readouterr().out)["results"]["moving"]
    assert len(moving) == 10
    moved = [each["moved_bytes"] for each in moving]
    assert moved == sorted(moved, reverse=True)
    assert any(re.fullmatch(r"\d+ of generator\..+ \(forward\)", each["tensor"]) for each in moving)


def test_a_network_is_planned_with_another_batch(capsys: pytest.CaptureFixture[str]) -> None:
    peaks = {}
    for batch in ("2", "4"):
        assert main(["plan", "sentinel", "gpt-tiny", "--batch", batch, "--json"]) == 0
        made = json.loads(capsys.readouterr().out)
        peaks[batch] = made["results"]["peak_bytes"]
        assert made["workload"]["origin"]["batch"] == int(batch)
    assert 1.2 < peaks["4"] / peaks["2"] < 2
    assert_refused(
        capsys, ["plan", "sentinel", "gpt-tiny", "--seq", "8"], ["seq is 8, but 'gpt-tiny'"]
    )


def test_machines_go_by_their_slow_memory(chain: str, capsys: pytest.CaptureFixture[str]) -> None:
    for slow, machine in TIERS.items():
        assert main(["plan", "sentinel", chain, "--fast", "60%", "--slow", slow, "--json"]) == 0
        figures = json.loads(capsys.readouterr().out)["results"]
        slow_ns = 19 * 34e9 / (machine.links[0].rate(writing=False) / MB)
        slow_ns += sum(map(machine.devices[0].compute_ns, CHAIN.ops))
        if machine.keys[f"{machine.devices[0].name}.cache_bytes"].value < 34 * MB:
            assert figures["slow_only_ns"] == pytest.approx(slow_ns, rel=1e-2)
        else:  # which has some of it still
            assert figures["fast_only_ns"] < figures["slow_only_ns"] < 1.01 * slow_ns


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--fast", "0%"], ["--fast is '0%'", "above 0 and up to 100%"]),
        (["--fast", "100.1%"], ["--fast is '100.1%'", "above 0 and up to 100%"]),
        (["--fast", "all"], ["--fast is 'all'", "4KiB"]),
        (["--fast", "-1"], ["--fast is '-1'", "4KiB"]),
        (["--fast", "1e99"], ["--fast is '1e99'", "4KiB"]),
        (["--fast", "67999999"], ["67999999 bytes", "at least 68000000", "give 33.4% or more"]),
        ([], ["--fast is '20%', 40800000 bytes", "at least 68000000"]),
        (["--slow", "cx"], ["--slow is 'cx'", "did you mean cxl"]),
        (["--rule", "sgd"], ["'sgd'", "leave it out"]),
    ],
)
def test_refusals_take_one_line(
    arguments: list[str], said: list[str], chain: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(capsys, ["plan", "sentinel", chain, *arguments], said)


def test_what_is_no_network_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_refused(capsys, ["plan", "sentinel", "resnet-32"], ["'resnet-32'", "did you mean"])
    stages = tuple(replace(each, name=OUTSIDE) for each in CHAIN.stages)
    for trace, said in (
        (replace(CHAIN, stages=stages), "by hand has no layer: "),
        (a_step(2, sizes={}), "by hand has no operation: "),
    ):
        trace.save(tmp_path / "other.json.gz")
        assert_refused(capsys, ["plan", "sentinel", f"{tmp_path}/other.json.gz"], [said])
    (tmp_path / "users.py").write_text("")
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "sw_driver.workload.capture", raising=False)
    assert_refused(capsys, ["plan", "sentinel", f"{tmp_path}/users.py:net"], ["PyTorch"])
