"""The command line: what it refuses, what it prints and writes."""

from __future__ import annotations

import errno
import gc
import inspect
import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from functools import reduce
from importlib.metadata import version
from operator import getitem
from pathlib import Path

import numpy as np
import pytest
from amaranth.hdl import Elaboratable, UnusedElaboratable

from hw.axdimm.config import configure
from hw.rules import PAPER_RULES
from hw_tests.driver.conftest import PRESET
from hw_tests.driver.refusals import assert_refused
from hw_tests.driver.transports import SpoilingTransport
from sw_driver.axdimm import backends
from sw_driver.axdimm.backends.golden import GoldenTransport
from sw_driver.axdimm.measure import refresh_note
from sw_driver.axdimm.registers import kernel_registers
from sw_driver.axdimm.transport import Transport
from sw_driver.cli import application, main
from sw_driver.commands import COMMANDS
from sw_driver.device.transport import DeviceFault
from sw_driver.experiments.training.trainer import TRAINING_RULES
from sw_driver.simulator.runtime import BuildError

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
    "simulated_fabric_cycles",
}


def sim(folder: Path, *options: str) -> int:
    return main(sim_arguments(folder, *options))


def sim_arguments(folder: Path, *options: str) -> list[str]:
    backend = [] if "--backend" in options else ["--backend", "golden"]
    return ["sim", *backend, "--out", str(folder), *options]


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
        (["--backend", "fpga"], ["fpga", "rtl", "golden"]),
        (["--config", "huge"], ["'huge'", "axdimm"]),
        (["--set", "rules=adamm"], ["'adamm'", "did you mean", "adamw"]),
        (["--set", "rules=sgd,sgd"], ["'sgd' twice"]),
        (["--set", "rules=copy"], ["rules is 'copy'", "stores y", "by g", "adamw, "]),
        (["--optimizer", "adamm"], ["--optimizer is 'adamm'", "did you mean", "adamw, "]),
        (["--optimizer", "copy"], ["--optimizer is 'copy'", "expected one of", "rmsprop, sgd"]),
        (["--optimizer", "sgd", "--set", "rules=sgd"], ["--optimizer and --set rules= change"]),
        (["--model", "llama"], ["llama", "digits", "gpt"]),
        (["--speed", "11"], ["--speed", "--help"]),
        (["surplus"], ["surplus"]),
        (["--wave", "wave.fst"], ["wave.fst", "golden", "rtl"]),
        (["--dram-trace", "trace.csv"], ["trace.csv", "golden", "rtl"]),
        (["--wave", "/no/such/folder/wave.fst"], ["/no/such/folder", "create"]),
        (["--dram-trace", "."], ["'.'", "folder"]),
    ],
    ids=" ".join,
)
def test_refusals_take_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: list[str]
) -> None:
    assert_refused(capsys, sim_arguments(tmp_path, *options), said)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("rule", TRAINING_RULES)
