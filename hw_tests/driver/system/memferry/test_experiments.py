"""The experiments of MemFerry: the numbers that are calibrated, and a command."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import compress
from pathlib import Path

import pytest

from hw_tests.driver.system.memferry.profiles import layer
from sw_driver.cli import main
from sw_driver.system.memferry.figures import figure11, figure13
from sw_driver.system.memferry.runs import (
    GO,
    OURS,
    MemferryCase,
    part_of,
    profile_for,
    system_of,
)
from sw_driver.system.runs import Runs


def test_one_speed_up_is_calibrated() -> None:
    made = figure13(Runs())
    assert made.claims["speed-up over DeepSpeed, 1 B"].verdict == "met"
    of_1b, *others = (row["speed-up over DeepSpeed"] for row in made.rows)
    assert (of_1b.mark, *{other.mark for other in others}) == ("calibrated", "predicted")


@pytest.mark.parametrize(
    ("tokens", "met"), [(3.4, False), (3.5, True), (3.7, True), (3.9, True), (4.0, False)]
)
def test_one_number_of_tokens_gives_all_largest_networks_and_misses_the_speed(
    monkeypatch: pytest.MonkeyPatch, tokens: float, met: bool
) -> None:
    monkeypatch.setattr("sw_driver.system.memferry.figures.TOKENS", tokens)
    claims = figure11(Runs()).claims
    largest = [claim.verdict for name, claim in claims.items() if name.startswith("largest")]
    assert len(largest) == 4
    assert (set(largest) == {"met"}) == met
    assert claims["speed-up of MemFerry over DeepSpeed"].verdict == "missed"


def test_of_a_part_of_the_samples_dha_takes_as_much_longer() -> None:
    whole = layer("a", 8, (40, 100), (60, 90, 70), (20, 12))
    assert part_of(whole, Fraction(1, 4)) == layer("a", 8, (10, 70), (15, 45, 25), (5, 3))
    assert part_of(whole, 1) == whole


def test_go_memferry_has_no_gradient_on_the_gpu_and_ours_all() -> None:
    go, ours = (MemferryCase(network="bert-base", system=system) for system in (GO, OURS))
    sizes = [layer.nbytes for layer in profile_for(go).layers]  # 0 of a table that the output has
    assert not any(compress(sizes, system_of(go).plan.gradients_on_gpu))
    assert all(system_of(ours).plan.gradients_on_gpu)


def test_changes_of_the_machine_change_steps() -> None:
    host, slow = (
        MemferryCase(network="bert-base", changes=changes)
        for changes in ({}, {"pcie.write_gb_per_s": "6"})
    )
    steps = [case.result(print) for case in (host, slow)]
    assert steps[1].marks_ns["forward"] > steps[0].marks_ns["forward"]


def test_the_command_fails_for_what_is_missed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "memferry", "figure12", "--json", "--out", str(tmp_path)]) == 0
    claims = json.loads(capsys.readouterr().out)["results"]
    assert [claim["verdict"] for claim in claims] == ["met"] * 3
    assert (tmp_path / "memferry" / "figure12.svg").exists()
    assert not (tmp_path / "memferry.md").exists()
    assert main(["reproduce", "memferry", "figure3", "--quiet"]) == 1
