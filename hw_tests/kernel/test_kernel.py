"""Runs the benches of the Adam kernel."""

from __future__ import annotations

import pytest

from hw.kernel.config import KernelConfig
from hw.kernel.kernel import AdamKernel
from hw_tests.bench import run_bench
from hw_tests.kernel.plain_rule import plain_unit

# The machine's units and a small rule in their place, which builds in less time; lanes, blocks and
# buffers in combinations that between them have every part of the kernel at its limits.
CONFIGURATIONS = {
    "Adam on 2 lanes": ("adam", 2, {"block_bytes": 1024}),
    "1 lane, 1 buffer": ("plain", 1, {"block_bytes": 256, "buffer_blocks": 1}),
    "4 lanes, 3 buffers of 2 beats": ("plain", 4, {"block_bytes": 128, "buffer_blocks": 3}),
    "16 lanes": ("plain", 16, {"block_bytes": 2048}),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_kernel(name: str) -> None:
    unit, lanes, settings = CONFIGURATIONS[name]
    config = KernelConfig(lanes=lanes, address_width=18, memory_bytes=(1 << 18) - 4096, **settings)
    run_bench(
        AdamKernel(config, unit=plain_unit() if unit == "plain" else None),
        top="adam_kernel",
        module="hw_tests.kernel.kernel_bench",
        parameters={
            "lanes": config.lanes,
            "memory_bytes": config.memory_bytes,
            "block_bytes": config.block_bytes,
            "unit": unit,
        },
    )
