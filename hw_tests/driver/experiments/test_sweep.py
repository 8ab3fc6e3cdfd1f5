"""Sweeps: what is refused, where points are measured, interruptions, and what is written."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from golden import narrow
from golden.rules import reference
from hw.narrow.formats import MIXTURES, Formats
from hw_tests.driver.refusals import assert_refused
from sw_driver.axdimm import Axdimm, rulejob
from sw_driver.axdimm.backends import BackendOptions, module_config
from sw_driver.axdimm.measure import FIGURES, measure_step
from sw_driver.axdimm.runs import DRAM_TIMES
from sw_driver.cli import main
from sw_driver.device.errors import InvalidArgumentError
from sw_driver.experiments.settings import parse_value
from sw_driver.experiments.sweep import executors, grid, measure, run
from sw_driver.experiments.sweep.executors import dask_cluster, outcomes
from sw_driver.experiments.sweep.grid import Grid, Point
from sw_driver.experiments.sweep.store import ResultStore
from sw_driver.simulator import sources
from sw_driver.simulator.workers import processes

TINY = ["--config", "tiny"]


def sweep(folder: Path, *options: str) -> int:
    return main(sweep_arguments(folder, *options))


def sweep_arguments(folder: Path, *options: str) -> list[str]:
    return ["sweep", "--out", str(folder), *TINY, *options]


def table_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "results.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def golden_point(count: int, **settings: Any) -> Point:
    values = {"preset": "tiny", "count": count, "stagger": True, **settings}
    return Point(backend="golden", settings=values)


# What is asked for.


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("lanes", "4", 4),
        ("block_bytes", "16KiB", 16384),
        ("capacity_bytes", "1 mib", 1 << 20),
        ("count", "4_000_000", 4_000_000),
        ("refresh", "false", False),
        ("stagger", "True", True),
        ("part", "tiny", "tiny"),
        ("preset", "axdimm_ddr4_2400", "axdimm_ddr4_2400"),
        ("rules", "sgd,lion", "sgd,lion"),
    ],
)
def test_values_are_read_by_the_kind_of_their_key(name: str, text: str, value: object) -> None:
    parsed = parse_value(name, text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("options", "phrases"),
    [
        (["--count", "100", "--axis", "lane=1,2"], ["'lane'", "lanes", "queue_depth"]),
        (["--count", "100", "--set", "frobnicate=1"], ["'frobnicate'", "lanes", "t_rfc"]),
        (["--count", "100", "--axis", "lanes=2,two"], ["'two'", "lanes", "integer"]),
        (["--count", "100", "--set", "refresh=yes"], ["'yes'", "true or false"]),
        (["--count", "100", "--set", "part=tinny"], ["'tinny'", "did you mean tiny?"]),
        (["--count", "1.5"], ["'1.5'", "count", "integer"]),
        (["--count", "100", "--axis", "block_bytes=1KiB,1024"], ["'1024'", "twice"]),
        (["--count", "100", "--set", "lanes=2", "--axis", "lanes=1,2"], ["lanes", "twice"]),
        (["--count", "100", "--set", "lanes"], ["--set", "'lanes'", "KEY=VALUE"]),
        (["--count", "100", "--axis", "lanes="], ["--axis", "'lanes='", "KEY=V1,V2"]),
        (["--axis", "lanes=1,2"], ["4194304", "16,777,216 bytes", "smaller count"]),
        (["--count", "0"], ["count", "0", "at least 1"]),
        (["--count", "100", "--axis", "lanes=2,3"], ["count=100", "lanes=3", "16"]),
        (["--count", "100", "--axis", "queue_depth=8,9"], ["queue_depth=9", "power of two"]),
        (["--count", "10,99999"], ["count=99999", "399,996 bytes", "1,048,576"]),
        (["--count", "100", "--backend", "fpga"], ["fpga", "rtl", "cycles"]),
        (["--count", "256", "--set", "formats=bf16_g"], ["formats=bf16_g", "axdimm_narrow"]),
        (["--count", "100", "--set", "formats=bf16"], ["'bf16'", "bf16_gp_8bit"]),
        (["--count", "100", "--jobs", "0"], ["'0'", "from 1"]),
        (["--count", "100", "--jobs", "2", "--dask", "tcp://x"], ["exclusive", "--jobs", "--dask"]),
    ],
    ids=" ".join,
)
def test_refusals_take_one_line_and_nothing_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], phrases: list[str]
) -> None:
    assert_refused(capsys, sweep_arguments(tmp_path, *options), phrases)
    assert not list(tmp_path.iterdir())


def test_what_the_host_has_no_memory_for_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 10**6}.__getitem__)
    options = ["sweep", "--out", str(tmp_path), "--backend", "rtl", "--count"]
    assert main([*options, "10,100000000"]) == 2
    err = capsys.readouterr().err
    assert "count=100000000" in err
    assert "6.4 GB" in err
    assert "4.1 GB" in err
    assert not list(tmp_path.iterdir())


def test_the_grid_has_every_combination_the_last_axis_fastest() -> None:
    grid = Grid.parse(
        backend="rtl",
        config="tiny",
        counts=None,
        fixed=["lanes=4"],
        axes=["stagger=true,false", "count=100,200"],
    )
    points = grid.points()
    measured = [(point.stagger, point.count, point.settings["lanes"]) for point in points]
    assert measured == [(True, 100, 4), (True, 200, 4), (False, 100, 4), (False, 200, 4)]
    assert all(point.config().lanes == 4 for point in points)


def test_a_channel_gets_the_memory_that_the_tensors_need() -> None:
    def capacity(count: int, **settings: Any) -> int:
        values = {"preset": "axdimm", "count": count, "stagger": True, **settings}
        return Point(backend="rtl", settings=values).config().capacity_bytes

    assert capacity(1000) == 64 << 20
    assert capacity(4_000_000) == 64 << 20
    assert capacity(4_200_000) == 128 << 20
    assert capacity(1_000_000_000) == 16 << 30
    assert capacity(1000, capacity_bytes=1 << 20) == 1 << 20
    with pytest.raises(InvalidArgumentError, match="count=1100000000"):
        capacity(1_100_000_000)


def test_a_key_tells_what_is_measured_from_what_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    point = golden_point(100)
    same = golden_point(100, lanes=point.config().lanes, block_bytes=1024)
    assert same.key() == point.key()
    others = [
        golden_point(101),
        golden_point(100, stagger=False),
        golden_point(100, t_rfc=127),
        golden_point(100, run_length=5),
        Point(backend="rtl", settings=point.settings),
        Point(backend="rtl", settings=point.settings, arithmetic=False),
    ]
    keys = {point.key(), *(other.key() for other in others)}
    assert len(keys) == 1 + len(others)
    monkeypatch.setattr(grid, "sources_key", lambda backend: f"other sources of {backend}")
    assert point.key() not in keys


def test_a_key_changes_with_the_sources_of_its_backend_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in sources.PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(sources.ROOT / package, tmp_path / package, ignore=ignored)
    monkeypatch.setattr(sources, "ROOT", tmp_path)

    def keys() -> dict[str, str]:
        return {name: grid.sources_key.__wrapped__(name) for name in ("rtl", "golden", "cycles")}

    every = {"rtl", "golden", "cycles"}
    depending: dict[str, set[str]] = {
        "sw_driver/commands/sweep.py": set(),
        "sw_driver/experiments/sweep/plots.py": set(),
        "sw_driver/experiments/measure/adam.py": set(),
        "sw_driver/pim/device.py": set(),
        "hw/pim/registers/pim.rdl": set(),
        "hw/dram/columns.py": {"rtl"},
        "hw/float/add.py": {"rtl"},
        "hw/sim/dram_device.v": {"rtl"},
        "sw_driver/axdimm/backends/harness.cpp": {"rtl"},
        "sw_driver/simulator/second_thread.h": {"rtl"},
        "sw_driver/predict/dram/rows.py": {"cycles"},
        "hw/dram/fabric_timing.py": {"rtl", "cycles"},
        "sw_driver/axdimm/backends/cycles.py": {"cycles"},
        "sw_driver/axdimm/backends/golden.py": {"golden", "cycles"},
        "golden/rules/adam.py": every,
        "golden/rules/lion.py": every,
        "hw/rules/lion.py": every,
        "hw/axdimm/arbiter.rdl": every,
        "hw/kernel/kernel.rdl": every,
        "hw/axdimm/config.py": every,
        "sw_driver/axdimm/channel.py": every,
        "sw_driver/axdimm/rulejob.py": every,
    }
    before = keys()
    for name, expected in depending.items():
        with (tmp_path / name).open("a") as file:
            file.write("\n")
        after = keys()
        assert {key for key in every if after[key] != before[key]} == expected, name
        before = after


# What is found out.


def test_a_point_measures_its_first_rule(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--backend", "cycles", "--count", "1000", "--axis", "rules=sum_squares,sgd,fill"]
    assert sweep(tmp_path, *options, "--json") == 0
    rows = json.loads(capsys.readouterr().out)["results"]
    assert [row["rule"] for row in rows] == ["sum_squares", "sgd", "fill"]
    assert [row["bytes_per_parameter"] for row in rows] == [4, 12, 4]
    for row in rows:
        assert row["ceiling_mparams_per_s"] == 2 * 200 * 64 / row["bytes_per_parameter"]
        assert row["mparams_per_s"] == pytest.approx(2000 / row["fabric_cycles"] * 200)
    several = Grid.parse(
        backend="golden", config="tiny", counts="10", fixed=["rules=sgd,fill"], axes=[]
    )
    (point,) = several.points()
    figures = measure.measure_point(point)
    assert (figures["rule"], figures["error"]) == ("sgd", None)


@pytest.mark.parametrize("name", ["sgd", "accumulate", "scale_add", "sum_squares"])
def test_a_sweep_of_one_point_ends_well_whatever_its_rule(
    tmp_path: Path, here: Here, name: str
) -> None:
    here.outcome = measure.measure_point
    options = ["--backend", "cycles", "--set", f"rules={name}", "--axis", "lanes=1"]
    assert sweep(tmp_path, *options, "--count", "1000", "--quiet") == 0
    (row,) = table_of(tmp_path)
    assert row["rule"] == name
    assert float(row["mparams_per_s"]) > 0


def test_each_of_several_formats_has_its_own_ceiling(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--config", "axdimm_narrow", "--axis", f"formats={','.join(MIXTURES)}"]
    arguments = ["sweep", "--out", str(tmp_path), "--backend", "cycles", *options]
    assert main([*arguments, "--count", "262144", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["results"]
    assert [row["formats"] for row in rows] == [*MIXTURES]
    assert [row["bytes_per_parameter"] for row in rows] == [28, 26, 14.0625, 10.0625]
    for row in rows:
        assert row["ceiling_mparams_per_s"] == 2 * 200 * 64 / row["bytes_per_parameter"]
        assert 0.91 < row["efficiency"] == row["mparams_per_s"] / row["ceiling_mparams_per_s"]
        moved = 64 * (row["beats_read"] + row["beats_written"])
        assert moved == 2 * 262144 * row["bytes_per_parameter"]
    assert main([*arguments, "--count", "262144"]) == 0
    out = capsys.readouterr().out
    assert all(text in out for text in ("bytes", "14.06", "ceiling", "2544.1"))
    assert main([*arguments, "--count", "100"]) == 2
    assert "multiple of 256" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["p", "v", "scales", "p_copy"])
def test_a_wrong_bit_in_any_format_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    formats = Formats(gradients="bf16", parameters="bf16", states="dynamic", copy="fp32")
    options = BackendOptions(preset="axdimm_narrow", settings={"capacity_bytes": 1 << 20})

    def wrong(tensors: Mapping[str, Any]) -> dict[str, Any]:
        held = narrow.packed(tensors)
        if "p_copy" in tensors:
            held[name].view("u1")[-1] ^= 1
        return held

    with Axdimm("golden", options=options) as device:
        measured = partial(measure_step, device, module_config(options), 512, formats=formats)
        assert measured()["bit_exact"] is True
        monkeypatch.setattr(rulejob, "packed", wrong)
        assert measured()["bit_exact"] is False


def test_a_device_can_be_measured_again_and_again() -> None:
    config = module_config(BackendOptions(preset="tiny"))
    with Axdimm("golden:tiny") as device:
        before = device.memory(0)
        for count in (1000, 17):
            figures = measure_step(device, config, count)
            assert figures.keys() == set(FIGURES)
            assert figures["bit_exact"] is True
            assert figures["beats_read"] == 2 * 4 * -(-count // 16)
            assert figures["mparams_per_s"] is None
            assert figures["refresh_limit"] == 1 - 128 / 1600
        assert device.memory(0).free_bytes == before.free_bytes


def test_without_refresh_nothing_is_lost_to_it() -> None:
    figures = measure.measure_point(golden_point(100, refresh=False))
    assert figures["error"] is None
    assert figures["refresh_limit"] == 1


def test_a_wrong_bit_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    config = module_config(BackendOptions(preset="tiny"))
    golden = reference("adam")

    class Wrong:
        constants = golden.constants

        def step(self, *arguments: Any) -> Any:
            results = golden.step(*arguments)
            results["v"].view("u4")[-1] ^= 1
            return results

    monkeypatch.setattr(rulejob, "reference", lambda *arguments: Wrong())
    with Axdimm("golden:tiny") as device:
        assert measure_step(device, config, 100)["bit_exact"] is False
        assert measure_step(device, config, 100, check=False)["bit_exact"] is None


def test_a_sweep_of_the_rtl(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    options = ["--count", "500,4000", "--axis", "stagger=true,false", "--jobs", "2"]
    assert sweep(tmp_path, *options, "--json") == 0
    output = capsys.readouterr()
    assert output.err == ""
    document = json.loads(output.out)
    assert document["machine"]["preset"] == "tiny"
    assert document["workload"]["axes"] == {"stagger": [True, False], "count": [500, 4000]}
    rows = document["results"]
    assert [(row["stagger"], row["count"]) for row in rows] == [
        (True, 500), (True, 4000), (False, 500), (False, 4000),
    ]  # fmt: skip
    for row in rows:
        assert row["bit_exact"] is True
        assert row["error"] is None
        assert row["mparams_per_s"] == 2 * row["count"] / row["fabric_cycles"] * 200
        assert row["efficiency"] == row["mparams_per_s"] / row["ceiling_mparams_per_s"]
        assert row["data_tck"] == 4 * (row["beats_read"] + row["beats_written"])
        assert row["row_hits"] == row["data_tck"] // 4 - row["activates"]
        total = sum(row[f"{name}_tck"] for name in DRAM_TIMES)
        # Two channels, neither longer than the slowest.
        assert 7.8 * row["fabric_cycles"] < total <= 8 * row["fabric_cycles"]
        assert row["refresh_limit"] == 1 - 128 / 1600

    for line, row in zip(table_of(tmp_path), rows, strict=True):
        written = {
            name: "" if value is None else json.dumps(value).strip('"')
            for name, value in row.items()
        }
        assert line == written

    stored = (tmp_path / "results.sqlite").read_bytes()
    assert [name.name for name in sorted(tmp_path.glob("*.png"))] == [
        "throughput_count.png", "throughput_stagger.png",
    ]  # fmt: skip

    # All is there, so nothing runs; a table is printed for people.
    here = request.getfixturevalue("here")
    assert sweep(tmp_path, *options) == 0
    assert here.points == []
    assert (tmp_path / "results.sqlite").read_bytes() == stored
    output = capsys.readouterr()
    assert "4 of 4 points" in output.err
    for row in rows:
        assert f"{row['mparams_per_s']:.2f}" in output.out
    assert sweep(tmp_path, *options, "--quiet") == 0
    assert capsys.readouterr() == ("", "")

    # One more value, and a key named that was not: only what is new is measured.
    assert sweep(tmp_path, "--count", "500,600", "--set", "lanes=2", "--json") == 0
    assert [point.count for point in here.points] == [600]
    more = json.loads(capsys.readouterr().out)["results"]
    assert [(row["lanes"], row["count"]) for row in more] == [(2, 500), (2, 600)]
    assert more[0].items() >= {(name, rows[0][name]) for name in FIGURES}


def test_a_sweep_of_the_cycle_model_is_close_to_the_rtl(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {}
    for backend in ("rtl", "cycles"):
        folder = tmp_path / backend
        assert sweep(folder, "--backend", backend, "--count", "1000,8000", "--json") == 0
        rows[backend] = json.loads(capsys.readouterr().out)["results"]
    for model, rtl in zip(rows["cycles"], rows["rtl"], strict=True):
        assert model["key"] != rtl["key"]
        assert model["bit_exact"] is None
        assert model["data_tck"] == rtl["data_tck"]
        assert model["mparams_per_s"] == pytest.approx(rtl["mparams_per_s"], rel=0.01)


# Where points are measured, and what can happen there.


class Here:
    """Measures in this process, as the test says, instead of in others."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.jobs: list[int] = []
        self.outcome: Callable[[Point], dict[str, Any]] = good

    def processes(self, jobs: int, function: object) -> Any:
        self.jobs.append(jobs)
        return nullcontext()

    def outcomes(
        self, submit: None, points: Mapping[str, Point]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        for key, point in points.items():
            self.points.append(point)
            yield key, self.outcome(point)


def good(point: Point) -> dict[str, Any]:
    return {**dict.fromkeys(FIGURES), "bytes_per_parameter": 28, "onchip_bytes": 0}


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Here:
    measuring = Here()
    monkeypatch.setattr(run, "processes", measuring.processes)
    monkeypatch.setattr(executors, "outcomes", measuring.outcomes)
    return measuring


def test_two_descriptions_of_a_machine_are_measured_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], here: Here
) -> None:
    options = ["--set", "lanes=4", "--set", "buffer_blocks=3", "--count", "10", "--json"]
    presets = ["axdimm", "axdimm_four_lanes"]
    folder = ["--out", str(tmp_path)]
    assert main(["sweep", *folder, "--axis", f"preset={','.join(presets)}", *options]) == 0
    assert len(here.points) == 1
    rows = json.loads(capsys.readouterr().out)["results"]
    assert [row["preset"] for row in rows] == presets


