"""``python -m hw_tests.speed.bare LIBRARY PARAMETERS``: how fast a built channel can be clocked.

Prints JSON: ``fabric_cycles`` of an Adam run, ``fabric_cycles_per_cpu_second`` of a loop that does
nothing but clock the model through the same run, the best of some, and whether the run's results
were the golden model's (``bit_exact``). One channel of the default configuration, on one core.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from unittest import mock

from sw_driver.axdimm import Axdimm
from sw_driver.axdimm.backends import BackendOptions, module_config
from sw_driver.axdimm.backends import rtl as transport_module
from sw_driver.axdimm.backends.rtl import VerilatedTransport
from sw_driver.axdimm.registers import kernel_registers
from sw_driver.experiments.rulejob import RuleJob

__all__ = ["LOOPS", "main"]

LOOPS = 3


def main(library: Path, parameters: int) -> None:
    """Measures ``library``, a build of the default configuration."""
    config = replace(module_config(BackendOptions()), channels=1)
    with mock.patch.object(transport_module, "build_library", return_value=library):
        transport = VerilatedTransport(config=config)
    with Axdimm(transport) as device:
        job = RuleJob(device, parameters)
        (result,) = job.step(1)
        bit_exact = job.bit_exact()
        kernel = kernel_registers(transport, 0)
        speeds = []
        for _ in range(LOOPS):
            kernel.write({"control": 1})
            start = time.thread_time()
            transport.run_bare(0, result.fabric_cycles)
            speeds.append(result.fabric_cycles / (time.thread_time() - start))
            transport.poll(
                0, kernel.address("status"), kernel["status"]["busy"].mask, 0,
                interval_fabric_cycles=100, timeout_fabric_cycles=1_000_000,
            )  # fmt: skip
    figures = {
        "fabric_cycles": result.fabric_cycles,
        "fabric_cycles_per_cpu_second": max(speeds),
        "bit_exact": bit_exact,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
