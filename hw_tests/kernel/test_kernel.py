"""Runs the benches of the kernel."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from amaranth.lib import wiring

from hw.kernel.config import MOST_RULES, KernelConfig
from hw.kernel.kernel import Kernel
from hw.logic.clocking import CLOCKINGS
from hw.rules import RULES
from hw.verilog.writer import to_verilog
from hw_tests.bench import run_bench
from hw_tests.kernel.plain_rule import PLAIN
from hw_tests.lockstep import Lockstep
from hw_tests.logic.test_clock_gate import CELL_MODELS
from hw_tests.soak import for_soak

# One rule alone; all rules that there are, together; and what lacks the reader or the writer.
SHIPPED = tuple(RULES)
CONFIGURATIONS: dict[str, tuple[tuple[str, ...], int, dict[str, Any]]] = {
    "Adam on 2 lanes": (("adam",), 2, {"block_bytes": 1024}),
    **{
        f"every rule on 2 lanes, from {SHIPPED[first]}": (
            SHIPPED[first : first + MOST_RULES],
            2,
            {"block_bytes": 256},
        )
        for first in range(0, len(SHIPPED), MOST_RULES)
    },
    "sums on 16 lanes": (("sum_squares",), 16, {"block_bytes": 256}),
    "sums on 1 lane": (("sum_squares",), 1, {"block_bytes": 256, "buffer_blocks": 1}),
    "nothing loaded": (("fill",), 4, {"block_bytes": 256}),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_kernel(name: str) -> None:
    rules, lanes, settings = CONFIGURATIONS[name]
    config = KernelConfig(
        rules=rules, lanes=lanes, address_width=18, memory_bytes=(1 << 18) - 4096, **settings
    )
    run(Kernel(config), config)


@pytest.mark.parametrize(
    ("lanes", "settings", "cell"),
    [
        pytest.param(1, {"block_bytes": 256, "buffer_blocks": 1}, "model", id="1 lane, 1 buffer"),
        pytest.param(
            4,
            {"block_bytes": 128, "buffer_blocks": 3},
            "dcca",
            id="3 buffers of 2 beats",
            marks=pytest.mark.soak,
        ),
        pytest.param(16, {"block_bytes": 1024}, "bufgce", id="16 lanes", marks=pytest.mark.soak),
    ],
)
def test_every_clocking_is_the_same(lanes: int, settings: dict[str, int], cell: str) -> None:
    """In every cycle, with stalls, errors and resets at any time, whatever the clock gate.

    Of small rules that build in less time, with lanes, blocks and buffers in combinations that
    between them have every part of the kernel at its limits.
    """
    config = KernelConfig(
        rules=(PLAIN.name, "sum_squares"),
        lanes=lanes,
        address_width=18,
        memory_bytes=(1 << 18) - 4096,
        **settings,
    )
    kernels = {each: Kernel(replace(config, clocking=each)) for each in CLOCKINGS}
    text = to_verilog(Lockstep(kernels), "kernel", clock_gate_cell=cell)
    run(text + CELL_MODELS.read_text(), config)


@pytest.mark.parametrize("clocking", ["gated", *for_soak("enable")])
def test_reset_is_all_that_it_needs(clocking: str) -> None:
    """With anything in the registers and memories at power-up."""
    config = KernelConfig(
        rules=("sum_squares", PLAIN.name),
        lanes=4,
        block_bytes=256,
        address_width=18,
        memory_bytes=(1 << 18) - 4096,
        clocking=clocking,
    )
    text = with_any_power_up(Kernel(config))
    run(text, config, testcase="reset_during_a_run")


def with_any_power_up(kernel: Kernel) -> str:
    """The Verilog of a kernel, with anything in its registers and memories but for tables."""
    rng = random.Random(kernel.config.clocking)
    changed = 0

    def anything(place: re.Match[str]) -> str:
        nonlocal changed
        changed += 1
        width = int(place[2])
        return f"{place[1]}{width}'h{rng.getrandbits(width):x};"

    def power_up(block: re.Match[str]) -> str:
        return re.sub(r"(\w+(?:\[row\])? = )(\d+)'[hdb][0-9a-f]+;$", anything, block[0], flags=re.M)

    text = to_verilog(kernel, "kernel")
    text = re.sub(r"^  initial begin\n.*?^  end\n", power_up, text, flags=re.DOTALL | re.MULTILINE)
    assert changed > 150
    return text


def run(
    design: wiring.Component | str,
    config: KernelConfig,
    *,
    module: str = "hw_tests.kernel.kernel_bench",
    testcase: str | Sequence[str] | None = None,
) -> None:
    """A bench of the kernel on ``design``."""
    run_bench(
        design,
        top="kernel",
        module=module,
        parameters={
            "rules": config.rules,
            "lanes": config.lanes,
            "memory_bytes": config.memory_bytes,
            "block_bytes": config.block_bytes,
            "subnormals": config.subnormals,
            "narrow": config.narrow,
        },
        testcase=testcase,
    )
