"""Settings for all tests, and the account of what they covered."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import threading
import warnings
from collections import Counter, defaultdict
from collections.abc import Generator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from amaranth.hdl import UnusedElaboratable

from sw_driver.axdimm.backends import rtl
from sw_driver.simulator import library, parts, runtime
from sw_driver.simulator.buildcache import build_root, cache_root, content_key, verilator_env
from sw_driver.simulator.compiler import COMPILER

_spent_s = 0.0
"""Processor time of this process up to the last report."""


def pytest_configure() -> None:
    # Components that tests construct only to see them refused are never elaborated. Amaranth
    # says so when they are collected, which may be after the tests.
    warnings.simplefilter("ignore", UnusedElaboratable)
    # A shell has its background jobs ignore it, and what is to be interrupted would go on for ever.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Several threads of PyTorch's would wait for each other longer than they compute, here and in
    # programs that tests start.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    build_quickly()


def build_quickly() -> None:
    """Has simulators that this process builds compiled with less optimization.

    The tests build many and run each for a short time. A channel is compiled as one file. A
    process of its own has the driver's settings unless it calls this.
    """
    rtl.VERILATOR_ARGS = [*rtl.VERILATOR_ARGS, "--output-split", "0"]
    rtl.MAKE_ARGS = [f"OPT_FAST={_OPTIMIZATION}", "OPT_GLOBAL=-O0"]
    # Not among the user's builds.
    os.environ.setdefault("NEARMEM_CACHE_DIR", str(build_root()))
    parts.OPT_FAST = parts.OPT_SLOW = _OPTIMIZATION
    library.shared_runtime = _runtime_and_headers
    parts._includes = _headers_and_folders


_OPTIMIZATION = "-Og"
_DEFINES = [
    "-DVERILATOR=1", "-DVM_COVERAGE=0", "-DVM_SC=0", "-DVM_TIMING=0", "-DVM_TRACE=0",
    "-DVM_TRACE_FST=0", "-DVM_TRACE_VCD=0", "-DVM_TRACE_SAIF=0",
]  # fmt: skip
"""Those of Verilator's makefile."""


def _headers() -> list[str]:
    """Verilator's headers, compiled, to be included first: reading them takes a second a file.

    Where its flags are others, the compiler reads their text.
    """
    include = Path(verilator_env()["VERILATOR_ROOT"]) / "include"
    flags = [_OPTIMIZATION, *library.C_FLAGS.split(), *_DEFINES]
    flags += [f"-I{include}", f"-I{include / 'vltstd'}"]
    key = content_key([version("verilator"), *flags])
    header = cache_root() / "library-headers" / key / "headers.h"
    compiled = header.with_suffix(".h.gch")
    if not compiled.exists():
        header.parent.mkdir(parents=True, exist_ok=True)
        header.write_text('#include "verilated.h"\n#include "verilated_dpi.h"\n')
        # Whole or not at all: another process or thread may be about to use it.
        new = header.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
        subprocess.run([COMPILER, *flags, "-x", "c++-header", header, "-o", new], check=True)
        new.replace(compiled)
    return ["-include", str(header)]


def _runtime_and_headers() -> list[str]:
    return [*runtime.shared_runtime(), f"OPT_FAST={' '.join([_OPTIMIZATION, *_headers()])}"]


def _headers_and_folders(folder: Path, includes: Any = parts._includes) -> list[str]:
    return [*_DEFINES, *_headers(), *includes(folder)]


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
