"""Training on the GPU alone: memory and time, with activations computed again and without."""

from __future__ import annotations

import pytest

from sw_driver.device.errors import InvalidArgumentError
from sw_driver.machine import Machine, given
from sw_driver.machine.axdimm_platform import AXDIMM_PLATFORM
from sw_driver.machine.gpus import GPUS
from sw_driver.machine.sentinel import TIERS
from sw_driver.system.axdimm.platform import measure
from sw_driver.system.axdimm.settings import MODULE
from sw_driver.system.compare.bases import BASES, gpu_watts, machine_of, usual_precision
from sw_driver.system.compare.comparison import Row, compare
from sw_driver.system.compare.device import FUSED, SYSTEMS
from sw_driver.system.compare.system import all_parts_ns
from sw_driver.system.compare.systems import SYSTEMS as ALL
from sw_driver.system.memferry.costs import profile_of as layers_of
from sw_driver.system.sentinel.planning import planned
from sw_driver.system.sentinel.profiling import profile_of
from sw_driver.workload import load_trace, peak_bytes
from sw_driver.workload.precision import PRECISIONS
from sw_driver.workload.recomputation import recomputed
from sw_driver.workload.training import Training


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
    assert plain.reason == "needs at least 31.1 GiB of GPU memory, which has 24.0 GiB"
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
    far = machine_of("a100x64", "bf16-mixed")
    assert far.link("peers").read_gb_per_s.value == 0.75 * 8 * 200 / 8
    slow = machine_of("a100x16", "bf16-mixed", network_gb_per_s=given(25, "one adapter"))
    assert slow.link("peers").read_gb_per_s.value == 0.75 * 25
    assert far.device("cpu") == machine_of("a100x8", "bf16-mixed").device("cpu")
    assert machine_of("v100") is BASES["v100"]
    watts = [gpu_watts(base) for base in (eight, BASES["v100"], machine_of("v100", "fp16-mixed"))]
    assert [figure and figure.value for figure in watts] == [700, 250, 300]
    for name, message in (
        ("h100x0", "'h100x0': that host has GPUs up to a number of 8"),
        ("h10x8", "--machine is 'h10x8': did you mean h100"),
        ("h100x9", "that host has GPUs up to a number of 8; such as h100x8, or several hosts"),
        ("h100x12", "up to a number of 8; such as h100x8, or several hosts"),
        ("rtx4090x2", "up to a number of 1; give rtx4090"),
        ("h10", "did you mean h100"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            machine_of(name)


def test_the_usual_precision_is_one_that_the_gpu_has() -> None:
    for name, gpu in GPUS.items():
        usual = usual_precision(name)
        assert usual == ("fp16-mixed" if name == "v100" else "bf16-mixed")
        assert {*PRECISIONS[usual]} <= {"fp32", *gpu.device.formats}


def made(name: str, gpus: int, machine: Machine | None = None, **choices: str) -> list[Row]:
    trace = Training(gpus=gpus, precision="bf16-mixed", **choices).apply(load_trace(name))
    base = machine or machine_of(f"h100x{gpus}" if gpus > 1 else "h100", "bf16-mixed")
    return compare(trace, base, ALL, lambda _: None)


@pytest.mark.parametrize("name", ["gpt-tiny", "bert-base"])
def test_copies_take_longer_than_one_gpu_and_shares_take_less_memory(name: str) -> None:
    """With zero3 casts are left out and an update is shared, so that it may take less time."""
    one, copies, shares = (
        made(name, gpus, checkpoint="full", shard=shard)[0]
        for gpus, shard in ((1, "none"), (8, "ddp"), (8, "zero3"))
    )
    assert one.outcome
    assert copies.outcome
    assert shares.outcome
    parts = [all_parts_ns(row.outcome) for row in (one, copies, shares) if row.outcome]
    assert copies.outcome.step_ns > one.outcome.step_ns
    least = parts[0]["computing"]
    assert least <= parts[1]["computing"] < 1.3 * least  # collectives take multiprocessors
    assert parts[2]["waiting"] > parts[0]["waiting"] == 0
    assert copies.outcome.peak_bytes == one.outcome.peak_bytes
    assert shares.outcome.peak_bytes["gpu"] < one.outcome.peak_bytes["gpu"] / 2
    assert (shares.largest_parameters or 0) > 2 * (one.largest_parameters or 0) > 0


def test_other_systems_say_that_they_are_modelled_on_one_gpu() -> None:
    rows_of_eight = made("gpt-tiny", 8)
    for row in rows_of_eight:
        if row.system.several_gpus and row.system.name != "recomputation":
            continue
        assert row.outcome is None
        assert row.assumptions == ()
        if row.system.name == "recomputation":
            assert row.reason.endswith("give --checkpoint full")
        else:
            assert row.reason == "a step of 8 GPUs: this system is modelled on one"
    several = Training(accumulate=4).apply(load_trace("gpt-tiny"))
    for row in compare(several, BASES["v100"], ALL, lambda _: None):
        is_planned = not row.system.micro_batches and row.system.name != "gradient release"
        assert ("modelled with one, so give --accumulate 1" in row.reason) == is_planned, row.reason


@pytest.mark.parametrize(
    "changes",
    [
        {"gpu.bf16_tflop_per_s": 2 * 989.4, "gpu.tflop_per_s": 134},
        {"gpu.gb_per_s": 2 * 3350},
        {"gpu.capacity_bytes": 160 << 30},
        {"peers.read_gb_per_s": 900, "peers.write_gb_per_s": 900},
        {"peers.latency_ns": 0},
        {"gpu.launch_ns": 0},
    ],
)
def test_better_parts_make_no_step_slower(changes: dict[str, float]) -> None:
    base = machine_of("h100x8", "bf16-mixed")
    better = base.override({key: str(value) for key, value in changes.items()})
    for shard in ("ddp", "zero3"):
        before, after = (
            [row.outcome for row in made("bert-base", 8, machine, shard=shard, checkpoint="full")]
            for machine in (base, better)
        )
        for old, new in zip(before[:2], after[:2], strict=True):
            assert old
            assert new
            assert new.step_ns <= old.step_ns
            if "gpu.capacity_bytes" not in changes:
                assert new.step_ns < old.step_ns, shard


def test_a_ring_is_as_fast_as_the_slower_direction() -> None:
    base = machine_of("h100x8", "bf16-mixed")
    steps = set()
    for way in ("read", "write"):
        (first, *_) = made("gpt-tiny", 8, base.override({f"peers.{way}_gb_per_s": "0.01"}))
        assert first.outcome
        steps.add(first.outcome.step_ns)
    (plain, *_) = made("gpt-tiny", 8, base)
    assert plain.outcome
    assert len(steps) == 1
    assert steps.pop() > plain.outcome.step_ns


def test_checkpoints_after_a_compiler_are_an_assumption() -> None:
    trace = load_trace("gpt-tiny")
    fused = Training(compiled=True).apply(trace)
    full = Training(compiled=True, checkpoint="full").apply(trace)
    (system,) = (one for one in SYSTEMS if one.name == "recomputation")
    assumed = [FUSED in system.assumed(step) for step in (trace, fused, full)]
    assert assumed == [False, True, False]
