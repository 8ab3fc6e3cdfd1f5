"""Training on the GPU alone: memory and time, with activations computed again and without."""

from __future__ import annotations

import pytest

from sw_driver.device.errors import InvalidArgumentError
from sw_driver.machine.axdimm_platform import AXDIMM_PLATFORM
from sw_driver.machine.sentinel import TIERS
from sw_driver.system.axdimm.platform import measure
from sw_driver.system.axdimm.settings import MODULE
from sw_driver.system.compare.bases import BASES, machine_of
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
    assert plain.reason == "needs at least 31.1 GiB of gpu, which has 24.0 GiB"
    assert again.outcome
    assert not again.reason


def test_what_one_segment_has_inside_is_fixed() -> None:
    trace = recomputed(load_trace("resnet-50"))
    plain, again = (row.needs["gpu"] for row in rows("resnet-50", "a100"))
    fixed = again.nbytes - again.growing_bytes
    assert 0 < fixed <= peak_bytes(trace, "temporary")
    assert fixed > plain.nbytes - plain.growing_bytes


def test_other_systems_take_the_step_with_its_repeats() -> None:
    """Each of its repeats takes what its first time does."""
    trace = load_trace("bert-base")
    again = recomputed(trace)
    gpu = BASES["v100"].device("gpu")
    longer = sum(gpu.cost(again.ops[number]) for number in again.origin["recomputed"])
    profiles = [layers_of(step_trace, BASES["v100"]).layers for step_trace in (trace, again)]
    plain_ns, again_ns = (
        sum(layer.backward_ns + layer.gap_backward_ns for layer in layers) for layers in profiles
    )
    assert again_ns == plain_ns + longer
    kept = sum(profile.activation_bytes for profile in profiles[1])
    inputs = sum(tensor.nbytes for tensor in trace.tensors if tensor.kind == "input")
    assert kept == peak_bytes(again, "activation") + inputs
    platform = [
        measure(AXDIMM_PLATFORM, step_trace, MODULE, channel_mparams_per_s=400, overhead_us=0)
        for step_trace in (trace, again)
    ]
    assert platform[0].step_ns < platform[1].step_ns <= 1.4 * platform[0].step_ns
    tiers = TIERS["pcie3"]
    steps = [
        planned(profile_of(given, 30 << 20), tiers, lengths=[28]).step_ns
        for given in (trace, again)
    ]
    assert steps[0] < steps[1] < 1.4 * steps[0]


def test_a_machine_with_several_gpus_is_one_gpus_share() -> None:
    one, eight = machine_of("h100", "bf16-mixed"), machine_of("h100x8", "bf16-mixed")
    assert one.device("gpu") == eight.device("gpu")
    assert 4 * eight.device("cpu").bytes_per_s == one.device("cpu").bytes_per_s
    shares = [int(base.memory("host").capacity_bytes.value) for base in (one, eight)]
    assert shares[0] == 4 * shares[1]
    assert eight.link("peers").read_gb_per_s.value == 0.75 * 450
    assert machine_of("v100") is BASES["v100"]
    for name, message in (
        ("h100x9", "that host has GPUs up to a number of 8; such as h100x8"),
        ("rtx4090x2", "up to a number of 1; give rtx4090"),
        ("h10", "did you mean h100"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            machine_of(name)
