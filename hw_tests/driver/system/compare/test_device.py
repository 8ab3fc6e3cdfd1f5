"""Training on the GPU alone: memory and time, with activations computed again and without."""

from __future__ import annotations

import pytest

from sw_driver.machine.axdimm_platform import AXDIMM_PLATFORM
from sw_driver.machine.sentinel import TIERS
from sw_driver.system.axdimm.platform import measure
from sw_driver.system.axdimm.settings import MODULE
from sw_driver.system.compare.bases import BASES
from sw_driver.system.compare.comparison import Row, compare
from sw_driver.system.compare.device import SYSTEMS
from sw_driver.system.compare.system import all_parts_ns
from sw_driver.system.memferry.costs import profile_of as layers_of
from sw_driver.system.sentinel.planning import planned
from sw_driver.system.sentinel.profiling import profile_of
from sw_driver.workload import load_trace, peak_bytes
from sw_driver.workload.recomputation import recomputed


def rows(network: str, base: str) -> list[Row]:
    return compare(load_trace(network), BASES[base], SYSTEMS, lambda _: None)


@pytest.mark.parametrize("network", ["gpt3-large", "resnet-50", "rnn-gru"])
def test_recomputation_takes_less_memory_and_a_forward_pass_more(network: str) -> None:
    plain, again = rows(network, "a100")
    assert plain.outcome
    assert again.outcome
    assert all_parts_ns(plain.outcome)["recomputing"] == all_parts_ns(plain.outcome)["waiting"] == 0
    parts = all_parts_ns(again.outcome)
    assert parts | {"recomputing": 0} == all_parts_ns(plain.outcome)
    gpu = BASES["a100"].device("gpu")
    forward = sum(gpu.cost(op) for op in load_trace(network).ops if op.phase == "forward")
    assert 0.7 * forward < parts["recomputing"] <= forward
    for row in (plain, again):
        assert row.outcome
        assert row.outcome.peak_bytes["gpu"] == row.needs["gpu"].nbytes
    assert again.outcome.peak_bytes["gpu"] < plain.outcome.peak_bytes["gpu"]
    assert (again.largest_parameters or 0) > (plain.largest_parameters or 0)


def test_a_card_of_24_gib_trains_with_recomputation_what_it_cannot_without() -> None:
    plain, again = rows("gpt3-large", "rtx4090")
    assert plain.reason == "takes at least 31.1 GiB of gpu, which has 24.0 GiB"
    assert again.outcome
    assert not again.reason


def test_what_one_segment_has_inside_is_fixed() -> None:
    trace = recomputed(load_trace("resnet-50"))
    plain, again = (each.needs["gpu"] for each in rows("resnet-50", "a100"))
    fixed = again.nbytes - again.growing_bytes
    assert 0 < fixed <= peak_bytes(trace, "temporary")
    assert fixed > plain.nbytes - plain.growing_bytes


def test_other_systems_take_the_step_with_its_repeats() -> None:
    """Each of its repeats takes what its first time does."""
    trace = load_trace("bert-base")
    again = recomputed(trace)
    gpu = BASES["v100"].device("gpu")
    longer = sum(gpu.cost(again.ops[each]) for each in again.origin["recomputed"])
    profiles = [layers_of(each, BASES["v100"]).layers for each in (trace, again)]
    plain_ns, again_ns = (
        sum(each.backward_ns + each.gap_backward_ns for each in layers) for layers in profiles
    )
    assert again_ns == plain_ns + longer
    kept = sum(each.activation_bytes for each in profiles[1])
    inputs = sum(each.nbytes for each in trace.tensors if each.kind == "input")
    assert kept == peak_bytes(again, "activation") + inputs
    platform = [
        measure(AXDIMM_PLATFORM, each, MODULE, channel_mparams_per_s=400, overhead_us=0)
        for each in (trace, again)
    ]
    assert platform[0].step_ns < platform[1].step_ns <= 1.4 * platform[0].step_ns
    tiers = TIERS["pcie3"]
    steps = [
        planned(profile_of(each, 30 << 20), tiers, lengths=[28]).step_ns for each in (trace, again)
    ]
    assert steps[0] < steps[1] < 1.4 * steps[0]
