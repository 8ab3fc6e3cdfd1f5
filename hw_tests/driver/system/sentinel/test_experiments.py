"""The experiments of Sentinel: what of the paper is beside which of ours, and what is judged."""

from __future__ import annotations

from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest

from sw_driver.machine.parts import MachineError
from sw_driver.system.reproduction import Claim
from sw_driver.system.sentinel import figures
from sw_driver.system.sentinel.experiments import DATA, EXPERIMENTS
from sw_driver.system.sentinel.runs import CAPACITY, SENTINEL, SentinelCase, machine_of, profile_for
from sw_driver.workload import peak_bytes

NETWORKS = 5
BELOW = "Sentinel loses more than 10 % below the bound"
CASES = {5: (0, 0, 13), 11: (2, 4, 0)}


def claims(name: str) -> dict[str, Claim]:
    return EXPERIMENTS[name]({}, lambda _: None).claims


def verdicts(name: str) -> dict[str, str]:
    return {claim_name: claim.verdict for claim_name, claim in claims(name).items()}


Steps = dict[str, float]
"""ms: of rivals, of Sentinel by what it has, and with a fifth of the peak or less."""

AS_IN_THE_PAPER: Steps = {
    "fast-only": 100,
    SENTINEL: 100,
    "at 20 %": 105,
    "below the bound": 100,
    "no pool": 130,
    "no packing": 116,
    "no trial": 107,
    "ial": 115,
    "ial with mobilenet": 140,
    "slow-only": 140,
}


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    """What the experiments take for simulated."""
    expected = dict(AS_IN_THE_PAPER)

    def ours(case: SentinelCase, _: Any) -> Any:
        name = "at 20 %" if case.percent < 40 else SENTINEL
        if not case.settings.reserve:
            name = "no pool"
        elif not case.settings.pack:
            name = "no packing"
        elif case.percent == 20 and case.network in ("lstm-ptb", "dcgan", "mobilenet"):
            name = "below the bound"
        elif case.network == "resnet152" and case.percent == 20:
            name = SENTINEL
        ns = round(expected[name] * 1e6)
        if case.lengths:
            ns += abs(case.lengths[0] - 8) * 7 * 10**6
        trial = round(expected["no trial"] * 1e6)
        cases = CASES.get((case.lengths or (0,))[0], (1, 1, 1))
        return SimpleNamespace(step_ns=ns, tried={8: trial}, cases=cases)

    def rival(case: SentinelCase, _: Any) -> Any:
        ms = expected.get(f"{case.system} with {case.network}", expected[case.system])
        made = SimpleNamespace(step_ns=round(ms * 1e6))
        return SimpleNamespace(**vars(made), tried={"5 s": made})

    def result(case: SentinelCase, progress: Any) -> Any:
        return ours(case, progress) if case.system == SENTINEL else rival(case, progress)

    monkeypatch.setattr(SentinelCase, "result", result)
    return expected


def test_papers_figures_are_those_of_the_text(steps: Steps) -> None:
    """By experiment and claim, from the paper."""
    values = {
        (name, claim_name): claim.value
        for name in EXPERIMENTS
        for claim_name, claim in claims(name).items()
    }
    expected = {
        ("figure7", "best length, 3 GB/s"): 8,
        ("figure7", "spread, %, 64 %"): 21,
        ("figure8", "case 2, 11 layers beside 5, 16 %"): 4,
        ("figure8", "case 3, 5 layers beside 11, 32 %, 3 GB/s"): 13,
        ("figure10", "Sentinel loses at most 8 %, apart"): 5,
        ("figure10", "Sentinel's largest loss, bound of at most 20 %, apart"): 8,
        ("figure10", "Sentinel loses nothing, shared"): 2,
        ("figure10", "IAL's loss, mean, apart"): 17,
        ("figure10", "IAL's loss, most, apart"): 32,
        ("figure10", "Sentinel's gain over IAL, mean, apart"): 18,
        ("figure10", "Sentinel's gain over IAL, most, apart"): 37,
        ("figure11", "slower: no t&t"): 1,
        ("figure11", "loss, no space reservation, least"): 17,
        ("figure11", "loss, no space reservation, most"): 23,
        ("figure11", "loss, having false sharing, least"): 8,
        ("figure11", "loss, having false sharing, most"): 18,
    }
    assert {key: values.get(key) for key in expected} == expected


