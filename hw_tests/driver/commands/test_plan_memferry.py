"""``nearmem plan memferry``: what it prints, writes and refuses."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hw_tests.driver.refusals import assert_refused
from hw_tests.driver.system.memferry.profiles import FIGURE_4, layer, profile_of
from sw_driver.cli import main
from sw_driver.system.memferry.profile import read_profile, write_profile


@pytest.fixture
def profile(tmp_path: Path) -> str:
    """A layer to read and one to copy, with a byte of activations each."""
    file = tmp_path / "figure4.json"
    layers = tuple(replace(each, activation_bytes=1) for each in FIGURE_4.layers)
    write_profile(file, replace(FIGURE_4, layers=layers, update_ns=17))
    return str(file)


def test_the_plan_is_printed_as_json(profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "memferry", profile, "--planner", "exact", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["results"]
    ways, changed = figures.pop("ways"), figures.pop("step_ns_with_twice")
    assert {name: figures[name] for name in ways["this plan"]} == ways["this plan"]
    assert min(changed.values()) < figures["step_ns"]
    assert figures == {
        "planner": "exact",
        "modes": {"1": "DHA", "2": "GFGB"},
        "gradients_on_gpu": [],
        "forward_ns": 100 + 30,
        # The load has half of the link until 180, and then the read has 10 to go.
        "shared_link_forward_ns": 190 + 30,
        "step_ns": 190 + 30 + 17,
        "gpu_bytes": 90 + 2,
    }


def test_ours_is_the_default_and_copies_both_on_a_shared_link(
    profile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "memferry", profile, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["results"]
    assert figures["modes"] == {"1": "GFGB", "2": "GFGB"}
    assert figures["shared_link_forward_ns"] == 80 + 90 + 30


def test_the_budget_decides(profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "memferry", profile, "--gpu-memory", "92", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["results"]
    assert figures["modes"] == {"1": "DHA", "2": "GFGB"}
    assert figures["gpu_bytes"] == 90 + 2


def test_a_person_sees_modes_other_ways_and_what_to_change(
    profile: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["plan", "memferry", profile, "--gpu-memory", "92"]) == 0
    shown = capsys.readouterr().out
    for words in (
        "figure4.json on a: planned by ours",
        "host, by DHA",
        "all on the GPU, too large",
        "native ZeRO-Offload, too large",
        "would shorten a step by: link ",
    ):
        assert words in shown
    assert "all by DHA, too large" not in shown


def test_a_network_is_planned_alike_layers_together_and_files_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["plan", "memferry", "bert-base", "--device", "a100", "--out", str(tmp_path / "o")]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "bert-base on memferry_a100, by a cost model" in shown
    assert " ".join(shown.split()).count("layers.*.mlp.dense_h_to_4h GFGB") == 1
    assert " 12 113.4 MB " in " ".join(shown.split())
    names = ("profile.json", "timeline.json.gz", "timeline.png", "timeline.svg")
    assert sorted(each.name for each in (tmp_path / "o").iterdir()) == [*names]
    assert all(name in shown for name in names)
    assert len(read_profile(tmp_path / "o" / "profile.json").layers) == 81


def test_a_network_that_the_gpu_has_no_room_for_is_told_whether_a_plan_helps(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for network, said in (
        ("transformer-xl-4.3b", "--gpu-memory 32GiB"), ("gpt2-medium", "no plan fits into that"),
    ):  # fmt: skip
        assert main(["plan", "memferry", network, "--planner", "printed"]) == 0
        assert f"The GPU has 34.4 GB: {said}" in capsys.readouterr().out.replace("plan with ", "")


def test_a_step_of_no_time_and_names_in_brackets_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_profile(tmp_path / "none.json", profile_of(layer("a[/b]", 0, (0, 0))))
    assert main(["plan", "memferry", f"{tmp_path}/none.json"]) == 0
    shown = capsys.readouterr().out
    assert "a[/b]" in shown
    assert "link 0.0%, GPU 0.0%, update 0.0%" in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bert-base", "--planner", "our"], ["'our'", "did you mean ours"]),
        (["bert-base", "--planner", "exact-step"], ["81", "8 or fewer"]),
        (["bert-base", "--gpu-memory", "1GiB"], ["1073741824", "expected 1190831180 or more"]),
        (["bert-base", "--reserve", "1.5"], ["reserve is 1.5", "from 0 to 1"]),
        (["bert-base", "--rule", "sgd"], ["'sgd'", "leave it out"]),
        (["bert-bas"], ["'bert-bas'", "did you mean bert-base"]),
        (["/no/[/such].json"], ["'/no/[/such].json'", "No such file"]),
    ],
)
def test_refusals_take_one_line(
    arguments: list[str], said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(capsys, ["plan", "memferry", *arguments], said)


def test_a_measured_network_is_planned_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", "memferry", "bert-base-h100"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert said.startswith("bert-base-h100 on NVIDIA H100 80GB HBM3, measured: planned by ours\n")
    assert "The GPU has" not in said
    assert_refused(capsys, [*command, "--device", "v100"], ["'v100'"])


def test_a_profile_is_refused_by_layer_and_field_and_has_a_device(
    profile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(capsys, ["plan", "memferry", profile, "--device", "v100"], ["'v100'"])
    text = Path(profile).read_text()
    for value, said in (("-1", "-1"), ("NaN", "nan")):
        Path(profile).write_text(text.replace('"transfer_ns": 90', f'"transfer_ns": {value}'))
        assert_refused(capsys, ["plan", "memferry", profile], ["'2': transfer_ns", said])


def test_without_pytorch_only_a_function_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "users.py").write_text("")
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "sw_driver.workload.capture", raising=False)
    assert_refused(capsys, ["plan", "memferry", f"{tmp_path}/users.py:net"], ["PyTorch"])
    assert main(["plan", "memferry", "gpt-tiny", "--quiet"]) == 0


def test_the_sizes_of_the_workload_are_in_the_results(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "memferry", "gpt-tiny", "--batch", "4", "--json"]) == 0
    workload = json.loads(capsys.readouterr().out)["workload"]
    assert (workload["name"], workload["origin"]["batch"]) == ("gpt-tiny", 4)