def test_every_rule_that_trains_is_an_optimizer(
    rule: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--backend", "golden", "--config", "tiny", "--capacity-mib", "2", "--json"]
    options += ["--steps", "8"]  # the first may go too far
    reports = []
    for choice in (["--optimizer", rule], ["--set", f"rules={rule}"]):
        assert main(["sim", *options, *choice, "--out", str(tmp_path)]) == 0
        reports.append(json.loads(capsys.readouterr().out))
        del reports[-1]["results"]["host"]
    assert reports[0] == reports[1]
    figures = reports[0]["results"]
    assert (figures["rule"], figures["bit_exact"]) == (rule, True)
    assert figures["loss_last"] < figures["loss_first"]


def test_the_gpt_needs_pytorch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if f"{name}.".startswith("sw_driver.torch.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)  # type: ignore[arg-type]
    assert_refused(capsys, sim_arguments(tmp_path, "--model", "gpt"), ["'gpt'", "'.[torch]'"])


@pytest.mark.parametrize("arguments", [["train"], ["--quiet"]])
def test_a_command_is_needed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_nothing_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    help_of_all = capsys.readouterr().out
    assert main(["--help"]) == 0
    assert capsys.readouterr().out == help_of_all


def test_options_stand_between_names() -> None:
    words = "verilog fp32_add --set lanes=4 --lanes 8 fp32_mul --set rules=sgd fp32_div"
    _, given, _ = application().parse_args(words)
    assert given.args == ("fp32_add", "fp32_mul", "fp32_div")
    options = given.kwargs["options"]
    assert (options.set, options.lanes) == (("lanes=4", "rules=sgd"), 8)


def test_what_takes_one_value_takes_no_second(capsys: pytest.CaptureFixture[str]) -> None:
    """Each option of each command, whichever way it has its value, but those for several."""
    several = {"--set", "--axis", "--depth", "--layer", "--machine"}
    app, tried = application(), set()
    for name in COMMANDS:
        command = reduce(getitem, name.split(), app)
        for option in command.assemble_argument_collection(parse_docstring=False):
            word = next((each for each in option.names if each.startswith("--")), None)
            if word is None or word in several:
                continue
            tried.add(word)
            if option.hint is bool:
                given, second = [word, word], ""
            else:
                given, second = [word, "1", f"{word}=2"], ", the second time as '2'"
            assert main([*name.split(), *given]) == 2
            assert capsys.readouterr().err == (
                f"nearmem: {word} is given twice{second}: give it once\n"
            )
    assert len(tried) > 50


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["sim", "--set", "lanes=1", "--set", "lanes=2"], "lanes is given twice"),
        (["sim", "--lanes", "2", "--set", "lanes=1"], "--lanes and --set lanes= change the same"),
        (["sim", "--block-kib", "2", "--set", "block_bytes=1"], "--block-kib and --set block_b"),
        (
            ["sim", "--capacity-mib", "2", "--set", "rows=16"],
            "--capacity-mib and --set rows= change",
        ),
        (["config", "axdimm", "--set", "rows=16", "--set", "capacity_bytes=1"], "rows and capac"),
        (["cost", "--depth", "add=8", "--depth", "add=9"], "--depth has add twice, as 8 and 9"),
        (
            ["compare", "gpt3-xl", "--set", "gpu.idle_w=1", "--set", "gpu.idle_w=2"],
            "as '1' and '2'",
        ),
        (["reproduce", "axdimm", "--set", "a.b=1", "--set=a.b=2"], "'a.b' twice, as '1' and '2'"),
    ],
    ids=" ".join,
)
def test_a_setting_has_one_value(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(capsys, options, [said])


@pytest.mark.parametrize("arguments", [["--help"], ["sim", "--help"]])
def test_help(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Usage: nearmem")
    assert max(map(len, lines)) <= 80


def test_every_command_has_json_and_quiet_and_says_what_its_options_are() -> None:
    app = application()
    for name in COMMANDS:
        command = reduce(getitem, name.split(), app)
        arguments = command.assemble_argument_collection(parse_docstring=True)
        assert {"--json", "--quiet"} <= {each for option in arguments for each in option.names}
        for option in arguments:
            assert option.parameter.help or not option.show, (name, option.name)


def test_every_command_ends_its_help_with_an_example() -> None:
    app = application()
    for name in COMMANDS:
        command = reduce(getitem, name.split(), app)
        description = inspect.cleandoc(command.help).partition("\n\nParameters\n")[0]
        example = description.splitlines()[-1]
        assert example.startswith(f"Example: nearmem {name}"), name
        app.parse_args(example.removeprefix("Example: nearmem "))


def test_help_of_the_command_loads_nothing_slow() -> None:
    program = """
import sys
from sw_driver.cli import main
assert main(["--help"]) == 0
assert not {"amaranth", "matplotlib", "numpy", "scipy", "torch"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)


def test_a_command_imports_no_other() -> None:
    program = """
import sys
from sw_driver.cli import main
assert main(["plan", "memferry", "--help"]) == 0
commands = {name for name in sys.modules if name.startswith("sw_driver.commands.")}
assert commands == {f"sw_driver.commands.{name}" for name in ("plan_memferry", "screen")}, commands
"""
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr() == (f"nearmem {version('nearmem')}\n", "")


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["mea"], ["measure"]),
        (["sim", "--dram"], ["--dram-trace"]),
        (["sim", "--dram-trace", "a_f"], ["a_file"]),
    ],
    ids=" ".join,
)
def test_bash_completes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], offered: list[str]
) -> None:
    assert main(["--print-completion", "bash"]) == 0
    (tmp_path / "a_file").touch()
    (tmp_path / "completion").write_text(capsys.readouterr().out)
    script = (
        '. ./completion; COMP_WORDS=(nearmem "$@"); COMP_CWORD=$#; _nearmem 2>/dev/null; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    command = ["bash", "-c", script, "bash", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == offered


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("arguments", [["--version"], ["config", "axdimm"], ["cache"]])
def test_output_that_cannot_be_written(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "sw_driver.cli", *arguments]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == "nearmem: standard output: No space left on device\n"


def test_a_temporary_file_that_cannot_be_written_is_not_standard_output(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("sw_driver.commands.config.run", full)
    monkeypatch.setattr(
        "sw_driver.cli.disk_usage", lambda _: shutil.disk_usage("/")._replace(free=0)
    )
    assert_refused(capsys, ["config"], ["No space left on device", "TMPDIR"])


def test_output_that_nobody_reads() -> None:
    reads, writes = os.pipe()
    os.close(reads)
    command = [sys.executable, "-m", "sw_driver.cli", "config", "axdimm"]
    with os.fdopen(writes, "w") as pipe:
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "")


def test_presets_of_all_hardware_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["results"]
    assert {"axdimm", "tiny"} <= set(listed["module"])
    assert {"paper", "tiny"} <= set(listed["pim"])
    assert {"paper", "paper_ddr4_2400", "tiny"} == set(listed["memory-node"])
    assert main(["config"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0].rstrip(":") for line in lines] == list(listed)


def test_zsh_has_a_completion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--print-completion", "zsh"]) == 0
    assert capsys.readouterr().out.startswith("#compdef nearmem")


def test_report_and_curve_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sim(tmp_path, "--steps", "3", "--lanes", "4", "--block-kib", "8", "--seed", "9") == 0
    document = json.loads((tmp_path / "report.json").read_text())
    figures, machine = document["results"], document["machine"]
    assert figures.keys() >= REPORT_KEYS | {"channels"}
    assert figures["version"] == version("nearmem")
    assert document["workload"] == {"model": "digits", "rule": "adam", "steps": 3, "seed": 9}
    assert figures["bit_exact"] is True
    assert figures["steps"] == 3
    assert figures["params"] >= 100_000
    assert figures["loss_last"] < figures["loss_first"]
    assert (machine["lanes"], machine["block_bytes"]) == (4, 8192)
    assert [entry["channel"] for entry in figures["channels"]] == [0, 1]
    for entry in figures["channels"]:
        assert entry.keys() >= REPORT_KEYS
        assert entry["params"] % 16 != 0
    assert sum(entry["params"] for entry in figures["channels"]) == figures["params"]
    for entry in (figures, *figures["channels"]):
        for key in ("fabric_cycles", "mparams_per_s", "efficiency"):
            assert entry[key] is None
    assert figures["refresh_limit"] is None
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    table = capsys.readouterr().out
    for words in ("102,090", "untimed", "789.38", "86.3%", "914.29", "backdoor"):
        assert words in table


def test_json_is_all_that_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sim(tmp_path, "--steps", "1", "--json") == 0
    output = capsys.readouterr()
    assert json.loads(output.out) == json.loads((tmp_path / "report.json").read_text())
    assert output.err == ""


@pytest.mark.parametrize(
    ("command", "machine", "workload"),
    [
        ("config", set(), set()),
        ("config tiny", set(), set()),
        ("cache", set(), set()),
        ("registers --out . --rules sgd", {"rules"}, set()),
        ("rules sgd --count 1000", {"lanes", "part"}, {"count"}),
        ("verilog fp32_sign --out .", {"module", "pim"}, {"designs"}),
        ("pim --config tiny --fully-connected 2,3,4", {"bank_bytes"}, {"layers", "pass", "seed"}),
        ("sweep --config tiny --backend cycles --count 1000 --out .", {"preset"}, {"axes"}),
    ],
)
def test_json_has_the_same_keys_of_every_command(
    command: str,
    machine: set[str],
    workload: set[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*command.split(), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document) == ["results", "assumptions", "machine", "workload", "files"]
    assert document["results"]
    assert document["machine"].keys() >= machine
    assert document["workload"].keys() >= workload
    assert {Path(file).name for file in document["files"]} == {
        file.name for file in tmp_path.iterdir()
    }


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
    figures = json.loads((tmp_path / "report.json").read_text())["results"]
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


def test_an_interrupted_command_does_not_warn_of_what_it_has_not_come_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unused(Elaboratable):
        pass

    def interrupted(options: backends.BackendOptions) -> Transport:
        begun = [Unused()]
        signal.raise_signal(signal.SIGINT)
        raise AssertionError(begun)

    # As when Amaranth has elaborated something.
    monkeypatch.setattr(UnusedElaboratable, "_MustUse__silence", False)
    monkeypatch.setitem(backends.BACKENDS, "golden", interrupted)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert sim(tmp_path) == 130
        gc.collect()
    assert warned == []
    assert capsys.readouterr().err == "nearmem: interrupted\n"


def test_the_rtl_trains_and_traces_its_dram(tmp_path: Path, backend: Transport) -> None:
    if backend.name != "rtl":
        pytest.skip("only the RTL has DRAM commands")
    trace = tmp_path / "trace.csv"
    options = ["--backend", "rtl", "--config", PRESET, "--steps", "2", "--quiet"]
    assert main(["sim", *options, "--out", str(tmp_path), "--dram-trace", str(trace)]) == 0
    figures = json.loads((tmp_path / "report.json").read_text())["results"]
    assert figures["bit_exact"] is True
    for entry in (figures, *figures["channels"]):
        assert 0 < entry["efficiency"] < 1
        assert entry["fabric_cycles"] > 0
        assert entry["simulated_fabric_cycles"] > entry["fabric_cycles"]
        assert entry["mparams_per_s"] == pytest.approx(
            entry["params"] * entry["steps"] / entry["fabric_cycles"] * 200
        )
    assert figures["host"]["fabric_cycles_per_second"] > 0
    assert figures["refresh_limit"] == 1 - 128 / 1600
    slowest = max(entry["fabric_cycles"] for entry in figures["channels"])
    assert figures["fabric_cycles"] >= slowest
    lines = trace.read_text().splitlines()
    assert "tck,channel,command,bank_group,bank,row,column" in lines[:2]
    commands = {tuple(line.split(",")[1:3]) for line in lines[2:]}
    assert commands >= {(channel, name) for channel in "01" for name in ("ACT", "RD", "WR", "REF")}


@pytest.mark.parametrize(
    ("preset", "limit"),
    [
        ("axdimm", "92.95 %"),
        ("axdimm_8gbit_x16", "95.51 %"),
        ("axdimm_ddr4_2400", "95.50 %"),
        ("tiny", "92.00 %"),
    ],
)
def test_more_than_refresh_leaves_is_explained(preset: str, limit: str) -> None:
    share = configure(preset).refresh_efficiency
    for efficiency, most in ((None, None), (0.9, None), (share, share)):
        assert refresh_note({"efficiency": efficiency, "refresh_limit": most}) is None
    note = refresh_note({"efficiency": share + 0.001, "refresh_limit": share})
    assert note is not None
    assert limit in note


class _FastTransport(GoldenTransport):
    """Has a clock, and counts as many cycles for a run as an efficiency of 94 % takes."""

    timed = True

    def read_lines(self, channel: int, address: int, nbytes: int) -> np.ndarray:
        data = super().read_lines(channel, address, nbytes)
        window = kernel_registers(self, channel, PAPER_RULES)
        cycles, beats = window.address("cycles"), window.address("beats_read")
        if address <= cycles < address + nbytes:
            read = int.from_bytes(super().read_lines(channel, beats, 64)[:8].tobytes(), "little")
            data[cycles - address :][:8] = list(int(read * 7 / 4 / 0.94).to_bytes(8, "little"))
        return data


@pytest.mark.parametrize(
    ("preset", "limit"), [("axdimm", "92.95 %"), ("axdimm_ddr4_2400", None), ("tiny", "92.00 %")]
)
def test_the_limit_is_that_of_the_configuration(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    preset: str,
    limit: str | None,
) -> None:
    def fast(options: backends.BackendOptions) -> GoldenTransport:
        return _FastTransport(capacity_bytes=1 << 20)

    monkeypatch.setitem(backends.BACKENDS, "golden", fast)
    assert sim(tmp_path, "--steps", "1", "--config", preset) == 0
    figures = json.loads((tmp_path / "report.json").read_text())["results"]
    assert figures["refresh_limit"] == configure(preset).refresh_efficiency
    assert figures["efficiency"] == pytest.approx(0.94, abs=0.001)
    printed = capsys.readouterr().out
    assert ("refresh leaves" in printed) == (limit is not None)
    assert limit is None or limit in printed


class _Unopened(GoldenTransport):
    """What ``bench`` takes for the simulator."""


@pytest.fixture
def small_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(options: backends.BackendOptions) -> GoldenTransport:
        return _Unopened(capacity_bytes=backends.module_config(options).capacity_bytes)

    monkeypatch.setitem(backends.BACKENDS, "rtl", opened)
    monkeypatch.setattr("sw_driver.axdimm.backends.rtl.VerilatedTransport", _Unopened)


@pytest.mark.usefixtures("small_bench")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--config", "tiny", "--parameters", "500000"], ["2000000", "--parameters"]),
        (["--config", "huge"], ["'huge'", "axdimm"]),
        (["--repetitions", "0"], ["'0'", "at least 1"]),
    ],
    ids=" ".join,
)
def test_refusals_of_bench_take_one_line(
    capsys: pytest.CaptureFixture[str], options: list[str], said: list[str]
) -> None:
    assert_refused(capsys, ["bench", *options], said)


@pytest.mark.parametrize("command", [["bench"], ["sim", "--quiet", "--out"]], ids=lambda c: c[0])
def test_a_simulator_that_cannot_be_built_fails_the_job(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
) -> None:
    def unbuilt(options: backends.BackendOptions) -> Transport:
        raise BuildError("'verilator' was not found:\n the simulator needs g++, make and perl")

    monkeypatch.setitem(backends.BACKENDS, "rtl", unbuilt)
    assert main([*command, str(tmp_path)] if command[0] == "sim" else command) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert (
        output.err == "nearmem: 'verilator' was not found: the simulator needs g++, make and perl\n"
    )


@pytest.mark.usefixtures("small_bench")
def test_a_device_that_fails_fails_bench(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*call: object) -> None:
        raise DeviceFault("DRAM rule TRCD broken at tCK 17")

    monkeypatch.setattr(_Unopened, "backdoor_write", broken)
    assert main(["bench", "--config", "tiny", "--parameters", "100"]) == 1
    assert capsys.readouterr().err == (
        "nearmem: the device failed: DRAM rule TRCD broken at tCK 17\n"
    )


def test_bench_measures_the_rtl(capsys: pytest.CaptureFixture[str], backend: Transport) -> None:
    if backend.name != "rtl":
        pytest.skip("only the RTL has a speed")
    options = ["--config", PRESET, "--parameters", "2000", "--repetitions", "2", "--json"]
    assert main(["bench", *options]) == 0
    output = capsys.readouterr()
    figures = json.loads(output.out)["results"]
    assert 0 < figures["efficiency"] < 1
    assert figures["ratio"] > 0
    assert output.err == ""
