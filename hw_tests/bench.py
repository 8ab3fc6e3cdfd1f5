"""Builds a component under Verilator and runs a cocotb module on it.

A bench is two files: ``test_NAME.py`` holds the pytest functions, each of which calls
:func:`run_bench`, and ``NAME_bench.py`` the cocotb tests that then run inside the simulator.
"""

from __future__ import annotations

import contextlib
import json
import os
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from amaranth.lib import wiring
from cocotb_tools.config import libs_dir
from cocotb_tools.runner import get_runner

from hw.verilog.writer import to_verilog
from hw_tests.coverage.points import FOLDER, record
from sw_driver.simulator.buildcache import cache_root, cached_build, content_key, verilator_env
from sw_driver.simulator.runtime import precompiled_headers, shared_runtime

__all__ = ["TEST_SECONDS", "bench_parameters", "run_bench"]

_PARAMETERS = "NEARMEM_BENCH_PARAMETERS"
_TEST_SECONDS = "NEARMEM_BENCH_TEST_SECONDS"

TEST_SECONDS = 90
"""Processor time that a cocotb test may take: several times that of the longest."""


def bench_parameters() -> dict[str, Any]:
    """Inside the simulator: the ``parameters`` that were given to :func:`run_bench`."""
    return json.loads(os.environ.get(_PARAMETERS, "{}"))


def run_bench(
    design: wiring.Component | str,
    *,
    top: str,
    module: str,
    parameters: Mapping[str, Any] | None = None,
    build_args: Sequence[str] = (),
    testcase: str | Sequence[str] | None = None,
    seed: int = 1,
    optimization: str = "-O0",
    test_seconds: int | None = TEST_SECONDS,
) -> None:
    """Runs the cocotb tests of ``module`` on ``design``; a failed one fails the caller.

    ``design`` is a component, converted to Verilog as module ``top``, or Verilog text that
    contains a module ``top``. Benches use the ports of ``top``: nothing inside is visible to
    cocotb but the inputs of functional units.
    ``parameters`` (JSON values) reach the bench through :func:`bench_parameters`.
    ``optimization`` is the compiler's: more than the default pays where the runs of a build take
    longer than some five seconds.
    The simulator is ended when a test takes more than ``test_seconds`` of processor time, since a
    design that hangs may take hours to the test's own end in simulated time; None: not at all.
    """
    text = design if isinstance(design, str) else to_verilog(design, top)
    settings = "\n".join(
        [
            "`verilator_config",
            f'public_flat_rw -module "{top}" -var "*"',
            # Built once for all instances.
            *(
                f'no_inline -module "{name}"'
                for name in ("*_unit", "axdimm_channel", "pim_bank_*", "pim_vault_*")
            ),
            # An input that is replaced by what drives it gives each unit code of its own after all.
            'public_flat_rw -module "*_unit" -var "i_*"',
            "",
        ]
    )
    # All of the model is compiled at once: it takes a quarter of the CPU time that several files
    # take, each of which reads the same headers. Optimization of the data flow is for one instance
    # at a time, and equal ones are then no longer equal.
    arguments = [
        "--no-public-flat-rw", "-Wno-fatal", "-O3", "-fno-dfg", "--x-assign", "fast",
        "--output-split", "0", *build_args,
    ]  # fmt: skip
    covered = FOLDER in os.environ
    if covered:
        # Not --coverage: counting expressions, it fails on selected bits.
        arguments += ["--coverage-line", "--coverage-toggle"]
        test_seconds = None
    runner = get_runner("verilator")
    environment = verilator_env()

    def build(folder: Path) -> None:
        (folder / f"{top}.v").write_text(text)
        (folder / "settings.vlt").write_text(settings)
        # The shared runtime has all but coroutines.
        coroutines = ["VM_GLOBAL_FAST=verilated_timing"] if "--timing" in build_args else []
        runtime = [*shared_runtime(), *coroutines]
        headers = precompiled_headers("verilated verilated_dpi verilated_vpi", [optimization])
        fast = rf"OPT_FAST={optimization}\ -include\ {headers}"
        os.environ["MAKEFLAGS"] = " ".join(
            [os.environ["MAKEFLAGS"], fast, f"OPT_GLOBAL={optimization}", *runtime]
        )
        runner.build(
            sources=[folder / "settings.vlt", folder / f"{top}.v"],
            hdl_toplevel=top,
            build_dir=folder,
            build_args=arguments,
            log_file=folder / "build.log",
            timescale=("1ns", "1ps"),
        )

    with mock.patch.dict(os.environ, environment):
        # The simulator names the place of cocotb, which is that of an environment.
        key = content_key([text, settings, *arguments, optimization, str(libs_dir)])
        folder = cached_build("bench", key, build)
        work = (
            cache_root()
            / "bench-run"
            / content_key([key, module, json.dumps(parameters), str(testcase), str(seed)])
        )
        work.mkdir(parents=True, exist_ok=True)
        results = work / "results.xml"
        results.unlink(missing_ok=True)
        (work / "coverage.dat").unlink(missing_ok=True)
        # The runner gives up on a failed test or simulator; which one, and why, is told below.
        with contextlib.suppress(SystemExit, RuntimeError):
            runner.test(
                hdl_toplevel=top,
                hdl_toplevel_lang="verilog",
                build_dir=folder,
                test_dir=work,
                test_module=module,
                testcase=testcase,
                seed=seed,
                results_xml=str(results),
                extra_env={
                    _PARAMETERS: json.dumps(dict(parameters or {})),
                    # Not in all that these import, which would take a second each time.
                    "COCOTB_REWRITE_ASSERTION_FILES": "hw_tests/*",
                    _TEST_SECONDS: str(test_seconds or ""),
                },
                log_file=work / "test.log",
                timescale=("1ns", "1ps"),
            )
    if covered:
        record(work.name, text, work / "coverage.dat")
    log = (work / "test.log").read_text()
    if not results.exists():
        why = f", or hung: a test may take {test_seconds} s" if test_seconds else ""
        raise AssertionError(f"{module} on {top}: the simulator died{why}\n{log[-6000:]}")
    root = ElementTree.parse(results).getroot()
    cases = list(root.iter("testcase"))
    bad = [
        str(case.get("name"))
        for case in cases
        if any(child.tag in ("failure", "error") for child in case)
    ]
    if bad or not cases:
        what = f"failed: {', '.join(bad)}" if bad else "ran no test"
        raise AssertionError(f"{module} on {top}: {what}\n{log[-6000:]}")
