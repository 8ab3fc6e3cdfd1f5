"""Figures of a trace, on one that is worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sw_driver.workload import Op, Tensor, Trace, TraceError, load_trace, peak_bytes
from sw_driver.workload.summary import alive_bytes, described, summary, trained_units
from sw_driver.workload.trace import Stage


def op(number: int, stage: int, phase: str, reads: dict[int, int], writes: dict[int, int]) -> Op:
    """Of 10 FLOP more than the one before it."""
    return Op(
        id=number,
        kind=f"kind{number}",
        layer=(0, 1, 1, 0)[stage],
        stage=stage,
        phase=phase,
        reads=tuple(reads),
        writes=tuple(writes),
        read_bytes=tuple(reads.values()),
        write_bytes=tuple(writes.values()),
        flops=10 * number,
    )


TRACE = Trace(
    name="by hand",
    layers=("first", "second"),
    stages=tuple(
        Stage(name=name, phase=phase)
        for name, phase in (
            ("first", "forward"),
            ("second", "forward"),
            ("second", "backward"),
            ("first", "backward"),
        )
    ),
    tensors=(
        Tensor(id=0, nbytes=100, kind="parameter"),
        Tensor(id=1, nbytes=200, kind="parameter", element_bytes=2),
        Tensor(id=2, nbytes=10, kind="input"),
        Tensor(id=3, nbytes=20, kind="activation", allocated=0, freed=3),
        Tensor(id=4, nbytes=4, kind="temporary", allocated=1, freed=2),
        Tensor(id=5, nbytes=200, kind="gradient", allocated=2, freed=6),
        Tensor(id=6, nbytes=20, kind="temporary", allocated=2, freed=4),
        Tensor(id=7, nbytes=100, kind="gradient", allocated=3, freed=6),
    ),
    ops=(
        op(0, 0, "forward", {0: 100, 2: 10}, {3: 20}),
        op(1, 1, "forward", {1: 200, 3: 20}, {4: 4}),
        op(2, 2, "backward", {1: 200, 3: 20}, {5: 200, 6: 20}),
        op(3, 3, "backward", {2: 10, 6: 20}, {7: 100}),
        op(4, 2, "update", {1: 200, 5: 200}, {1: 200}),
        op(5, 3, "update", {0: 100, 7: 100}, {0: 100}),
    ),
)


def test_bytes_are_there_from_allocation_to_free() -> None:
    kept = 100 + 200 + 10
    there = [20, 20 + 4, 20 + 200 + 20, 200 + 20 + 100, 200 + 100, 200 + 100, 0]
    assert alive_bytes(TRACE) == [kept + each for each in there]
    assert peak_bytes(TRACE) == kept + 320
    assert alive_bytes(TRACE, "temporary", "gradient") == [0, 4, 220, 320, 300, 300, 0]
    assert peak_bytes(TRACE, "optimizer_state") == 0


def test_the_summary_is_worked_by_hand() -> None:
    known = described(TRACE)
    assert (known["layers"], known["parameters"], known["steps"]) == (2, 25 + 100, 1)
    figures = summary(TRACE, lambda op: op.nbytes)
    assert figures["peak"] == {
        "operation": 3, "kind": "kind3", "layer": "first", "phase": "backward", "nbytes": 630,
    }  # fmt: skip
    assert figures["phases"] == [
        {"phase": "forward", "operations": 2, "flops": 10, "nbytes": 130 + 224},
        {"phase": "backward", "operations": 2, "flops": 20 + 30, "nbytes": 440 + 130},
        {"phase": "update", "operations": 2, "flops": 40 + 50, "nbytes": 600 + 300},
    ]
    assert [(each["stage"], each["phase"], each["flops"]) for each in figures["stages"]] == [
        ("first", "forward", 0),
        ("second", "forward", 10),
        ("second", "backward", 20 + 40),
        ("first", "backward", 30 + 50),
    ]
    kinds = {each.pop("kind"): tuple(each.values()) for each in figures["kinds"]}
    assert kinds["gradient"] == (2, 2 / 8, 300, 300 / 654, 300, 300)
    assert kinds["activation"] == (1, 1 / 8, 20, 20 / 654, 20, 0)
    assert kinds["temporary"] == (2, 2 / 8, 24, 24 / 654, 20, 20)
    # Tensor 4 is there in one stage, 6 in two, 3 in three; the gradients in their stage, that of
    # the other, and in both updates.
    lifetimes = {each["stages"]: (each["tensors"], each["nbytes"]) for each in figures["lifetimes"]}
    assert {name: each for name, each in lifetimes.items() if each[0]} == {
        "1": (1, 4), "2 to 4": (4, 340), "outlives the step": (3, 310),
    }  # fmt: skip
    assert figures["lifetimes"][1]["byte_share"] == 340 / 654
    costs = [(each["operation"], each["nbytes"]) for each in figures["expensive"]]
    assert costs == [(4, 600), (2, 440), (5, 300), (1, 224), (0, 130), (3, 130)]
    assert figures["expensive"][0]["share"] == 600 / 1824


def test_a_trace_of_nothing_is_refused() -> None:
    with pytest.raises(TraceError, match="nothing has no operation"):
        summary(Trace(name="nothing", tensors=(), ops=(), layers=(), stages=()), len)


def test_ten_operations_are_shown() -> None:
    trace = load_trace("gpt-tiny")
    shown = summary(trace, lambda op: op.flops)["expensive"]
    flops = [each["flops"] for each in shown]
    assert flops == sorted((op.flops for op in trace.ops), reverse=True)[:10]


def test_units_of_all_gpus() -> None:
    """Units are tokens where samples have them; GPUs of a tensor-parallel group share a batch."""
    assert trained_units(TRACE) == (1, "steps")
    assert trained_units(replace(TRACE, origin={"batch": 4})) == (4, "samples")
    assert trained_units(replace(TRACE, origin={"batch": 4, "seq": 9})) == (36, "tokens")
    parallel = {"accumulate": 3, "gpus": 8, "tensor_parallel": 2}
    origin = {"batch": 4, "context": 128, **parallel}
    assert trained_units(replace(TRACE, origin=origin)) == (4 * 128 * 3 * 4, "tokens")
