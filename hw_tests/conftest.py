"""Settings for all tests, and the account of what they covered."""

from __future__ import annotations

import ast
import os
import signal
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest
from amaranth.hdl import UnusedElaboratable

from sw_driver.simulator.buildcache import build_root, plain_path

_spent_s = 0.0
"""Processor time of this process up to the last report."""


def pytest_configure() -> None:
    for path in (Path.cwd(), Path(sys.prefix)):
        if plain_path(path) != path:
            raise pytest.UsageError(
                f"the path {str(path)!r} has other characters than letters, digits and '_./+-': "
                "cocotb's makefiles do not take it, so test in a clone, with an environment, whose "
                "path has no others"
            )
    # Components that tests construct only to see them refused are never elaborated. Amaranth
    # says so when they are collected, which may be after the tests.
    warnings.simplefilter("ignore", UnusedElaboratable)
    # A shell has its background jobs ignore it, and what is to be interrupted would go on for ever.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Several threads of PyTorch's would wait for each other longer than they compute, here and in
    # programs that tests start.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # They build many simulators and run each for a short time.
    os.environ.setdefault("NEARMEM_BUILD_PROFILE", "quick")
    # Not among the user's builds.
    os.environ.setdefault("NEARMEM_CACHE_DIR", str(build_root()))


def pytest_collection_finish() -> None:
    global _spent_s
    _spent_s = sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Notes in each report the processor time since the last, programs that ended included."""
    global _spent_s
    report = yield
    before_s, _spent_s = _spent_s, sum(os.times()[:4])
    vars(report)["processor_s"] = _spent_s - before_s
    return report


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """One line a test file: how many tests ran, their processor time, and what its docstring says
    that they cover."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    seconds: Counter[str] = Counter()
    for outcome in ("passed", "failed", "skipped", "error"):
        for report in terminalreporter.stats.get(outcome, []):
            file = report.nodeid.partition("::")[0]
            counts[file][outcome] += 1
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.partition("::")[0]] += vars(report)["processor_s"]
    if not counts:
        return
    terminalreporter.section("what was covered")
    for file in sorted(counts):
        text = ast.get_docstring(ast.parse((Path(config.rootpath) / file).read_text())) or ""
        numbers = ", ".join(f"{count} {outcome}" for outcome, count in counts[file].items())
        name = file.removeprefix("hw_tests/").removesuffix(".py")
        subject = text.partition("\n")[0]
        terminalreporter.write_line(f"{name:<28} {numbers:<24} {seconds[file]:>4.0f} s  {subject}")
    terminalreporter.write_line(f"{seconds.total():.0f} s of processor time")