@pytest.mark.parametrize(
    ("options", "jobs"),
    [([], 4), (["--axis", "channels=1,4"], 2), (["--backend", "cycles"], 8), (["--jobs", "3"], 3)],
    ids=str,
)
def test_a_job_has_a_core_for_each_channel_it_simulates(
    tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch, options: list[str], jobs: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    counts = ",".join(map(str, range(10, 20)))
    assert sweep(tmp_path, "--count", counts, "--quiet", *options) == 0
    assert here.jobs == [jobs]


def test_a_failed_point_stops_no_other_and_is_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], here: Here
) -> None:
    def outcome(point: Point) -> dict[str, Any]:
        return measure.failed("DeviceFault: no luck") if point.count == 20 else good(point)

    here.outcome = outcome
    assert sweep(tmp_path, "--count", "10,20,30") == 1
    output = capsys.readouterr()
    assert [point.count for point in here.points] == [10, 20, 30]
    (line,) = [line for line in output.err.splitlines() if "nearmem: " in line]
    assert "count=20" in line
    assert line.endswith("failed: DeviceFault: no luck")
    assert "failed" in output.out
    errors = [line["error"] for line in table_of(tmp_path)]
    assert errors == ["", "DeviceFault: no luck", ""]

    here.points.clear()
    here.outcome = good
    assert sweep(tmp_path, "--count", "10,20,30") == 0
    assert [point.count for point in here.points] == [20]
    assert [line["error"] for line in table_of(tmp_path)] == [""] * 3


