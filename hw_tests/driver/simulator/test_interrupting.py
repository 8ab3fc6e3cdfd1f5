"""Builds that are interrupted: nothing goes on, and nothing of them is taken for done."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hw_tests.driver.conftest import PRESET
from hw_tests.driver.simulator.test_parts import ring
from sw_driver.cli import main
from sw_driver.simulator import parts, processes
from sw_driver.simulator.buildcache import cache_root, cached_build
from sw_driver.simulator.processes import children, kill_children, kill_started
from sw_driver.simulator.runtime import run_tool
from sw_driver.simulator.sources import ROOT

WAIT_S = 120

FAMILY = "(sleep 1000 & echo $! > grandchild; wait) & echo $! > child; echo $$ > tool; wait"
"""Three generations of processes."""


def wait_for(reached: Callable[[], object]) -> None:
    limit_s = time.monotonic() + WAIT_S
    while not reached():
        assert time.monotonic() < limit_s
        time.sleep(0.02)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_tool_ends_with_all_that_it_has_started(tmp_path: Path) -> None:
    def pids() -> list[int]:
        files = [tmp_path / name for name in ("tool", "child", "grandchild")]
        return [int(file.read_text()) for file in files if file.exists() and file.read_text()]

    def interrupt() -> None:
        if len(pids()) == 3:
            assert all(map(lives, pids()))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_tool(["sh", "-c", FAMILY], tmp_path, interrupt)
    wait_for(lambda: not any(map(lives, pids())))


def test_what_was_started_before_is_not_killed() -> None:
    started = []

    @kill_started()
    def interrupted() -> None:
        started.append(subprocess.Popen(["sleep", "1000"]))
        raise KeyboardInterrupt

    with subprocess.Popen(["sleep", "1000"]) as before:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert started[0].wait(WAIT_S) == -signal.SIGKILL
        assert before.poll() is None
        before.kill()


def test_an_interrupted_build_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEARMEM_CACHE_DIR", str(tmp_path))

    def interrupted(folder: Path) -> None:
        (folder / "half").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached_build("kind", "key", interrupted)
    assert not (tmp_path / "kind" / "key").exists()
    built = cached_build("kind", "key", lambda folder: (folder / "whole").touch())
    assert not (built / "half").exists()


def test_models_that_are_built_side_by_side_all_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    def endless(command: list[str], folder: Path, watch: Callable[[], None]) -> None:
        started.append(1)
        run_tool(["sleep", "1000"], folder, watch)

    def interrupt(*_: object) -> None:
        wait_for(lambda: started)
        raise KeyboardInterrupt

    monkeypatch.setenv("NEARMEM_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    monkeypatch.setattr(parts, "run_tool", endless)
    monkeypatch.setattr(parts, "wait", interrupt)
    harness = Path(__file__).with_name("parts_harness.cpp")
    with pytest.raises(KeyboardInterrupt):
        parts.parts_library(ring, name="ring", about="a ring", parameters=[], harness=harness)
    assert len(started) == 1  # the other one did not begin
    assert not [path for path in tmp_path.glob("*/*") if path.is_dir()]


@pytest.mark.parametrize(
    ("reached", "number"),
    [("work", signal.SIGINT), ("work", signal.SIGTERM), ("work/settings.vlt", signal.SIGHUP)],
)
def test_the_command_says_so_in_one_line(tmp_path: Path, reached: str, number: int) -> None:
    """However far it is: before, during and after the generation of Verilog."""
    command = [sys.executable, "-m", "sw_driver.cli", "sim", "--config", PRESET]
    with subprocess.Popen(
        [*command, "--out", str(tmp_path / "out")],
        env={**os.environ, "NEARMEM_CACHE_DIR": str(tmp_path / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        wait_for(lambda: [*(tmp_path / "cache" / "rtl").glob(f"*/{reached}")])
        process.send_signal(number)
        output, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 128 + number
    assert output == ""
    announced = r"(nearmem: building the simulator[^\n]*\n)?"
    assert re.fullmatch(announced + "nearmem: interrupted\n", errors), errors
    # A folder that is not done may be left where a library took the interrupt for its own error.
    assert not [*(tmp_path / "cache").glob("*/*/.done")]

    def gone() -> bool:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return True
        return False

    wait_for(gone)


def test_an_interrupt_that_a_library_takes_for_its_own_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> int:
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(WAIT_S)
        raise AttributeError("a half-made node")

    monkeypatch.setattr("sw_driver.commands.config.run", interrupted)
    assert main(["config"]) == 130
    assert capsys.readouterr().err == "nearmem: interrupted\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


WORKING = """
import subprocess, sys, time
from pathlib import Path
from sw_driver.cli import main
from sw_driver.commands import config
from sw_driver.files import replacing

