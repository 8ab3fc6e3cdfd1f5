"""``nearmem bench``: what it measures and prints."""

from __future__ import annotations

import json

import pytest

from hw_tests.driver.conftest import PRESET
from sw_driver.cli import main

OPTIONS = ["bench", "--config", PRESET, "--parameters", "1000", "--repetitions", "1"]


def test_speeds_are_of_the_rtl(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*OPTIONS, "--json"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    document = json.loads(output.out)
    assert document["workload"] == {"parameters_per_channel": 1000, "repetitions": 1}
    figures = document["results"]
    assert 0 < figures["efficiency"] < 1
    driven = figures["fabric_cycles_per_host_second"]
    bare = figures["bare_loop_fabric_cycles_per_host_second"]
    assert figures["ratio"] == pytest.approx(driven / bare)
    assert figures["one_channel_fabric_cycles_per_host_second"] > 0
    assert main([*OPTIONS, "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    assert main(OPTIONS) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "per host second" in line]
    assert len(lines) == 3
    assert all("fabric cycles per host second" in line for line in lines)