def test_a_point_that_is_not_bit_exact_fails_the_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], here: Here
) -> None:
    here.outcome = lambda point: {**good(point), "bit_exact": point.count != 10}
    assert sweep(tmp_path, "--count", "10,20", "--json") == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "count=10" in err
    assert "bit-exact" in err


def test_an_interrupted_sweep_goes_on_where_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], here: Here
) -> None:
    def outcome(point: Point) -> dict[str, Any]:
        if point.count == 30:
            raise KeyboardInterrupt
        return good(point)

    here.outcome = outcome
    assert sweep(tmp_path, "--count", "10,20,30,40") == 130
    assert "interrupted" in capsys.readouterr().err
    assert [line["count"] for line in table_of(tmp_path)] == ["10", "20"]
    here.points.clear()
    here.outcome = good
    assert sweep(tmp_path, "--count", "10,20,30,40") == 0
    assert [point.count for point in here.points] == [30, 40]
    assert [line["count"] for line in table_of(tmp_path)] == ["10", "20", "30", "40"]


def test_a_file_that_is_something_else_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.sqlite"
    path.write_text("count\n" * 1000)
    assert_refused(capsys, sweep_arguments(tmp_path, "--count", "10"), [str(path), "--out"])
    assert path.read_text() == "count\n" * 1000


