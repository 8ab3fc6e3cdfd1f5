"""The kernel's job in the simulations that ours is compared with: same bits, same cycles."""

from __future__ import annotations

import numpy as np
import pytest

from hw.kernel.config import KernelConfig
from hw_tests.speed import levers
from hw_tests.speed.amaranth_kernel import simulate_in_amaranth
from hw_tests.speed.cocotb_kernel import MEMORIES, simulate_in_cocotb
from hw_tests.speed.kernel_job import JobResult, KernelJob
from sw_driver.axdimm.backends import rtl
from sw_driver.simulator.library import MAKE_ARGS

PRESET = "tiny"
ROUNDS = 2


@pytest.fixture(scope="module")
def results() -> dict[str, list[JobResult]]:
    """Of the small configuration; every simulation compares its outputs itself."""
    job = KernelJob(KernelJob.config_of(PRESET), ROUNDS)
    return {
        "Amaranth": simulate_in_amaranth(job, 2),
        **{
            memory: simulate_in_cocotb(PRESET, ROUNDS, memory=memory, repetitions=2)
            for memory in MEMORIES
        },
    }


def test_each_repetition_is_the_same_job(results: dict[str, list[JobResult]]) -> None:
    for name, runs in results.items():
        assert len(runs) == 2, name
        assert runs[0].fabric_cycles == runs[1].fabric_cycles, name
        for run in runs:
            assert run.parameters == ROUNDS * 256, name
            assert run.host_seconds > 0, name


def test_amaranth_simulates_the_cycles_of_the_verilog(
    results: dict[str, list[JobResult]],
) -> None:
    """Its memory moves beats as that of our benches does; what differs would be the kernel."""
    assert results["Amaranth"][0].fabric_cycles == results["own"][0].fabric_cycles


def test_a_result_states_its_speed() -> None:
    result = JobResult(parameters=16, fabric_cycles=300, host_seconds=0.5)
    assert result.fabric_cycles_per_host_second == 600


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


def test_a_lever_changes_what_it_says_and_nothing_else() -> None:
    built = levers.arguments(levers.LEVERS["as built"])
    assert built == rtl.VERILATOR_ARGS
    plain = levers.arguments(levers.LEVERS["x-assign"])
    start = built.index("--x-assign")
    assert built[start : start + 4] == ["--x-assign", "fast", "--x-initial", "fast"]
    assert plain == built[:start] + built[start + 4 :]
    asserting = levers.arguments(levers.LEVERS["assertions"])
    assert asserting == [argument for argument in built if argument != "--noassert"]
    assert levers.arguments(levers.LEVERS["threads"]) == [*built, "--threads", "2"]
    assert list(levers.LEVERS["as built"].make) == MAKE_ARGS


def test_an_unknown_lever_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["levers", "O3", "O9"])
    with pytest.raises(SystemExit, match="2"):
        levers.main()
    assert "no lever O9: expected some of as built, " in capsys.readouterr().err
