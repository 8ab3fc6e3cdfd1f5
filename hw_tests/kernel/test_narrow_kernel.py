"""Runs the benches of a kernel with narrow formats."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hw.kernel.config import KernelConfig
from hw.kernel.kernel import Kernel
from hw.logic.clocking import CLOCKINGS
from hw.verilog.writer import to_verilog
from hw_tests.kernel.test_kernel import run, with_any_power_up
from hw_tests.lockstep import Lockstep
from hw_tests.logic.test_clock_gate import CELL_MODELS

MODULE = "hw_tests.kernel.narrow_bench"
CONFIG = KernelConfig(
    rules=("adam",),
    lanes=8,
    block_bytes=8192,
    address_width=19,
    memory_bytes=(1 << 19) - 4096,
    narrow=True,
)


def test_narrow_kernel() -> None:
    """With a third block in each FIFO lanes never wait for what the quantizers hold."""
    config = replace(CONFIG, rules=("adam", "adamw"), buffer_blocks=3)
    kernel = Kernel(config)
    run(kernel, config, module=MODULE)
    # What needs no formats, for another bench has it.
    run(kernel, config, testcase=["accesses_in_a_row", "rules_in_turn/stalls=random"])


def test_few_lanes_without_subnormal_numbers() -> None:
    config = replace(CONFIG, lanes=2, subnormals="flushed")
    tests = [
        "gradients_that_are_not_finite",
        "mixtures/stalls=none",
        "mixtures/stalls=heavy",
        *(f"steady_state/number={number}" for number in range(5)),
    ]
    run(Kernel(config), config, module=MODULE, testcase=tests)


@pytest.mark.soak
def test_as_many_lanes_as_a_bus_needs() -> None:
    config = replace(CONFIG, lanes=16)
    tests = [
        "mixtures/stalls=none",
        *(f"shared_bus_is_the_limit/number={number}" for number in range(5)),
    ]
    run(Kernel(config), config, module=MODULE, testcase=tests)


@pytest.mark.soak
def test_reset_is_all_that_it_needs() -> None:
    config = replace(CONFIG, lanes=4)
    run(with_any_power_up(Kernel(config)), config, module=MODULE, testcase="reset_during_a_run")


@pytest.mark.soak
def test_every_clocking_is_the_same() -> None:
    """In every cycle, with stalls, errors and resets at any time."""
    config = replace(CONFIG, lanes=1)
    kernels = {each: Kernel(replace(config, clocking=each)) for each in CLOCKINGS}
    text = to_verilog(Lockstep(kernels), "kernel", clock_gate_cell="model")
    tests = [
        "reset_during_a_run",
        "mixtures/stalls=heavy",
        "memory_errors/stalls=random/channel=scan",
    ]
    run(text + CELL_MODELS.read_text(), config, module=MODULE, testcase=tests)