def test_two_sweeps_do_not_write_to_one_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], here: Here
) -> None:
    with ResultStore(tmp_path):
        assert sweep(tmp_path, "--count", "10") == 2
    assert "another sweep" in capsys.readouterr().err
    assert sweep(tmp_path, "--count", "10") == 0
    assert sweep(Path("/dev/null/sweep"), "--count", "10") == 2
    assert "/dev/null/sweep" in capsys.readouterr().err


def test_a_full_disk_is_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], here: Here
) -> None:
    with ResultStore(tmp_path) as store:
        store._database.execute("PRAGMA max_page_count = 4")
        with pytest.raises(InvalidArgumentError, match=r"results\.sqlite.*full.*--out"):
            store.add("key", {"row": "x" * 20_000})
    (tmp_path / "results.csv").mkdir()  # as little can be written
    assert sweep(tmp_path, "--count", "10") == 2
    assert str(tmp_path / "results.csv") in capsys.readouterr().err


class DeadlyPoint(Point):
    """Ends the process that measures it."""

    def config(self) -> Any:
        time.sleep(1)
        os._exit(1)


def test_when_a_process_dies_what_was_measured_is_not_lost() -> None:
    points = {str(count): golden_point(count) for count in (10, 20, 30)}
    points["deadly"] = DeadlyPoint(backend="golden", settings=golden_point(1).settings)
    rows_by_name: dict[str, dict[str, Any]] = {}
    with pytest.raises(BrokenProcessPool), processes(1, measure.measure_point) as submit:
        rows_by_name.update(outcomes(submit, points))
    assert rows_by_name.keys() == {"10", "20", "30"}
    assert all(figures["error"] is None for figures in rows_by_name.values())


