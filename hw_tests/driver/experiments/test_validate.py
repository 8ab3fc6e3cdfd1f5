"""The command that compares the cycle model with the RTL: what it prints, and when it fails."""

from __future__ import annotations

import json

import pytest

from hw_tests.driver.refusals import assert_refused
from sw_driver.axdimm.runs import DRAM_TIMES
from sw_driver.cli import main
from sw_driver.experiments import validation
from sw_driver.experiments.validation import Comparison, Group, Trial


def _counts(cycles: int) -> dict[str, int]:
    return {"cycles": cycles, **dict.fromkeys((f"{name}_tck" for name in DRAM_TIMES), cycles)}


@pytest.fixture
def modelled(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """What the model says of each run; the RTL says 1000 cycles. Nothing is simulated."""
    says = {"cycles": 1000}

    def compare(group: Group, announce: object = None) -> list[Comparison]:
        return [
            Comparison(group=group, trial=trial, rtl=_counts(1000), model=_counts(says["cycles"]))
            for trial in group.trials
        ]

    monkeypatch.setattr(validation, "compare", compare)
    return says


def test_agreement_is_a_success(
    modelled: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", "--configurations", "9", "--seed", "3"]) == 0
    printed = capsys.readouterr().out
    assert "9 configurations, seed 3: 9 exact" in printed
    assert "1,000" in printed


def test_an_error_of_a_per_cent_is_a_failure(
    modelled: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    modelled["cycles"] = 1009
    assert main(["validate", "--configurations", "2"]) == 0
    assert "largest 0.900%" in capsys.readouterr().out
    modelled["cycles"] = 990
    assert main(["validate", "--configurations", "2", "--json"]) == 1
    output = capsys.readouterr()
    figures = json.loads(output.out)["results"]
    assert figures["max_error"] == pytest.approx(0.01)
    assert len(figures["runs"]) == 2
    addresses = figures["runs"][0]["addresses"]
    assert addresses
    assert all(isinstance(address, int) for address in addresses.values())
    assert "more than 1 %" in output.err


@pytest.mark.parametrize(
    ("options", "phrases"),
    [
        (["--configurations", "0"], ["'0'", "at least 1"]),
        (["--seed", "x"], ["'x'", "integer"]),
    ],
    ids=" ".join,
)
def test_refusals_take_one_line(
    capsys: pytest.CaptureFixture[str], options: list[str], phrases: list[str]
) -> None:
    assert_refused(capsys, ["validate", *options], phrases)


def test_a_seed_gives_the_same_configurations() -> None:
    first, again, other = (validation.draw(20, seed) for seed in (4, 4, 5))
    assert first == again
    assert first != other
    assert [len(group.trials) for group in first] == [8, 8, 4]
    assert all(isinstance(trial, Trial) for group in first for trial in group.trials)
