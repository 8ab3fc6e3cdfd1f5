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

import pytest

from hw_tests.driver.conftest import PRESET
from hw_tests.driver.simulator.test_parts import ring
from sw_driver.cli import main
from sw_driver.simulator import parts
from sw_driver.simulator.buildcache import cached_build
from sw_driver.simulator.processes import kill_started
from sw_driver.simulator.runtime import run_tool

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


@pytest.mark.parametrize("reached", ["work", "work/settings.vlt"])
def test_the_command_says_so_in_one_line(tmp_path: Path, reached: str) -> None:
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
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=WAIT_S)
    # A shell shows 130 for both. Python ends itself by the signal if that came while a string was
    # executed, as dataclasses do, whatever catches it then.
    assert process.returncode in (130, -signal.SIGINT)
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
