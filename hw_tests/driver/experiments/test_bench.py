"""``nearmem bench``: the comparison with other simulations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hw_tests.driver.conftest import PRESET
from sw_driver.cli import main
from sw_driver.commands import bench
from sw_driver.experiments.speed import comparison
from sw_driver.experiments.speed.comparison import ComparisonError, compare, missing
from sw_driver.transport import Transport

DRIVEN = {
    "one_channel_fabric_cycles_per_host_second": 2000.0,
    "fabric_cycles_per_host_second": 3000.0,
}

SIMULATIONS = """
import json, sys
print(json.dumps({"name": "slow", "total": 2}))
print(json.dumps({"name": "slow", "parameters": 16, "fabric_cycles": 100,
                  "host_seconds": [10, 50, 20]}))
print(json.dumps({"name": "args", "total": 2}))
print(json.dumps({"name": " ".join(sys.argv[1:]), "parameters": 16, "fabric_cycles": 1000,
                  "host_seconds": [0.5]}))
"""


@pytest.fixture
def simulations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that stands for the simulations."""
    monkeypatch.setattr(comparison, "_MODULE", "stand_in_simulations")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    path = tmp_path / "stand_in_simulations.py"
    path.write_text(SIMULATIONS)
    return path


@pytest.mark.usefixtures("simulations")
def test_ratios_are_of_medians() -> None:
    told = []
    slow, fast = compare(
        PRESET, DRIVEN, repetitions=4, progress=lambda *progress: told.append(progress)
    )
    assert slow == {
        "name": "slow",
        "parameters": 16,
        "fabric_cycles": 100,
        "repetitions": 3,
        "fabric_cycles_per_host_second": 5.0,
        "ratio_one_channel": 400.0,
        "ratio": 600.0,
    }
    assert fast["name"] == f"--config {PRESET} --repetitions 4"
    assert (fast["ratio_one_channel"], fast["ratio"]) == (1.0, 1.5)
    assert told == [("slow", 0, 2), ("slow", 1, 2), ("args", 1, 2), (fast["name"], 2, 2)]


def test_a_simulation_that_fails_is_told(simulations: Path) -> None:
    simulations.write_text(SIMULATIONS + "\nraise AssertionError('3 values of p differ')\n")
    with pytest.raises(
        ComparisonError, match=r"-m stand_in_simulations.*failed: .*3 values of p differ"
    ):
        compare(PRESET, DRIVEN, repetitions=1)


def test_what_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert missing() == []
    monkeypatch.setattr(comparison, "_ROOT", Path(comparison.__file__).parent)
    monkeypatch.setattr(comparison, "_NEEDED", ("cocotb", "no_such_package"))
    assert main(["bench", "--compare", "--config", PRESET]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(
        "nearmem: --compare needs the project's folder with hw_tests, no_such_package: pip install"
    )
    assert output.err.count("\n") == 1


@pytest.mark.usefixtures("simulations")
def test_bench_prints_the_comparison(
    capsys: pytest.CaptureFixture[str], backend: Transport
) -> None:
    if backend.name != "rtl":
        pytest.skip("only the RTL has a speed")
    options = ["--config", PRESET, "--parameters", "1000", "--repetitions", "1"]
    assert main(["bench", "--compare", "--json", *options]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    figures = json.loads(output.out)
    for row in figures["comparison"]:
        speed = row["fabric_cycles_per_host_second"]
        assert row["ratio"] == pytest.approx(figures["fabric_cycles_per_host_second"] / speed)
        alone = figures["one_channel_fabric_cycles_per_host_second"]
        assert row["ratio_one_channel"] == pytest.approx(alone / speed)
    assert main(["bench", "--compare", "--no-compare", "--json", *options]) == 0
    assert "comparison" not in json.loads(capsys.readouterr().out)
    assert main(["bench", "--quiet", *options]) == 0
    output = capsys.readouterr()
    assert output.out == output.err == ""


@pytest.mark.usefixtures("simulations")
def test_a_failing_comparison_fails_bench(
    capsys: pytest.CaptureFixture[str], simulations: Path, backend: Transport
) -> None:
    if backend.name != "rtl":
        pytest.skip("only the RTL has a speed")
    simulations.write_text("raise RuntimeError('no simulator')")
    options = ["--config", PRESET, "--parameters", "1000", "--repetitions", "1", "--json"]
    assert main(["bench", "--compare", *options]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert "no simulator" in output.err


def test_every_line_names_its_clock(capsys: pytest.CaptureFixture[str]) -> None:
    figures = {
        **DRIVEN,
        "parameters_per_channel": 5,
        "mparams_per_s": 800.0,
        "efficiency": 0.875,
        "bare_loop_fabric_cycles_per_host_second": 4000.0,
        "ratio": 0.75,
        "comparison": [
            {
                "name": "slow",
                "parameters": 16,
                "fabric_cycles_per_host_second": 5.0,
                "ratio_one_channel": 400.0,
                "ratio": 600.0,
            }
        ],
    }
    bench._print(figures, 2, 16)
    lines = [line for line in capsys.readouterr().out.splitlines() if "per host second" in line]
    assert len(lines) == 4
    assert all("fabric cycles per host second" in line for line in lines)
    assert " ".join(lines[-1].split()) == "slow: 5 fabric cycles per host second, 400 x, 600 x"
