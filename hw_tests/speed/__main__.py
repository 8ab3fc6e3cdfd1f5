"""``python -m hw_tests.speed``: times the kernel's job in the other simulations.

Prints a line of JSON for each simulation when it begins (``name``, of ``total``) and another when
it is done (``name``, ``parameters``, ``fabric_cycles``, ``host_seconds``: a list).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

from .amaranth_kernel import simulate_in_amaranth
from .cocotb_kernel import MEMORIES, simulate_in_cocotb
from .kernel_job import JobResult, KernelJob

ROUNDS = 2
"""Blocks of each tensor: loading, computing and storing overlap, and it takes Amaranth's simulator
half a minute."""

AMARANTH_REPETITIONS = 3
"""At most, for the same reason."""

_MEMORY_NAMES = {
    "cocotbext-axi": "cocotb, AxiRam of cocotbext-axi",
    "own": "cocotb, AXI memory of our benches",
}


def _simulations(preset: str, repetitions: int) -> dict[str, Callable[[], list[JobResult]]]:
    def cocotb(memory: str) -> Callable[[], list[JobResult]]:
        return lambda: simulate_in_cocotb(preset, ROUNDS, memory=memory, repetitions=repetitions)

    def amaranth() -> list[JobResult]:
        job = KernelJob(KernelJob.config_of(preset), ROUNDS)
        return simulate_in_amaranth(job, min(repetitions, AMARANTH_REPETITIONS))

    return {
        **{_MEMORY_NAMES[memory]: cocotb(memory) for memory in MEMORIES},
        "Amaranth's simulator": amaranth,
    }


def main() -> None:
    """Runs all simulations."""
    parser = argparse.ArgumentParser(prog="python -m hw_tests.speed", description=__doc__)
    parser.add_argument("--config", default="axdimm", metavar="PRESET")
    parser.add_argument("--repetitions", type=int, default=3, metavar="N")
    arguments = parser.parse_args()
    simulations = _simulations(arguments.config, arguments.repetitions)
    for name, simulate in simulations.items():
        print(json.dumps({"name": name, "total": len(simulations)}), flush=True)
        results = simulate()
        figures = {
            "name": name,
            "parameters": results[0].parameters,
            "fabric_cycles": results[0].fabric_cycles,
            "host_seconds": [result.host_seconds for result in results],
        }
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