def test_a_process_that_dies_fails_the_sweep_which_then_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], here: Here
) -> None:
    def outcome(point: Point) -> dict[str, Any]:
        if point.count == 20:
            raise BrokenProcessPool
        return good(point)

    here.outcome = outcome
    assert sweep(tmp_path, "--count", "10,20", "--quiet") == 1
    err = capsys.readouterr().err
    assert err.startswith("nearmem: a process that measured a point died")
    assert err.count("\n") == 1
    assert [line["count"] for line in table_of(tmp_path)] == ["10"]
    here.outcome = good
    assert sweep(tmp_path, "--count", "10,20", "--quiet") == 0
    assert [point.count for point in here.points] == [10, 20, 20]


def test_a_point_that_raises_has_its_error() -> None:
    point = Point(backend="nonesuch", settings=golden_point(1).settings)
    figures = measure.measure_point(point)
    assert figures["error"].startswith("InvalidArgumentError: no device 'nonesuch'")
    assert figures.keys() == set(FIGURES)


SLOW_SWEEP = """
import os, sys, time
from pathlib import Path
from sw_driver.experiments.sweep import measure

folder = Path(sys.argv[1])
fast = measure.measure_point

def slow(point):
    (folder / f"begun-{os.getpid()}-{point.count}").touch()
    time.sleep(0.3)
    return fast(point)

measure.measure_point = slow
if __name__ == "__main__":
    from sw_driver.cli import main
    counts = ",".join(str(count) for count in range(100, 120))
    sys.exit(main([
        "sweep", "--config", "tiny", "--backend", "cycles", "--count", counts, "--jobs", "2",
        "--out", str(folder),
    ]))
"""


