"""The kernel's job in the simulations that ours is compared with: same bits, same cycles."""

from __future__ import annotations

import numpy as np
import pytest

from hw.kernel.config import KernelConfig
from hw_tests.speed.amaranth_kernel import simulate_in_amaranth
from hw_tests.speed.kernel_job import KernelJob, simulate_in_cocotb

PRESET = "tiny"
ROUNDS = 2


def test_all_simulate_the_same_cycles() -> None:
    """Each compares its outputs itself; the memories move beats alike, so what differs would be
    the kernel."""
    one, again = simulate_in_cocotb(PRESET, ROUNDS, repetitions=2)
    amaranth = simulate_in_amaranth(KernelJob(KernelJob.config_of(PRESET), ROUNDS))
    assert one.parameters == amaranth.parameters == ROUNDS * 256
    assert one.fabric_cycles == again.fabric_cycles == amaranth.fabric_cycles
    assert one.fabric_cycles_per_host_second == one.fabric_cycles / one.host_seconds > 0


def test_wrong_bits_are_seen() -> None:
    job = KernelJob(KernelConfig(block_bytes=128, address_width=16, memory_bytes=1 << 16), 2)
    with pytest.raises(AssertionError, match="values of p differ"):
        job.check(job.memory)
    with pytest.raises(AssertionError, match="64 values of p differ, the first: 0"):
        job.check(np.zeros_like(job.memory))


def test_too_many_rounds_are_refused() -> None:
    config = KernelConfig(block_bytes=16384, address_width=17, memory_bytes=1 << 17)
    KernelJob(config, 2)
    with pytest.raises(ValueError, match=r"3 rounds take 196608 bytes.*131072"):
        KernelJob(config, 3)
