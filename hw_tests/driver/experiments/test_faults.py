"""Flips of bits in the RTL: the same for a seed, and every outcome by a flip that must have it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hw_tests.driver.refusals import assert_refused
from sw_driver.cli import main
from sw_driver.device.errors import KernelError
from sw_driver.experiments import faults
from sw_driver.experiments.faults import Campaign, Effect, Flip, FlippingTransport, Place, Trial


@pytest.fixture(scope="module")
def campaign() -> Campaign:
    return Campaign(announce=print)


def flip(campaign: Campaign, name: str, bit: int, cycle: int, word: int = 0) -> Trial:
    """What comes of a flip in the place whose name ends so."""
    (place,) = [place for place in campaign.places if place.name.endswith(name)]
    return campaign.trial(Flip(place=place, word=word, bit=bit, fabric_cycle=cycle))


MASKED = {
    "arbiter.late_reads_count": (40, 500, Effect.IDLE),
    "arbiter.answer": (300, 0, Effect.OVERWRITTEN),
    "kernel.idle_cycles_count": (40, 500, Effect.COUNTERS),
}


@pytest.mark.parametrize("name", MASKED)
def test_a_flip_that_matters_to_nobody_is_masked(campaign: Campaign, name: str) -> None:
    bit, cycle, outcome = MASKED[name]
    assert flip(campaign, name, bit, cycle).outcome is outcome


def test_a_wire_is_told_from_a_register(monkeypatch: pytest.MonkeyPatch) -> None:
    transport = object.__new__(FlippingTransport)
    monkeypatch.setattr(FlippingTransport, "_call", lambda *_: 1)
    assert transport.masked() is Effect.WIRE


def test_a_run_without_end_ends_at_the_limit(campaign: Campaign) -> None:
    trial = flip(campaign, "kernel.loader.in_flight", 3, 400)
    assert trial.outcome is Effect.LIMIT
    assert "did not end in 20000 fabric cycles: it waits for reads" in trial.message
    assert "beats read and 375 written of 875" in trial.message


def test_an_error_of_the_driver_has_its_name(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise KernelError("stopped", cause="read_error")

    monkeypatch.setattr(Campaign, "_step", refuse)
    trial = flip(campaign, "arbiter.late_reads_count", 40, 500)
    assert (trial.outcome, trial.message) == (Effect.ERROR, "stopped")


NOTICED = {
    "kernel.settings.kept_lr": "settings_upset",
    "kernel.lanes.beta1": "settings_upset",
    "kernel.loader.bursts.walker.left": "walk_upset",
    "kernel.loader.arrival.tensor": "walk_upset",
    "kernel.loader.bursts.line_0": "walk_upset",
    "kernel.writer.bursts.line_2": "walk_upset",
    "kernel.writer.departure.tensor": "walk_upset",
    "kernel.lanes.issue_walker.left": "walk_upset",
    "kernel.fifo_p_in.write_port__addr": "order_upset",
    "arbiter.port.due_tag": "upset_tags",
}


@pytest.mark.parametrize("name", NOTICED)
def test_what_is_cheap_to_notice_has_an_error_of_its_own(campaign: Campaign, name: str) -> None:
    trial = flip(campaign, name, 1, 401)
    assert trial.outcome is Effect.ERROR, trial
    assert "a bit of its state was lost" in trial.message
    assert NOTICED[name] in trial.message


def test_a_broken_rule_alone_is_the_checkers(campaign: Campaign) -> None:
    trial = flip(campaign, "rows.planned", 5, 30)
    assert trial.outcome is Effect.CHECKER
    assert "_CLOSED at tCK" in trial.message


def test_a_wrong_result_that_nobody_notices(campaign: Campaign) -> None:
    assert flip(campaign, "unit_0.mul_0.high", 20, 600).outcome is Effect.WRONG


def test_bits_of_the_drams_tensors_are_wrong_in_silence(campaign: Campaign) -> None:
    flips = campaign.draw("dram", 8, 1)
    assert {flip.place.name.rpartition(".")[2] for flip in flips} == {"mem"}
    outcomes = [campaign.trial(flip).outcome for flip in flips]
    assert outcomes.count(Effect.WRONG) >= 5


def test_a_seed_gives_the_same_flips_and_outcomes(campaign: Campaign) -> None:
    for where in faults.WHERE:
        flips = campaign.draw(where, 50, 3)
        assert campaign.draw(where, 20, 3) == flips[:20]
        assert campaign.draw(where, 20, 4) != flips[:20]
        assert {flip.place.where for flip in flips} == {where}
    first, again = (list(map(campaign.trial, flips[:3])) for _ in range(2))
    assert first == again


def test_the_table_and_the_object(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(faults, "Campaign", lambda _: campaign)
    assert main(["faults", "--count", "4", "--seed", "9", "--where", "fifo", "--json"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert len(results["trials"]) == sum(results["counts"].values()) == 4
    assert results["counts"].keys() == {outcome.name.lower() for outcome in Effect}
    assert main(["faults", "--count", "2"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert max(map(len, shown[:-1])) <= 80
    assert "silently wrong" in "".join(shown)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--where", "sram"], "sram"),
        (["--count", "0"], "'0'"),
        (["--count", "1.5"], "'1.5'"),
        (["--seed", "-1"], "'-1'"),
    ],
)
def test_bad_input(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(capsys, ["faults", *arguments], [words])


def test_a_step_that_is_wrong_by_itself_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: Any) -> Campaign:
        raise RuntimeError("the step without a flip is not bit-exact: mend that first")

    monkeypatch.setattr(faults, "Campaign", broken)
    assert main(["faults"]) == 1
    assert "simulation failed: the step without a flip" in capsys.readouterr().err


def test_places_are_told_apart() -> None:
    assert [
        Place(0, "arbiter.mode", 1, 0).where,
        Place(1, "dram.device.mem", 512, 16).where,
        Place(2, "kernel.fifo_p_in.storage", 512, 32).where,
    ] == ["registers", "dram", "fifo"]
