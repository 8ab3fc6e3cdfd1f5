"""What all commands share: configurations from files, numbers, and files that are whole or not."""

from __future__ import annotations

import json
import resource
import signal
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from hw.axdimm.config import MODULE_PRESETS, configure
from hw.pim.config import PIM_PRESETS
from hw.pim.config import configure as configure_pim
from hw.verilog.generate import DESIGNS, Machines
from hw_tests.driver.refusals import assert_refused
from sw_driver.cli import main
from sw_driver.experiments.settings import MODULE_KEYS, PIM_KEYS, read_settings
from sw_driver.numbers import parse_integer
from sw_driver.simulator import buildcache
from sw_driver.simulator.traces import merge_dram_traces


@pytest.mark.parametrize("preset", MODULE_PRESETS)
def test_a_module_printed_is_the_module_again(
    preset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", preset, "--set", "lanes=8"]) == 0
    file = tmp_path / "module.toml"
    file.write_text(capsys.readouterr().out)
    assert configure(**read_settings(str(file), [], MODULE_KEYS)) == configure(preset, lanes=8)


# Keys, and whether the part still is the one that it was made from.
CHANGES = {
    "t_rcd=19": False,
    "tck_ps=800": False,
    "tck_ps=500 allow_nonstandard=true t_ccd_l=8": False,
    "part=ddr4_2933_16gbit_x4 t_wr=30": False,
    "part=ddr4_1600_8gbit_x16 bank_groups=4 allow_nonstandard=true": False,
    "part=ddr4_2666_16gbit_x8": True,
    "capacity_bytes=64MiB allow_nonstandard=true": True,
}


@pytest.mark.parametrize("changes", CHANGES)
def test_a_changed_part_has_its_own_name_and_is_made_again(
    changes: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the trace, the report and the Verilog; what says how to make it does."""
    entries = changes.split()
    settings = read_settings("axdimm", entries, MODULE_KEYS)
    base = str(settings.get("part", "ddr4_1600_16gbit_x8"))
    name = base if CHANGES[changes] else f"{base}_changed"
    config = configure(**settings)
    timing = asdict(config.part.timing)
    merge_dram_traces([], tmp_path / "trace.csv", config.part)
    header = (tmp_path / "trace.csv").read_text().split("\n")[0].split()
    assert f"preset={name}" in header
    assert {f"{key}={value}" for key, value in timing.items()} < set(header)
    machines = Machines(module=config, pim=PIM_PRESETS["tiny"])
    design = DESIGNS["ddr4_controller"](machines)
    for part in (config.describe()["part"], design.configuration["part"]):
        assert (part["name"], part["timing"]) == (name, timing)
    options = design.options or ()
    assert set(options) == {f"--set {each}" for each in entries if "capacity" not in each} | (
        {f"--set rows={config.part.geometry.rows}"} if "capacity" in changes else set()
    )
    again = read_settings("axdimm", [each.removeprefix("--set ") for each in options], MODULE_KEYS)
    assert configure(**again) == config
    assert main(["config", "axdimm", *(f"--set={each}" for each in entries)]) == 0
    file = tmp_path / "module.toml"
    file.write_text(capsys.readouterr().out)
    assert configure(**read_settings(str(file), [], MODULE_KEYS)) == config


@pytest.mark.parametrize("preset", PIM_PRESETS)
def test_a_pim_printed_is_the_pim_again(
    preset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if preset in MODULE_PRESETS:
        pytest.skip("the module's preset of that name is what is printed")
    assert main(["config", preset, "--set", "buffer_bytes=32KiB"]) == 0
    file = tmp_path / "pim.toml"
    file.write_text(capsys.readouterr().out)
    found = configure_pim(**read_settings(str(file), [], PIM_KEYS))
    assert found == configure_pim(preset, buffer_bytes=32768)


@pytest.mark.parametrize("preset", ["axdimm", "paper"])
def test_every_setting_says_what_it_means(preset: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", preset]) == 0
    settings = capsys.readouterr().out.strip().split("\n\n")
    assert f"{settings}".count(" = ") == len(settings)
    for setting in settings:
        *meaning, value = setting.splitlines()
        assert meaning, value
        assert all(line.startswith("# ") and "`" not in line for line in meaning)
        assert meaning[-1].endswith(".")


def test_a_job_takes_file_settings_and_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('preset = "axdimm"\nlanes = 4\nblock_bytes = "4KiB"\nrefresh = false\n')
    options = ["--set", "block_bytes=8KiB", "--capacity-mib", "32", "--steps", "1", "--json"]
    command = ["sim", "--backend", "cycles", "--config", str(file), "--out", str(tmp_path)]
    assert main([*command, *options]) == 0
    machine = json.loads(capsys.readouterr().out)["machine"]
    assert (machine["lanes"], machine["block_bytes"]) == (4, 8192)
    assert machine["capacity_bytes"] == 32 << 20
    assert machine["controller"]["refresh"] is False


def test_a_list_in_a_sweeps_file_is_an_axis(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text('preset = "tiny"\nlanes = [1, 2]\ncount = 1_000\nblock_bytes = 512\n')
    command = ["sweep", "--backend", "cycles", "--config", str(file), "--out", str(tmp_path)]
    assert main([*command, "--set", "block_bytes=1KiB", "--jobs", "1", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["results"]
    assert [(row["lanes"], row["block_bytes"], row["count"]) for row in rows] == [
        (1, 1024, 1000),
        (2, 1024, 1000),
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("lanes = \n", ["cannot be read", "line 1"]),
        ("[part]\nt_rcd = 3\n", ["table [part]"]),
        ("lanse = 4\n", ["'lanse'", "lanes"]),
        ('lanes = "many"\n', ["'many'", "4KiB"]),
    ],
)
def test_refuses_bad_files(
    content: str, said: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(content)
    assert_refused(capsys, ["sim", "--backend", "golden", "--config", str(file)], said)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["sim", "--set", "lanes"], ["'lanes'", "KEY=VALUE"]),
        (["sim", "--set", "lanes=1", "--set", "lanes=2"], ["lanes", "twice"]),
        (["sim", "--wave-from", "10"], ["--wave"]),
        (["sim", "--out", "/dev/null/sim"], ["/dev/null/sim", "--out"]),
        (["sim", "--set", "memory=axi4"], ["'axi4'", "nearmem verilog", "'ddr4'"]),
        (["pim", "--set", "clocking=dozens"], ["'dozens'", "gated"]),
        (["config", "nowhere.toml"], ["'nowhere.toml'", "axdimm", "TOML"]),
        (["config", "--set", "lanes=1"], ["name a preset"]),
        (["config", "axdimm", "--set", "lanes=3"], ["3", "16"]),
    ],
)
def test_refuses(options: list[str], said: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(capsys, options, said)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4096", 4096),
        ("1e6", 1_000_000),
        ("1e+6", 1_000_000),
        ("1E6", 1_000_000),
        ("2.5E+3", 2500),
        ("+8", 8),
        ("1e++6", None),
        ("2.5e3", 2500),
        ("4KiB", 4096),
        ("1.5 mib", 1_572_864),
        ("1_000", 1000),
        ("-3", -3),
        ("1.5", None),
        ("4kb", None),
        ("0x10", None),
        ("", None),
        ("1e999", None),
    ],
)
def test_numbers(text: str, value: int | None) -> None:
    assert parse_integer(text) == value


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_files_of_other_editors_are_read(
    encoding: str, end: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "module.toml"
    file.write_bytes(f'preset = "axdimm"{end}lanes = 4{end}'.encode(encoding))
    assert main(["config", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"]["lanes"] == 4
    profile = tmp_path / "profile.csv"
    profile.write_bytes(f"operation,time,accesses{end}a,1e+3,5{end}".encode(encoding))
    assert main(["plan", "hetero-pim", str(profile), "--json"]) == 0
    assert '"a"' in capsys.readouterr().out


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file can grow beyond some bytes, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize(
    ("command", "file"),
    [
        ("sim --backend golden --steps 1 --out .", "report.json"),
        ("sim --backend cycles --config tiny --steps 1 --timeline time.json", "time.json"),
    ],
)
def test_what_cannot_be_written_is_as_it_was(
    command: str,
    file: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(file).write_text("before")
    request.getfixturevalue("full_disk")
    assert main([*command.split(), "--quiet"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1
    assert f"{file}'" in errors[0]
    assert Path(file).read_text() == "before"
    assert not list(tmp_path.rglob(".*"))


@pytest.mark.parametrize("command", [["verilog", "fp32_mul"], ["registers"]])
def test_where_no_file_can_be_made_is_said(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--out", "/proc", "--quiet"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "'/proc" in line


def test_where_no_builds_can_be_kept_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NEARMEM_CACHE_DIR", "/proc/builds")
    command = ["sim", "--config", "tiny", "--steps", "1", "--quiet", "--out", str(tmp_path)]
    assert_refused(capsys, command, ["'/proc/builds/rtl/", "NEARMEM_CACHE_DIR"])


def test_a_trace_that_cannot_be_written_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    trace = tmp_path / "trace.csv"
    command = ["sim", "--backend", "rtl", "--config", "tiny", "--steps", "1", "--quiet"]
    assert main([*command, "--out", str(tmp_path)]) == 0  # built
    request.getfixturevalue("full_disk")
    assert main([*command, "--out", str(tmp_path), "--dram-trace", str(trace)]) == 2
    assert not list(tmp_path.glob("trace*"))
    capsys.readouterr()


def test_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    timeline = tmp_path / "timeline.json"
    command = ["sim", "--backend", "cycles", "--config", "tiny", "--steps", "1"]
    assert main([*command, "--out", str(tmp_path), "--timeline", str(timeline)]) == 0
    output = capsys.readouterr().out
    for name in ("report.json", "loss.png", "timeline.json"):
        assert f"{tmp_path / name}\n" in output
        assert (tmp_path / name).is_file()


def test_builds_are_listed_removed_and_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NEARMEM_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(buildcache, "LIMIT_BYTES", 3_000_000)

    def build(folder: Path) -> None:
        (folder / "library").write_bytes(bytes(1_000_000))

    for name in ("one", "two", "three"):
        folder = buildcache.cached_build("kind", name, build, f"build {name}")
        assert (folder / "library").exists()
    abouts = [each.about for each in buildcache.cached_builds()]
    assert abouts == ["build three", "build two"]
    assert main(["cache"]) == 0
    assert "build two" in capsys.readouterr().out
    assert main(["cache", "--clear", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["results"]["builds"]) == 2
    assert buildcache.cached_builds() == []


@pytest.mark.parametrize(
    "arguments",
    [
        "compare nosuch",
        "cost nosuch",
        "pim --train --set nosuch=1",
        "plan hetero-pim nosuch",
        "plan memferry nosuch",
        "plan sentinel nosuch",
        "registers --rules nosuch",
        "reproduce axdimm nosuch",
        "sim --set nosuch=1",
        "sweep --axis nosuch=1",
        "verilog nosuch",
        "workload nosuch",
    ],
)
def test_a_refused_command_leaves_no_folder(
    arguments: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "folder"
    assert_refused(capsys, [*arguments.split(), "--out", str(folder)], ["nosuch"])
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("study fcfs --copy-kib 128", ["--copy-kib is 128, but fcfs has none"]),
        ("study parallel --window 20000", ["--window is 20000, but parallel has none"]),
        ("registers --rules=", ["''"]),
        ("verilog adam_unit fp32_add --cores 2", ["--cores is 2, but adam_unit, fp32_add has"]),
        ("workload word2vec --batch 129", ["batch is 129, but 'word2vec' has 128 samples", "64"]),
        ("config nosuch", ["'nosuch'", "axdimm", "paper"]),
        ("sweep --backend cycles --no-arithmetic", ["--no-arithmetic is for the RTL", "'cycles'"]),
    ],
)
def test_an_option_without_effect_is_refused(
    arguments: str, said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(capsys, arguments.split(), said)
