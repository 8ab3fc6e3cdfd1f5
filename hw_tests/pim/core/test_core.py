"""A core alone: what it may touch, in which order others see it, and what stops it."""

from __future__ import annotations

import pytest

from hw.pim.config import configure
from hw.pim.core.core import Core
from hw.pim.core.faster import FasterCore
from hw.verilog.writer import to_verilog
from hw_tests.bench import run_bench
from hw_tests.soak import for_soak


@pytest.mark.parametrize(("kind", "core_clock_ratio"), [(Core, 1), *for_soak((FasterCore, 2))])
def test_core(kind: type[Core | FasterCore], core_clock_ratio: int) -> None:
    run_bench(
        kind(configure("tiny", cores=1, scratchpad_bytes=1 << 13)),
        top="pim_core",
        module="hw_tests.pim.core.core_bench",
        parameters={"core_clock_ratio": core_clock_ratio},
        optimization="-Og",
    )


def test_without_the_processors_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hw.pim.core.processor.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pythondata-cpu-vexriscv.*cores=0"):
        to_verilog(Core(configure("tiny", cores=1)), "pim_core")
