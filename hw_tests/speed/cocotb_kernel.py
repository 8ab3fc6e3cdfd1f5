"""The Adam kernel under Verilator, driven by cocotb on an AXI memory in Python."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from hw.kernel.kernel import Kernel
from hw_tests.bench import run_bench

from .kernel_job import JobResult, KernelJob

__all__ = ["MEMORIES", "simulate_in_cocotb"]

MEMORIES = ("cocotbext-axi", "own")
"""The memories: ``AxiRam`` of cocotbext-axi, which cocotb's users take, and that of our benches,
which moves at most one beat a cycle, as a DRAM does."""


def simulate_in_cocotb(
    preset: str, rounds: int, *, memory: str, repetitions: int = 1
) -> list[JobResult]:
    """Runs :class:`KernelJob` several times and checks the outputs of each.

    The model is built first if it is not there, with the optimization of the driver's. Raises
    ``AssertionError`` if the simulation fails or the outputs are not the golden model's.
    """
    config = KernelJob.config_of(preset)
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        run_bench(
            Kernel(config),
            top="kernel",
            module="hw_tests.speed.cocotb_kernel_bench",
            parameters={
                "preset": preset,
                "rounds": rounds,
                "memory": memory,
                "repetitions": repetitions,
                "results": str(results),
            },
            build_args=["--x-initial", "fast", "--noassert", "-CFLAGS", "-O2"],
        )
        return [JobResult(**values) for values in json.loads(results.read_text())]
