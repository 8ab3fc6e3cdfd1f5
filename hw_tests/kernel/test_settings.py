"""The settings of a run, kept and checked, against what formats say of tensors in bytes."""

from __future__ import annotations

import os
from typing import Any

import pytest

from hw.kernel.config import KernelConfig
from hw.kernel.settings import RunSettings
from hw_tests.bench import run_bench

SMALL: dict[str, Any] = {"address_width": 22, "memory_bytes": (1 << 22) - 8192}
CONFIGS: dict[str, dict[str, Any]] = {
    "narrow": {"rules": ("adam", "adamw"), "block_bytes": 8192, "narrow": True, **SMALL},
    "narrow, all of 16 GiB": {"rules": ("adamw",), "block_bytes": 65536, "narrow": True},
    "FP32": {"rules": ("amsgrad", "fill", "sgd", "sum_squares"), "block_bytes": 1024, **SMALL},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_settings(name: str) -> None:
    run_bench(
        RunSettings(KernelConfig(**CONFIGS[name])),
        top="run_settings",
        module="hw_tests.kernel.settings_bench",
        parameters=CONFIGS[name],
        seed=int(os.environ.get("NEARMEM_TEST_SEED", "1")),
    )
