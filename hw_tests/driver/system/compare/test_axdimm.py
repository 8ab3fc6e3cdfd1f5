"""The AXDIMM platform beside other systems: as reproduced, and with the least that steps take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from hw.narrow.formats import MIXTURES
from hw_tests.driver.system.compare.bases import both_ways
from sw_driver.axdimm.figures import PAPER_MPARAMS_PER_S
from sw_driver.axdimm.measure import own_mparams_per_s
from sw_driver.machine.axdimm_platform import TRAINING_LIMITS
from sw_driver.system.axdimm.platform import machine_of, measure
from sw_driver.system.axdimm.settings import MODULE
from sw_driver.system.compare.axdimm import SYSTEMS
from sw_driver.system.compare.bases import BASES
from sw_driver.system.compare.comparison import Row, compare
from sw_driver.system.compare.system import System, all_parts_ns
from sw_driver.system.outcome import Outcome
from sw_driver.workload import Trace, load_trace

BASE = BASES["v100"]
ROOMY = {"gpu.capacity_bytes": "1e12"}
FEWER = replace(MODULE, formats=MIXTURES["bf16_g_8bit"])


def rows(
    trace: Trace | str, changes: Mapping[str, str], systems: Sequence[System] = SYSTEMS
) -> list[Row]:
    """At the paper's rate, at ours, and with fewer bytes."""
    trace = load_trace(trace) if isinstance(trace, str) else trace
    return compare(trace, BASE.override(changes), systems, lambda _: None)


def called_adam(network: str) -> Trace:
    """Where formats are narrow, only Adam and AdamW can be."""
    trace = load_trace(network)
    ops = (replace(op, kind="adam") if op.phase == "update" else op for op in trace.ops)
    return replace(trace, ops=tuple(ops))


def row(trace: Trace | str, changes: Mapping[str, str], system: System = SYSTEMS[0]) -> Row:
    return rows(trace, changes, [system])[0]


def ran(trace: Trace | str, changes: Mapping[str, str], system: System = SYSTEMS[0]) -> Outcome:
    made = row(trace, changes, system)
    assert made.outcome, made.reason
    return made.outcome


def module(*nbytes: int | str) -> dict[str, str]:
    return {f"module{number}.capacity_bytes": str(size) for number, size in enumerate(nbytes)}


def test_steps_are_those_of_the_reproduction() -> None:
    limits = {key: value for key, value in TRAINING_LIMITS.items() if "host" not in key}
    variants = (
        (MODULE, PAPER_MPARAMS_PER_S),
        (MODULE, own_mparams_per_s()),
        (FEWER, own_mparams_per_s(FEWER.formats)),
    )
    for row, (settings, rate) in zip(rows("gpt3-large", limits), variants, strict=False):
        trace, made = load_trace("gpt3-large"), row.outcome
        step = measure(machine_of(), trace, settings, channel_mparams_per_s=rate / 2)
        assert made
        assert made.step_ns == step.step_ns
        assert made.peak_bytes["nvme"] == step.peak_bytes["nvme"]
        assert all_parts_ns(made)["computing"] == step.busy("gpu")
        assert row.energy_j is None


@pytest.mark.parametrize(
    "system", [SYSTEMS[0], SYSTEMS[-1]], ids=lambda one_system: one_system.name
)
@pytest.mark.parametrize(
    "network", ["gpt-tiny", "gpt3-large", "bert-base", "alexnet", "lstm-ptb", "word2vec", "rnn-gru"]
)
def test_what_is_needed_is_enough_and_no_byte_less_is(network: str, system: System) -> None:
    trace = called_adam(network)
    roomy = row(trace, ROOMY, system)
    assert roomy.outcome
    for place, need in roomy.needs.items():
        assert 0 <= need.nbytes <= roomy.outcome.peak_bytes[place]
    least = roomy.needs["gpu"].nbytes
    tight = ran(trace, {"gpu.capacity_bytes": str(least)}, system)
    assert tight.peak_bytes["gpu"] == least
    assert tight.step_ns >= roomy.outcome.step_ns
    short = row(trace, {"gpu.capacity_bytes": str(least - 1)}, system)
    assert short.needs["gpu"].nbytes == least
    assert "needs at least" in short.reason


