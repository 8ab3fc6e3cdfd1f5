"""Whom Sentinel is compared with."""

from __future__ import annotations

import pytest

from sw_driver.system.sentinel.profiling import profile_of
from sw_driver.system.sentinel.rivals import RIVALS
from sw_driver.workload import load_trace
from sw_driver.workload.summary import peak_bytes

from .random_steps import with_fast


@pytest.mark.parametrize("transfers", ["shared", "apart"])
def test_a_network_under_all_of_them(transfers: str) -> None:
    profile = profile_of(load_trace("dcgan"), 30_000_000)
    machine = with_fast(peak_bytes(profile.step) // 5, transfers)
    steps = {name: rival(profile, machine) for name, rival in RIVALS.items()}
    times = {name: step.step_ns for name, step in steps.items()}
    assert times["fast-only"] < times["first-touch"] < times["slow-only"]
    assert times["fast-only"] < times["ial"] < times["slow-only"]
    bytes_ns = sum(op.nbytes for op in profile.step.ops)
    assert times["slow-only"] - times["fast-only"] < bytes_ns / 19 - bytes_ns / 34
    for step in steps.values():
        if step.tried:
            assert step.step_ns == min(other.step_ns for other in step.tried.values())
            assert step.step_ns == step.tried[step.settings].step_ns
    assert next(iter(steps["ial"].tried)) == "blocks, every 5 s, 8 at once"
