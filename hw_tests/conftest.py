"""Settings for all tests, and the account of what they covered."""

from __future__ import annotations

import ast
import gc
import os
import random
import resource
import signal
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Generator
from pathlib import Path
from types import FrameType

import pytest
from amaranth.hdl import UnusedElaboratable

from hw_tests.coverage.points import FOLDER, watch_builds
from sw_driver.simulator.buildcache import build_root, build_times_s, plain_path

LIMIT_S = 300
"""Processor time that a test may take, of this process: one that takes more hangs. One that waits
for ever ends the process, see ``faulthandler_timeout`` in pyproject.toml."""

_spent_s = 0.0
"""Processor time of this process up to the last report."""
_SEED = "NEARMEM_TEST_SEED"
_began_s = time.monotonic()
_began_at = time.time()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--soak",
        type=int,
        metavar="SECONDS",
        help="run the tests marked soak instead of the others, in an order drawn by "
        f"${_SEED}, and begin none after SECONDS",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "soak: long by nature; runs in `make soak` only")
    if config.option.soak is not None:
        # Programs that do the tests' work inherit it.
        os.environ.setdefault(_SEED, str(random.randrange(1, 1 << 16)))
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
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # as nohup does
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGXCPU, _end_test)
    # Several threads of PyTorch's would wait for each other longer than they compute, here and in
    # programs that tests start.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # They build many simulators and run each for a short time.
    os.environ.setdefault("NEARMEM_BUILD_PROFILE", "quick")
    if FOLDER in os.environ:
        config.add_cleanup(watch_builds().close)
    # Not among the user's builds.
    os.environ.setdefault("NEARMEM_CACHE_DIR", str(build_root()))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of one of both suites, those of soak in files drawn by lot."""
    if config.option.markexpr:
        return
    soak = config.option.soak is not None
    others = [item for item in items if (item.get_closest_marker("soak") is not None) != soak]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in {*others}]
    if soak:
        lot = random.Random(os.environ[_SEED])
        turns = {file: lot.random() for file in sorted({item.path for item in items})}
        items.sort(key=lambda item: turns[item.path])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Pass over a test of soak when its time is over; the summary counts those that ran."""
    _limit_processor_time()
    limit_s = item.config.option.soak
    return True if limit_s is not None and time.monotonic() - _began_s > limit_s else None


def _limit_processor_time() -> None:
    _, most_s = resource.getrlimit(resource.RLIMIT_CPU)
    limit_s = int(time.process_time()) + LIMIT_S
    if most_s == resource.RLIM_INFINITY or limit_s < most_s:  # else that one ends it
        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, most_s))


def _end_test(_signal: int, _frame: FrameType | None) -> None:
    """Fail the test that has used up its processor time."""
    _limit_processor_time()  # or the signal would come each second
    pytest.fail(f"took more than {LIMIT_S} s of processor time")


def pytest_collection_finish() -> None:
    global _spent_s
    # Thousands of tests and the modules that they import stay. Files of tests that collect garbage
    # took up to nine times as long while all that was looked through.
    gc.collect()
    gc.freeze()
    _spent_s = sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note in each report the processor time since the last, programs that ended included."""
    global _spent_s
    report = yield
    if report.failed and item.config.option.soak is not None:
        again = f"make soak SEED={os.environ[_SEED]} ARGS='{item.nodeid}'"
        report.sections.append(("to repeat it", again))
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
                # That of a worker that died has none.
                seconds[report.nodeid.partition("::")[0]] += vars(report).get("processor_s", 0)
    if not counts:
        return
    skipped = Counter(
        str(report.longrepr[2]).removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple)
    )
    terminalreporter.section("what was covered")
    for file in sorted(counts):
        text = ast.get_docstring(ast.parse((Path(config.rootpath) / file).read_text())) or ""
        numbers = ", ".join(f"{count} {outcome}" for outcome, count in counts[file].items())
        name = file.removeprefix("hw_tests/").removesuffix(".py")
        subject = text.partition("\n")[0]
        terminalreporter.write_line(f"{name:<28} {numbers:<24} {seconds[file]:>4.0f} s  {subject}")
    built_s = build_times_s(_began_at)
    terminalreporter.write_line(
        f"{seconds.total():.0f} s of processor time, of which {sum(built_s):.0f} s in "
        f"{len(built_s)} builds"
    )
    if skipped:
        reasons = "; ".join(f"{reason} ({count})" for reason, count in skipped.items())
        terminalreporter.write_line(f"left out: {reasons}")
    if config.option.soak is not None:
        seed = os.environ[_SEED]
        terminalreporter.write_line(
            f"seed {seed}, no test begun after {config.option.soak} s; again: make soak SEED={seed}"
        )
