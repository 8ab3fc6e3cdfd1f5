"""The host's memory port: results of running works are not read, order, bandwidth, liveness."""

from __future__ import annotations

from hw.pim.config import PIM_PRESETS
from hw.pim.memory.host_memory import HostMemory
from hw_tests.bench import run_bench


def test_host_memory() -> None:
    run_bench(
        HostMemory(PIM_PRESETS["tiny"]),
        top="host_memory",
        module="hw_tests.pim.memory.host_memory_bench",
    )
