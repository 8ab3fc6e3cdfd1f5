"""``nearmem cost``: designs mapped, small ones placed and routed for real."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hw_tests.driver.refusals import assert_refused
from sw_driver.cli import main


@pytest.mark.soak
def test_a_design_mapped_and_placed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["cost", "fp32_sign", "fp32_maximum", "--place", "--seeds", "1"]
    assert main([*command, "--out", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert json.loads((tmp_path / "cost.json").read_text()) == document["results"]
    sign, maximum = document["results"]
    assert (sign["name"], sign["latency"], sign["flip_flops"]) == ("fp32_sign", 1, 4)
    assert 0 < sign["levels"] < maximum["levels"] <= 8
    assert maximum["placed"][0]["clock_mhz"] < sign["placed"][0]["clock_mhz"]
    # Mapped and placed are two flows that must agree on what a register is.
    assert maximum["placed"][0]["used"]["flip_flops"] == maximum["flip_flops"] == 33

    assert main(command) == 0
    shown = capsys.readouterr().out
    for expected in ("the paper's unit", "xczu19eg", "522,720", "83,640", "1 seeds"):
        assert expected in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fp32_cube"], "the design is 'fp32_cube': "),
        (["--explore", "fp32_add"], "the operation is 'fp32_add': expected one of add, mul"),
        (["--place", "--seeds", "0"], "got '0', expected an integer from 1 to 100"),
        (["--place", "--mhz", "0"], "got '0', expected an integer from 1 to 1000"),
        (["--set", "lanes=0"], "lanes"),
        (["--seeds", "3"], "--seeds is 3, but nothing is placed: add --place"),
        (["fp32_add", "--mhz", "200"], "--mhz is 200, but nothing is placed: add --place"),
        (["--explore", "--depth", "add=8"], "--depth is 'add=8', but --explore measures every"),
        (["--explore", "--config", "tiny"], "--config is 'tiny', but --explore measures every"),
        (["--explore", "--set", "lanes=4"], "--set is 'lanes=4', but --explore measures every"),
        (["adam_unit", "--depth", "add=2"], "'add=2', expected OPERATION=STAGES with one of 3, 4"),
        (["adam_unit", "--depth", "cube=2"], "'cube=2', expected OPERATION=STAGES with add, mul"),
        (["adam_unit", "kernel", "--depth", "add=8"], "and functional units, got 'kernel'"),
    ],
)
def test_bad_requests_are_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(capsys, ["cost", *arguments], [said])
