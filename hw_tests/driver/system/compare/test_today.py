"""Systems in use today: which step each of them runs, and how long the slow ones take by hand."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from sw_driver.system.compare import today
from sw_driver.system.compare.bases import machine_of
from sw_driver.system.compare.comparison import Row, TrainedSteps, compare
from sw_driver.workload import Trace, load_trace
from sw_driver.workload.training import Training

NAMES = [system.name for system in today.SYSTEMS]
PARALLEL = NAMES[:4]


@cache
def rows(name: str = "gpt3-large", machine: str = "a6000", **choices: Any) -> dict[str, Row]:
    gpus = 8 if machine.endswith("x8") else 1
    base = machine_of(machine, "bf16-mixed")
    training = Training(precision="bf16-mixed", gpus=gpus, **choices)
    made = compare(TrainedSteps(load_trace(name), training), base, today.SYSTEMS, lambda _: None)
    return {row.system.name: row for row in made}


def ns(row: Row) -> int:
    assert row.outcome, row.reason
    return row.outcome.step_ns


def gpu(row: Row) -> int:
    assert row.outcome, row.reason
    return row.outcome.peak_bytes["gpu"]


def count(trace: Trace) -> int:
    return sum(one.elements for one in trace.tensors if one.kind == "parameter")


def test_all_but_several_gpus_run_on_one() -> None:
    for name, row in rows().items():
        assert bool(row.outcome) == (name not in PARALLEL), row.reason
        if name in PARALLEL:
            assert row.reason == "data parallelism of several GPUs: give a machine such as h100x8"


def test_all_run_on_eight() -> None:
    made = rows(machine="h100x8")
    assert all(row.outcome for row in made.values())
    least = [gpu(made[name]) for name in ("DDP", "ZeRO-1", "ZeRO-2", "FSDP (ZeRO-3)")]
    assert least == sorted(least, reverse=True)
    assert least[-1] < least[0]


def test_less_memory_costs_time() -> None:
    made = rows()
    order = ["ZeRO-Offload, delayed update", "ZeRO-Offload, as run", "Smart-Infinity"]
    assert [ns(made[name]) for name in order] == sorted(ns(made[name]) for name in order)
    assert ns(made["ZeRO-3 offload"]) < ns(made["ZeRO-Infinity"])
    assert gpu(made["ZeRO-3 offload"]) < gpu(made["ZeRO-Offload, as run"])
    assert gpu(made["QLoRA"]) < gpu(made["LoRA"]) < gpu(made["gradient release"])


def test_an_update_on_the_host_takes_its_bytes_at_the_rate_of_its_memory() -> None:
    """Forty-eight bytes a parameter, of which six are a cast beside the backward pass."""
    captured, made = load_trace("gpt3-large"), rows()["ZeRO-Offload, as run"].outcome
    assert made
    rate = machine_of("a6000", "bf16-mixed").device("cpu").bytes_per_s
    behind_s = 42 * count(captured) / rate
    assert made.parts_ns["updating"] / 1e9 == pytest.approx(behind_s, rel=0.05)  # and the last copy
    assert made.busy("cpu") / 1e9 == pytest.approx(48 * count(captured) / rate, rel=0.01)


def test_states_on_drives_take_their_bytes_both_ways() -> None:
    captured, made = load_trace("gpt3-large"), rows()["ZeRO-Infinity"].outcome
    assert made
    drive = machine_of("a6000", "bf16-mixed").link("drive")
    reads, writes = (14 + 2, 14)  # states, and parameters of 16 bits for both passes
    seconds = count(captured) * (
        reads / drive.rate(writing=False) + writes / drive.rate(writing=True)
    )
    assert made.busy("drive") / 1e9 == pytest.approx(seconds, rel=0.1)


def test_smart_drives_scale_with_their_number_and_others_with_the_link() -> None:
    step = TrainedSteps(load_trace("gpt3-large"), Training(precision="bf16-mixed"))
    base = machine_of("a6000", "bf16-mixed")
    more = base.override({"drive.gb_per_s": str(4 * base.device("drive").gb_per_s.value)})
    smart = [system for system in today.SYSTEMS if system.name == "Smart-Infinity"]
    before, after = (
        compare(step, machine, smart, lambda _: None)[0].outcome for machine in (base, more)
    )
    assert before
    assert after
    assert after.busy("in the drive") == pytest.approx(before.busy("in the drive") / 4, rel=0.01)
    assert after.busy("drive") == pytest.approx(before.busy("drive"), rel=0.01)  # but latencies


def test_pages_cost_nothing_while_there_is_room() -> None:
    plain = rows()["8-bit optimizer, paged"].outcome
    base = machine_of("a6000", "bf16-mixed")
    assert plain
    assert "host" not in plain.peak_bytes
    less = base.override({"gpu.capacity_bytes": str(plain.peak_bytes["gpu"] - (256 << 20))})
    paged = [system for system in today.SYSTEMS if system.name.endswith("paged")]
    step = TrainedSteps(load_trace("gpt3-large"), Training(precision="bf16-mixed"))
    (row,) = compare(step, less, paged, lambda _: None)
    assert row.outcome
    assert row.outcome.peak_bytes["gpu"] <= less.memory("gpu").capacity_bytes.value
    assert row.outcome.step_ns > plain.step_ns


@pytest.mark.parametrize(
    ("name", "choices", "reason"),
    [
        ("gradient release", {"accumulate": 2}, "needs one micro-batch a step"),
        ("LoRA", {"trainable": "lora:4"}, "the step trains lora:4 already"),
        ("8-bit optimizer, paged", {"optimizer": "sgd"}, "an 8-bit optimizer for sgd"),
    ],
)
def test_what_has_no_meaning_is_said(name: str, choices: dict[str, Any], reason: str) -> None:
    row = rows("gpt-tiny", **choices)[name]
    assert row.outcome is None
    assert reason in row.reason
