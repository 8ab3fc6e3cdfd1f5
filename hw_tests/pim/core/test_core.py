"""A core alone: what it may touch, in which order others see it, and what stops it."""

from __future__ import annotations

import pytest

from hw.pim.config import configure
from hw.pim.core.core import Core
from hw.verilog.writer import to_verilog
from hw_tests.bench import run_bench


def test_core() -> None:
    run_bench(
        Core(configure("tiny", cores=1, scratchpad_bytes=1 << 13)),
        top="pim_core",
        module="hw_tests.pim.core.core_bench",
        optimization="-Og",
    )


def test_without_the_processors_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hw.pim.core.processor.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pythondata-cpu-vexriscv.*cores=0"):
        to_verilog(Core(configure("tiny", cores=1)), "pim_core")