def _is_alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda s: s.name)
def test_a_killed_sweep_goes_on_where_it_was(
    tmp_path: Path, here: Here, number: signal.Signals
) -> None:
    script = tmp_path / "slow_sweep.py"
    script.write_text(SLOW_SWEEP)
    folder = tmp_path / "sweep"
    folder.mkdir()
    command = [sys.executable, str(script), str(folder)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        # Two of them are still under way, and three may not be stored yet.
        while len(list(folder.glob("begun-*"))) < 8:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(number)
        process.communicate(timeout=60)
    begun = [path.name.split("-")[1:] for path in folder.glob("begun-*")]
    workers = {int(pid) for pid, _ in begun}
    assert len(workers) == 2
    deadline = time.monotonic() + 30
    while any(_is_alive(worker) for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    if number == signal.SIGTERM:
        assert process.returncode == 128 + signal.SIGTERM
        done = {line["count"] for line in table_of(folder)}
        assert len(done) >= 3
        assert done < {count for _, count in begun}
    counts = ",".join(str(count) for count in range(100, 120))
    assert sweep(folder, "--backend", "cycles", "--count", counts, "--quiet") == 0
    assert 20 - len(begun) < len(here.points) <= 17
    assert [line["count"] for line in table_of(folder)] == counts.split(",")


@pytest.mark.parametrize("rule", ["sgd", "accumulate", "scale_add", "sum_squares"])
def test_one_point_of_a_rule_of_any_shape_is_swept(rule: str, tmp_path: Path) -> None:
    options = ["--backend", "cycles", "--set", f"rules={rule}", "--axis", "lanes=1", "--quiet"]
    assert sweep(tmp_path, *options, "--count", "2000") == 0
    assert [(line["rule"], line["lanes"]) for line in table_of(tmp_path)] == [(rule, "1")]


# On a Dask cluster.


@pytest.fixture
def scheduler() -> Iterator[str]:
    """Address of a Dask scheduler with a worker of two threads in this process.

    A point that no worker measures would be waited for without end.
    """
    distributed = pytest.importorskip("distributed")

    def give_up(number: int, frame: object) -> None:
        raise TimeoutError("the cluster has not measured its points")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(60)
    try:
        with distributed.LocalCluster(
            n_workers=1,
            threads_per_worker=2,
            processes=False,
            protocol="tcp://",
            host="127.0.0.1",
            dashboard_address=":0",
        ) as cluster:
            yield cluster.scheduler_address
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_a_cluster_measures_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], scheduler: str
) -> None:
    options = ["--count", "100,300", "--json"]
    assert sweep(tmp_path / "cluster", *options, "--dask", scheduler) == 0
    output = capsys.readouterr()
    rows = json.loads(output.out)["results"]
    assert [row["count"] for row in rows] == [100, 300]
    assert all(row["bit_exact"] for row in rows)
    assert sweep(tmp_path / "processes", *options) == 0
    for one, other in zip(rows, json.loads(capsys.readouterr().out)["results"], strict=True):
        assert one["key"] == other["key"]
        assert one["data_tck"] == other["data_tck"]


def test_a_cluster_of_other_sources_is_not_believed(
    scheduler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter(["of the client", "of the worker"])
    monkeypatch.setattr(executors, "sources_key", lambda backend: next(answers))
    with dask_cluster(scheduler, print) as submit:
        ((_, figures),) = outcomes(submit, {"key": golden_point(10)})
    assert "other sources" in figures["error"]


def test_a_cluster_that_does_not_answer_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(executors, "CONNECT_SECONDS", 1)
    for address in ("tcp://127.0.0.1:1", "nonsense"):
        assert sweep(tmp_path, "--count", "10", "--quiet", "--dask", address) == 2
        err = capsys.readouterr().err
        assert err.startswith("nearmem: no Dask scheduler answers")
        assert err.count("\n") == 1
        assert repr(address) in err


def test_without_dask_a_cluster_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert sweep(tmp_path, "--count", "10", "--quiet", "--dask", "tcp://127.0.0.1:1") == 2
    err = capsys.readouterr().err
    assert "'distributed'" in err
    assert "pip install" in err
