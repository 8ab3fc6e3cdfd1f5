"""The host's memory port: results of running works are not read, errors, order, liveness."""

from __future__ import annotations

import pytest

from hw.pim.config import configure
from hw.pim.memory.host_memory import HostMemory
from hw_tests.bench import run_bench
from hw_tests.soak import for_soak


@pytest.mark.parametrize("columns", [3, *for_soak(4, 5), 6])
def test_host_memory(columns: int) -> None:
    run_bench(
        HostMemory(configure("tiny", rows=1, columns=columns)),
        top="host_memory",
        module="hw_tests.pim.memory.host_memory_bench",
        parameters={"columns": columns},
    )