def run():
    with replacing(Path("file")) as part:
        part.write_text("half")
        child = subprocess.Popen(["sleep", "1000"])
        try:
            print(child.pid, flush=True)
            time.sleep(1000)
        finally:
            print("ending", flush=True)
            time.sleep(1000)

config.run = run
sys.exit(main(["config"]))
"""
"""A command that takes its time, also to end."""

ENDING = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def send_twice(folder: Path, first: int, **options: Any) -> tuple[subprocess.Popen[str], int]:
    """Interrupt the command as it works and as it ends; return it and the process it started."""
    command = [sys.executable, "-c", WORKING]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True, **options)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.send_signal(first)
    assert process.stdout.readline() == "ending\n"
    process.send_signal(signal.SIGTERM)
    process.wait(WAIT_S)
    process.stdout.close()
    return process, child


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_ends_a_command_with_all_that_it_has_begun(tmp_path: Path, number: int) -> None:
    """And another one as it ends, which leaves it no time."""
    (tmp_path / "file").write_text("before")
    with (tmp_path / "errors").open("w") as errors:
        process, child = send_twice(tmp_path, number, stderr=errors)
    assert process.returncode == 128 + number
    assert (tmp_path / "errors").read_text() == "nearmem: interrupted\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["errors", "file"]
    assert (tmp_path / "file").read_text() == "before"
    wait_for(lambda: not lives(child))


TRACKED = """
import multiprocessing, sys, time
from sw_driver.cli import main
from sw_driver.commands import config

lock = None

def run():
    global lock
    lock = multiprocessing.get_context("spawn").Lock()
    print("working", flush=True)
    time.sleep(1000)

config.run = run
sys.exit(main(["config"]))
"""
"""A command that shares a lock with workers, as pools of processes do."""


def test_what_workers_share_is_given_back_without_a_word() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TRACKED], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=WAIT_S)
    assert (process.returncode, errors) == (128 + signal.SIGTERM, "nearmem: interrupted\n")


def test_a_terminal_that_is_gone_changes_no_status(tmp_path: Path) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "w") as pipe:
        process, _ = send_twice(tmp_path, signal.SIGHUP, stderr=pipe)
    assert process.returncode == 128 + signal.SIGHUP


def test_an_ignored_signal_stays_ignored(tmp_path: Path) -> None:
    """As Ctrl-C in the background of a script, and SIGHUP under nohup."""

    def ignore() -> None:
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    command = [sys.executable, "-c", WORKING]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, preexec_fn=ignore
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            process.send_signal(number)
        assert process.stdout.readline() == "ending\n"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=WAIT_S)
    assert process.returncode == 128 + signal.SIGTERM


def test_a_simulation_that_is_terminated_leaves_no_file(tmp_path: Path) -> None:
    options = ["--config", PRESET, "--steps", "1000000", "--quiet", "--out", "out"]
    files = ["--dram-trace", "trace.csv", "--timeline", "timeline.json"]
    with subprocess.Popen(
        [sys.executable, "-m", "sw_driver.cli", "sim", *options, *files],
        env={**os.environ, "PYTHONPATH": str(ROOT), "NEARMEM_CACHE_DIR": str(cache_root())},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        wait_for(lambda: sum(path.stat().st_size for path in tmp_path.glob(".trace.ch*")) > 0)
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=WAIT_S)
    assert (process.returncode, output) == (128 + signal.SIGTERM, "")
    assert errors == "nearmem: interrupted\n"
    assert [*tmp_path.rglob("*")] == []


def test_a_tracker_that_has_no_program_yet_is_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "STARTS_WITHIN_S", WAIT_S)
    before = children()
    if not (tracker := os.fork()):
        time.sleep(0.03)
        program = "import time; time.sleep(1000)"
        os.execv(
            sys.executable, [sys.executable, "-c", program, "multiprocessing.resource_tracker"]
        )
    try:
        kill_children(before)
        time.sleep(0.2)
        assert os.waitpid(tracker, os.WNOHANG) == (0, 0)
    finally:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(tracker, signal.SIGKILL)
            os.waitpid(tracker, 0)
