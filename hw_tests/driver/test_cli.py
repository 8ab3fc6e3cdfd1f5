"""The command line: what it refuses, what it prints and writes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hw_tests.driver.conftest import PRESET
from hw_tests.driver.transports import SpoilingTransport
from sw_driver import backends
from sw_driver.backends.golden import GoldenTransport
from sw_driver.cli import main
from sw_driver.transport import DeviceFault, Transport

REPORT_KEYS = {
    "bit_exact",
    "params",
    "steps",
    "loss_first",
    "loss_last",
    "test_accuracy",
    "fabric_cycles",
    "mparams_per_s",
    "efficiency",
    "host_seconds",
    "sim_cycles_per_host_second",
}


def sim(folder: Path, *options: str) -> int:
    return main(["sim", "--backend", "golden", "--out", str(folder), *options])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--lanes", "3"], ["3", "16"]),
        (["--lanes", "x"], ["'x'", "integer"]),
        (["--lanes", "0"], ["'0'", "at least 1"]),
        (["--block-bytes", "1000"], ["1000", "power of two"]),
        (["--block-kib", "5"], ["5120", "power of two"]),
        (["--block-kib", "4", "--block-bytes", "4096"], ["--block-kib", "--block-bytes"]),
        (["--capacity-mib", "3"], [str(3 << 20), "power of two"]),
        (["--steps", "0"], ["'0'", "from 1"]),
        (["--steps", "many"], ["'many'", "integer"]),
        (["--seed", "-1"], ["'-1'", "from 0"]),
        (["--backend", "fpga"], ["'fpga'", "rtl", "golden"]),
        (["--config", "huge"], ["'huge'", "axdimm"]),
        (["--speed", "11"], ["--speed", "--help"]),
        (["surplus"], ["surplus"]),
        (["--wave", "wave.fst"], ["wave.fst", "golden", "rtl"]),
        (["--dram-trace", "trace.csv"], ["trace.csv", "golden", "rtl"]),
        (["--wave", "/no/such/folder/wave.fst"], ["/no/such/folder", "create"]),
        (["--dram-trace", "."], ["'.'", "folder"]),
        (["--out", "/dev/null/sim"], ["/dev/null/sim", "--out"]),
    ],
    ids=" ".join,
)
def test_refusals_take_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: list[str]
) -> None:
    assert sim(tmp_path, *options) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("nearmem: ")
    assert output.err.count("\n") == 1
    for words in said:
        assert words in output.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("arguments", [[], ["train"], ["--quiet"]])
def test_a_command_is_needed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("arguments", [["--help"], ["sim", "--help"]])
def test_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    assert "nearmem" in capsys.readouterr().out


def test_report_and_curve_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sim(tmp_path, "--steps", "3", "--lanes", "4", "--block-kib", "8", "--seed", "9") == 0
    figures = json.loads((tmp_path / "report.json").read_text())
    assert figures.keys() >= REPORT_KEYS | {"channels"}
    assert figures["bit_exact"] is True
    assert figures["steps"] == 3
    assert figures["params"] >= 100_000
    assert figures["loss_last"] < figures["loss_first"]
    assert (figures["lanes"], figures["block_bytes"], figures["seed"]) == (4, 8192, 9)
    assert [entry["channel"] for entry in figures["channels"]] == [0, 1]
    for entry in figures["channels"]:
        assert entry.keys() >= REPORT_KEYS
        assert entry["params"] % 16 != 0
    assert sum(entry["params"] for entry in figures["channels"]) == figures["params"]
    for entry in (figures, *figures["channels"]):
        for key in ("fabric_cycles", "mparams_per_s", "efficiency", "sim_cycles_per_host_second"):
            assert entry[key] is None
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    table = capsys.readouterr().out
    for words in ("102,090", "untimed", "789.38", "86.3 %", "914.29", "backdoor"):
        assert words in table


def test_json_is_all_that_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sim(tmp_path, "--steps", "1", "--json") == 0
    output = capsys.readouterr()
    assert json.loads(output.out) == json.loads((tmp_path / "report.json").read_text())
    assert output.err == ""


def test_quiet_prints_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sim(tmp_path, "--steps", "1", "--quiet") == 0
    assert capsys.readouterr() == ("", "")


def test_a_wrong_bit_is_reported_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoilt(options: backends.BackendOptions) -> SpoilingTransport:
        # The first tensor of a channel begins at its first byte: 40 is in parameter 10.
        return SpoilingTransport(GoldenTransport(), channel=1, address=40)

    monkeypatch.setitem(backends.BACKENDS, "golden", spoilt)
    assert sim(tmp_path, "--steps", "5") == 1
    line = next(line for line in capsys.readouterr().err.splitlines() if "differ" in line)
    assert "step 1, channel 1: 1 of 51045 elements of p differ" in line
    assert "index 10" in line
    figures = json.loads((tmp_path / "report.json").read_text())
    assert figures["bit_exact"] is False
    assert figures["steps"] == 1
    assert [entry["bit_exact"] for entry in figures["channels"]] == [True, False]


def test_a_failing_device_fails_the_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(GoldenTransport):
        def write_lines(self, channel: int, address: int, data: np.ndarray) -> None:
            raise DeviceFault("DRAM rule TRCD broken at tCK 17")

    monkeypatch.setitem(backends.BACKENDS, "golden", lambda options: Broken())
    assert sim(tmp_path) == 1
    assert "nearmem: the device failed: DRAM rule TRCD broken" in capsys.readouterr().err


def test_the_rtl_trains_and_traces_its_dram(tmp_path: Path, backend: Transport) -> None:
    if backend.name != "rtl":
        pytest.skip("only the RTL has DRAM commands")
    trace = tmp_path / "trace.csv"
    options = ["--backend", "rtl", "--config", PRESET, "--steps", "2", "--quiet"]
    assert main(["sim", *options, "--out", str(tmp_path), "--dram-trace", str(trace)]) == 0
    figures = json.loads((tmp_path / "report.json").read_text())
    assert figures["bit_exact"] is True
    for entry in (figures, *figures["channels"]):
        assert 0 < entry["efficiency"] < 1
        assert entry["fabric_cycles"] > 0
        assert entry["sim_cycles_per_host_second"] > 0
        assert entry["mparams_per_s"] == pytest.approx(
            entry["params"] * entry["steps"] / entry["fabric_cycles"] * 200
        )
    slowest = max(entry["fabric_cycles"] for entry in figures["channels"])
    assert figures["fabric_cycles"] >= slowest
    lines = trace.read_text().splitlines()
    assert "tck,channel,command,bank_group,bank,row,column" in lines[:2]
    commands = {tuple(line.split(",")[1:3]) for line in lines[2:]}
    assert commands >= {(channel, name) for channel in "01" for name in ("ACT", "RD", "WR", "REF")}
