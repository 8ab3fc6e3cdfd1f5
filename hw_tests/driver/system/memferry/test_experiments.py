"""The experiments of MemFerry: the number that is calibrated, and a command."""

from __future__ import annotations

import json
from itertools import compress
from math import ceil
from pathlib import Path
from statistics import fmean

import pytest

from hw_tests.driver.system.memferry.profiles import layer
from hw_tests.driver.trace_reader import assert_sound, read_trace
from sw_driver.axdimm.measure import own_mparams_per_s
from sw_driver.cli import main
from sw_driver.system.memferry.figures import figure13
from sw_driver.system.memferry.runs import (
    BUFFER_PS_PER_BYTE,
    GO,
    OURS,
    Case,
    part_of,
    profile_for,
    simulate,
    system_of,
)


def test_deepspeeds_buffers_are_what_the_fit_finds() -> None:
    made = figure13({}, lambda _: None)
    assert made.claims["over DeepSpeed, 1 B"].verdict == "met"
    of_1b, *others = (row["over DeepSpeed"] for row in made.rows)
    assert (of_1b.mark, *{each.mark for each in others}) == ("calibrated", "predicted")
    (mean,) = (each.ours for name, each in made.claims.items() if "mean of all but 1 B" in name)
    assert mean == fmean(each.ours for each in others)
    assert made.notes[0].startswith(
        f"So that the first comes out as the paper's, DeepSpeed has to wait {BUFFER_PS_PER_BYTE} ps"
    )


def test_of_a_part_of_the_samples_dha_takes_as_much_longer() -> None:
    whole = layer("a", 8, (40, 100), (60, 90, 70), (20, 12))
    assert part_of(whole, 4) == layer("a", 8, (10, 70), (15, 45, 25), (5, 3))
    assert part_of(whole, 1) == whole


def test_go_memferry_has_no_gradient_on_the_gpu_and_ours_all() -> None:
    go, ours = (Case(network="bert-base", system=each) for each in (GO, OURS))
    sizes = [layer.nbytes for layer in profile_for(go).layers]  # 0 of a table that the output has
    assert not any(compress(sizes, system_of(go).plan.gradients_on_gpu))
    assert all(system_of(ours).plan.gradients_on_gpu)


def test_axdimms_and_changes_of_the_machine_change_steps() -> None:
    host, module, slow = (
        Case(network="bert-base", **changed)
        for changed in ({}, {"axdimm": True}, {"changes": {"pcie.write_gb_per_s": "6"}})
    )
    profile = profile_for(module)
    parameters = sum(layer.nbytes for layer in profile.layers) // 4
    assert profile.update_ns == ceil(parameters * 1000 / (2 * own_mparams_per_s()))
    assert profile.layers == profile_for(host).layers
    steps = [simulate(each, lambda _: None) for each in (host, slow)]
    assert steps[1].forward_ns > steps[0].forward_ns


def test_the_command_writes_timelines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["reproduce", "memferry", "figure4", "figure6", "--json", "--out", str(tmp_path)]) == 0
    )
    claims = json.loads(capsys.readouterr().out)
    assert {each["verdict"] for each in claims} == {"met"}
    assert claims[0]["ours"] < 0.5  # of which the copy of a table is more
    trace = read_trace(tmp_path / "memferry" / "figure6-memferry.json.gz")
    assert_sound(trace)
    assert not (tmp_path / "memferry.md").exists()