def test_reasons_have_the_arithmetic_of_the_papers_numbers() -> None:
    values_by_name = {(datum.section.partition(", ")[2], datum.name): datum.value for datum in DATA}
    ours, ial = (
        [values_by_name["Table 4", f"{name}, {system}"] for name in figures.NETWORKS]
        for system in (SENTINEL, "IAL")
    )
    mean = fmean(a / b - 1 for a, b in zip(ours, ial, strict=True))
    assert [round(100 * mean), round(100 * (sum(ours) / sum(ial) - 1))] == [93, 68]
    assert round(values_by_name["Table 4", "resnet32, Sentinel"] * 4096 / 391 / 1e6) == 22
    peaks = {name: values_by_name["Table 5", f"{name}, with Sentinel"] for name in figures.NETWORKS}
    more = {
        name: 100 * (with_it / values_by_name["Table 5", name] - 1)
        for name, with_it in peaks.items()
    }
    assert round(max(more.values()), 1) == round(more["mobilenet"], 1) == 3.2


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_what_is_as_in_the_paper_is_met(name: str, steps: Steps) -> None:
    """But that less than the bound costs more than 10 %, or the fifth could not be enough."""
    missed = {claim for claim, verdict in verdicts(name).items() if verdict == "missed"}
    assert not {claim for claim in missed if not claim.startswith(BELOW)}


@pytest.mark.parametrize(
    ("name", "claim", "changed"),
    [
        ("figure10", "Sentinel loses at most 8 %, apart", {"at 20 %": 109}),
        ("figure10", "Sentinel's largest loss, bound of at most 20 %, shared", {"at 20 %": 109}),
        ("figure10", "fast-only >= Sentinel >= IAL >= slow-only, apart", {"ial": 104}),
        ("figure10", "Sentinel's gain over IAL, mean, apart", {"ial": 107}),
        ("figure11", "loss, no space reservation, least", {"no pool": 110}),
        ("figure11", "loss, having false sharing, most", {"no packing": 140}),
        ("figure11", "slower: no t&t", {"no trial": 100}),
        ("figure12", "nothing is lost at 60 %, apart", {SENTINEL: 102}),
        ("figure12", "losses at 20 and 40 % differ by at most 8 %, shared", {SENTINEL: 140}),
        ("figure12", "more fast memory is never slower, shared", {SENTINEL: 106}),
    ],
)
def test_what_is_not_is_missed(name: str, claim: str, changed: Steps, steps: Steps) -> None:
    assert verdicts(name)[claim] == "met"
    steps |= changed
    assert verdicts(name)[claim] == "missed"


def test_less_than_the_bound_costs_more(steps: Steps) -> None:
    steps["below the bound"] = 112
    assert verdicts("figure10")[f"{BELOW}, apart"] == "met"
    steps["below the bound"] = 111  # 9.9 %
    assert verdicts("figure10")[f"{BELOW}, apart"] == "missed"


def test_without_loss_is_within_one_percent(steps: Steps) -> None:
    """100 / 101.1 is 98.9 %."""
    assert claims("figure12")["nothing is lost at 60 %, apart"].ours == NETWORKS
    steps[SENTINEL] = 101.1
    assert claims("figure12")["nothing is lost at 60 %, apart"].ours == 0


def test_a_machine_has_the_share_and_the_changes() -> None:
    case = SentinelCase(network="dcgan", transfers="apart", changes={"cross.latency_ns": "7"})
    machine = machine_of(case)
    peak = peak_bytes(profile_for(case).step)
    assert machine.memory("fast").capacity_bytes.value == peak // 5
    assert [memory.transfers for memory in machine.memories] == ["apart"] * 2
    assert machine.link("cross").latency_ns.value == 7
    with pytest.raises(MachineError, match=f"{CAPACITY} is the experiments' own: leave it out"):
        SentinelCase(network="dcgan", changes={CAPACITY: "1"})
