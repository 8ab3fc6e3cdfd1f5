"""``python -m hw_tests.speed``: how many times slower the kernel is in other simulations.

They simulate the default configuration's kernel alone. cocotb has it on an AXI memory in C++,
Amaranth's simulator on one in Python. Beside them are a whole channel, on one core as they are, and
the module through the driver.
"""

from __future__ import annotations

import statistics
import warnings

from amaranth.hdl import UnusedElaboratable

from sw_driver.axdimm import Axdimm
from sw_driver.experiments.speed import measure_driven

from .amaranth_kernel import simulate_in_amaranth
from .kernel_job import JobResult, KernelJob, simulate_in_cocotb

ROUNDS = 2
"""Blocks of each tensor: loading, computing and storing overlap, and it takes Amaranth's simulator
half a minute."""

REPETITIONS = 3


def main() -> None:
    """Measures and prints."""
    # Amaranth's simulator is given copies of what Verilog shares.
    warnings.simplefilter("ignore", UnusedElaboratable)
    with Axdimm("rtl") as device:
        driven = measure_driven(device, 400_000, REPETITIONS)
    _print("cocotb", simulate_in_cocotb("axdimm", ROUNDS, REPETITIONS), driven)
    job = KernelJob(KernelJob.config_of("axdimm"), ROUNDS)
    _print("Amaranth's simulator", [simulate_in_amaranth(job)], driven)


def _print(name: str, results: list[JobResult], driven: dict[str, float]) -> None:
    speed = statistics.median(result.fabric_cycles_per_host_second for result in results)
    channel = driven["one_channel_fabric_cycles_per_host_second"] / speed
    module = driven["fabric_cycles_per_host_second"] / speed
    print(
        f"{name:>20}: {speed:>12,.0f} fabric cycles per host second, the kernel alone: "
        f"{channel:,.1f} x slower than a channel, {module:,.1f} x than the module",
        flush=True,
    )


if __name__ == "__main__":
    main()
