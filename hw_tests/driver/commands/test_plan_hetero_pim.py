"""``nearmem plan hetero-pim``: what it prints, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hw_tests.driver.refusals import assert_refused
from sw_driver.cli import main
from sw_driver.system.hetero_pim import costs, report
from sw_driver.system.hetero_pim.configurations import STRICT
from sw_driver.system.hetero_pim.profiling import modelled
from sw_driver.system.hetero_pim.ranking import by_type, chosen, ranking, read_profile
from sw_driver.system.hetero_pim.runs import HeteroPimCase
from sw_driver.workload.trace import load_trace

PLAN = ["plan", "hetero-pim"]
CONFIGURATIONS = ["CPU", "GPU", "Progr PIM", "Fixed PIM", "Hetero PIM"]


@pytest.fixture
def profile(tmp_path: Path) -> str:
    path = tmp_path / "profile.csv"
    path.write_text("operation,time,accesses,kind\na,5,1,x\nb,3,9,y\nc,2,3,x\nd,0.5,2,y\n")
    return str(path)


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert main([*PLAN, *arguments, "--json"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    return json.loads(output.out)["results"]


def test_a_profile_is_ranked(profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Places 1+4, 2+1, 3+2, 4+3; of types 1+2 and 2+1, and x is the longer."""
    expected = {"ranking": ["b", "a", "c", "d"], "chosen": ["b", "a", "c"], "share": 10 / 10.5}
    assert planned(capsys, profile) == expected
    found = planned(capsys, profile, "--share", "50%")
    assert (found["chosen"], found["share"]) == (["b", "a"], 8 / 10.5)
    found = planned(capsys, profile, "--share", "60%", "--by", "type")
    assert (found["ranking"], found["chosen"], found["share"]) == (["x", "y"], ["x"], 7 / 10.5)


def test_a_network_is_planned(capsys: pytest.CaptureFixture[str]) -> None:
    trace = load_trace("dcgan")
    rows = modelled(trace)
    found = planned(capsys, "dcgan", "--by", "operation", "--share", "90%")
    assert found["ranking"] == [each.operation for each in ranking(rows)]
    assert found["chosen"] == [each.operation for each in chosen(rows)]
    assert found["share"] >= 0.9
    assert [*found["places"]] == [each.operation for each in rows]
    others = set(found["ranking"]) - set(found["chosen"])
    assert others
    assert {found["places"][each] for each in others} == {"cpu"}
    steps = found["step_ns"]
    assert [*steps] == CONFIGURATIONS
    assert steps["CPU"] == sum(each.time for each in rows)
    assert steps["Hetero PIM"] <= steps["CPU"]
    assert sum(found["breakdown_ns"]["Hetero PIM"].values()) == steps["Hetero PIM"]
    assert 0 <= found["utilisation"]["Hetero PIM"] <= 1
    assert {found["on_cpu"][each] for each in others} == {"not offered"}
    assert found["profile"] == "by the rates of the paper's CPU"
    found = planned(capsys, "dcgan")
    assert found["ranking"] == [each.operation for each in ranking(by_type(rows))]
    more = planned(capsys, "dcgan", "--units", "888", "--cores", "4", "--by", "type")["step_ns"]
    assert more["CPU"] == steps["CPU"]
    fewer = planned(capsys, "dcgan", "--cores", "2")["step_ns"]
    assert more["Progr PIM"] == pytest.approx(fewer["Progr PIM"] / 2, rel=0.01)
    assert steps["Progr PIM"] < more["Progr PIM"]


def test_readings_and_rates_are_those_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys, "alexnet-32", "--rate", "44")
    case = HeteroPimCase(network="alexnet-32", unit_rate=44)
    assert found["step_ns"]["Hetero PIM"] == case.result(lambda _: None).step_ns
    strict = planned(capsys, "alexnet-32", "--readings", "strict")
    case = HeteroPimCase(network="alexnet-32", readings=STRICT)
    assert strict["step_ns"]["Hetero PIM"] == case.result(lambda _: None).step_ns
    assert 0.9 <= strict["share"] < found["share"] == 1


def test_the_plan_fits_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PLAN, "alexnet-32"]) == 0
    title, *lines = capsys.readouterr().out.splitlines()
    tables = [line for line in lines if line.startswith(" ")]  # notes are for a terminal to wrap
    assert max(map(len, [title, *tables])) <= 80


def test_what_is_written_can_be_ranked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PLAN, "gpt-tiny", "--out", str(tmp_path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    names = ["profile.csv", "timeline.json.gz", "timeline.png", "timeline.svg"]
    assert sorted(each.name for each in tmp_path.iterdir()) == names
    for words in (
        *names,
        *CONFIGURATIONS,
        "Devices that run the operations in Hetero PIM",
        "gpt-tiny: PIMs are offered",
        "Profiled by the rates",
        "why the CPU",
        "Where the time goes",
    ):
        assert words in shown
    rows = modelled(load_trace("gpt-tiny"))
    assert read_profile(tmp_path / "profile.csv") == rows
    types = planned(capsys, f"{tmp_path}/profile.csv", "--by", "type")["ranking"]
    assert types == [each.operation for each in ranking(by_type(rows))]


def test_a_configuration_without_a_kernel_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(costs.Costs, "core", lambda *_: None)
    found = planned(capsys, "gpt-tiny")
    assert [*found["step_ns"]] == [each for each in CONFIGURATIONS if each != "Progr PIM"]
    assert "operation 0, embedding, has no kernel for core" in found["reasons"]["Progr PIM"]
    assert main([*PLAN, "gpt-tiny"]) == 0
    assert "Progr PIM cannot run it: operation 0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gpt3-13b"], ["gpt3-13b takes", "the main memory has", "expected a smaller batch"]),
        (["dcgna"], ["'dcgna': did you mean dcgan"]),
        (["dcgan", "--share", "101%"], ["--share is '101%': expected 0% to 100%"]),
        (["dcgan", "--share", "0.9"], ["--share is '0.9'"]),
        (["dcgan", "--units", "0"], ["an integer of at least 1"]),
        (["dcgan", "--units", "1"], ["--units is 1: ", "leaves 0 units to one", "place more"]),
        (["dcgan", "--units", "1025"], ["--units is 1025: ", "from 1 to 1024"]),
        (["dcgan", "--cores", "0"], ["an integer of at least 1"]),
        (["dcgan", "--rule", "sgd"], ["'sgd'", "leave it out"]),
        (["PROFILE", "--units", "4"], ["--units is '4'", "leave it out"]),
        (["PROFILE", "--profile", "model"], ["--profile is 'model'", "leave it out"]),
        (["nowhere.csv"], ["'nowhere.csv': No such file"]),
    ],
)
def test_refusals_take_one_line(
    arguments: list[str], said: list[str], profile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [profile if each == "PROFILE" else each for each in arguments]
    assert_refused(capsys, [*PLAN, *words], said)


def test_a_network_without_products_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "on_pools", lambda _: "no")
    assert_refused(capsys, [*PLAN, "gpt-tiny"], ["run no operation of gpt-tiny: expected products"])


def test_a_profile_that_lacks_something_is_refused(
    profile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(profile).write_text("operation,time,accesses\na,5,1\nb,3\n")
    assert_refused(capsys, [*PLAN, profile], ["profile.csv, line 3: it has 2 fields: expected 3"])