@pytest.mark.parametrize(
    ("system", "kept", "gradient"),
    [
        (SYSTEMS[0], (244_361_984, 41_376), 1),
        # In whole blocks of 256: of the weights 23,232 are no such number, of the biases 64, 192,
        # 384 and 1000. Gradients are in BF16.
        (SYSTEMS[2], (244_361_984 + 4 * 64, 41_376 + 4 * (192 + 64 + 128 + 24)), 0.5),
    ],
    ids=("fp32", "narrow"),
)
def test_a_channel_holds_an_update_and_a_gradient(
    system: System, kept: tuple[int, int], gradient: float
) -> None:
    # Of alexnet, without states. The first channel has the weights, of which the largest has
    # 150,994,944 bytes; the second the biases, and 16,384. Drives have the others.
    alexnet, largest = called_adam("alexnet"), (150_994_944, 16_384)
    least = tuple(int(nbytes * (1 + gradient)) for nbytes in largest)
    tight = row(alexnet, ROOMY | module(*least), system)
    assert tight.outcome
    assert tight.needs["module"].nbytes == sum(least) == tight.outcome.peak_bytes["module"]
    others = sum(kept) - sum(largest)
    assert tight.needs["nvme"].nbytes == others <= tight.outcome.peak_bytes["nvme"]
    for short in ((least[0] - 1, least[1]), (1 << 30, least[1] - 1)):
        refused = row(alexnet, ROOMY | module(*short), system)
        assert refused.needs["module"].nbytes == sum(short) + 1
        assert refused.reason.startswith("needs at least")
    drives = ROOMY | module(*least) | {"nvme.capacity_bytes": str(others - 1)}
    assert "of drive, which has" in row(alexnet, drives, system).reason


@pytest.mark.parametrize("least", [(2 * 150_994_944, 2 * 16_384), ("1GiB", "1GiB")])
def test_drives_have_all_of_a_second_model(least: tuple[int | str, int | str]) -> None:
    """Of alexnet's 244,403,360 bytes, of which drives have some, or none."""
    once = ROOMY | module(*least)
    need = row("alexnet", once).needs["nvme"].nbytes
    made = row("alexnet", once | {"nvme.capacity_bytes": str(need + 244_403_360)})
    assert made.largest_parameters == 2 * 244_403_360 // 4


def test_drives_that_are_a_little_too_small_are_named() -> None:
    """What moves has room in both places, which no arithmetic says."""
    tight = ROOMY | module(64 << 10, 8 << 10)
    least = row("gpt-tiny", tight).needs["nvme"].nbytes
    made = row("gpt-tiny", tight | {"nvme.capacity_bytes": str(least)})
    assert made.outcome is None
    assert made.reason.startswith(f"memory 'nvme' of {least} bytes is too small, as ")
    assert "\n" not in made.reason


def test_faster_parts_and_more_room_make_no_step_slower() -> None:
    small = ROOMY | module("400MiB", "200MiB")
    for link in ("pcie", "module", "nvme", "direct", "drives", "channel0", "channel1"):
        times = [ran("bert-base", small | both_ways(link, number)).step_ns for number in (1, 4, 16)]
        assert times[0] > times[2], link
        assert times == sorted(times, reverse=True), link
    more = [module(f"{number}MiB", f"{number}MiB") for number in (400, 800, 1600)]
    times = [ran("bert-base", ROOMY | change).step_ns for change in more]
    assert times[0] > times[2]
    assert times == sorted(times, reverse=True)
    papers, ours, fewer, today = (made.outcome for made in rows("bert-base", small))
    assert papers
    assert ours
    assert fewer
    assert today
    assert fewer.step_ns > 2 * today.step_ns
    assert papers.step_ns > ours.step_ns > fewer.step_ns
    assert papers.peak_bytes == ours.peak_bytes
    assert fewer.peak_bytes["nvme"] < ours.peak_bytes["nvme"]


def test_updating_is_what_is_left_when_all_gradients_are_there() -> None:
    """One tensor, updated by SGD with 12 bytes a parameter, where the rate is for Adam's 28; with
    fewer bytes by Adam."""
    fp32, narrow = (own_mparams_per_s(MIXTURES[name]) for name in ("fp32", "bf16_g_8bit"))
    sgd, adam = rows("rnn-gemv", {})[:2], rows(called_adam("rnn-gemv"), {})[2]
    speeds = (789.38 * 28 / 12, fp32 * 28 / 12, narrow)
    for row, mparams_per_s in zip((*sgd, adam), speeds, strict=True):
        assert row.outcome
        kernel_us = 26_214_400 / 4 / (mparams_per_s / 2)
        updating_us = all_parts_ns(row.outcome)["updating"] / 1000
        assert updating_us == pytest.approx(4900 + kernel_us, abs=0.01)


def test_fewer_bytes_are_refused_to_a_rule_that_no_narrow_kernel_has() -> None:
    made = row("resnet32", ROOMY, SYSTEMS[-1])
    assert made.reason == (
        "resnet32 is updated by momentum; kernels with such formats have adam and adamw"
    )
    assert not made.needs


def test_who_is_not_trained_makes_no_update_faster() -> None:
    trace = load_trace("rnn-gemv")
    frozen = next(tensor for tensor in trace.tensors if tensor.kind == "parameter")
    frozen = replace(frozen, id=len(trace.tensors), name="frozen")
    more = rows(replace(trace, tensors=(*trace.tensors, frozen)), {})[0].outcome
    assert more
    assert more.parts_ns == ran("rnn-gemv", {}).parts_ns


def test_a_step_without_updates_is_refused() -> None:
    trace = load_trace("gpt-tiny")
    ops = (replace(op, phase="backward" if op.phase == "update" else op.phase) for op in trace.ops)
    for row in rows(replace(trace, ops=tuple(ops)), {}):
        assert row.reason == "gpt-tiny updates no parameter: give a whole training step"
