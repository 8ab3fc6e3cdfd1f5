"""Gradient accumulation, by hand and on shipped steps."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from sw_driver.workload import (
    GptConfig,
    Op,
    Stage,
    Tensor,
    Trace,
    TraceError,
    load_trace,
    peak_bytes,
)
from sw_driver.workload.accumulation import MOST_OPS, accumulated
from sw_driver.workload.recomputation import checkpointed
from sw_driver.workload.sharding import sharded


def op(number: int, kind: str, phase: str, reads: list[int], writes: list[int]) -> Op:
    return Op(
        id=number, kind=kind, layer=0, phase=phase, stage=int(phase != "forward"),
        reads=tuple(reads), writes=tuple(writes), read_bytes=(8,) * len(reads),
        write_bytes=(8,) * len(writes), flops=2,
    )  # fmt: skip


def by_hand() -> Trace:
    """A parameter 0, the batch 1, an activation 2, and a gradient 3 that the update reads."""
    kinds = ["parameter", "input", "activation", "gradient"]
    lives = [(0, None), (0, None), (0, 2), (1, 3)]
    return Trace(
        name="by hand",
        tensors=tuple(
            Tensor(
                id=number, nbytes=8, kind=kind, allocated=begin, freed=end,
                parameter=0 if kind == "gradient" else None,
            )
            for number, (kind, (begin, end)) in enumerate(zip(kinds, lives, strict=True))
        ),
        ops=(
            op(0, "mul", "forward", [0, 1], [2]), op(1, "mul", "backward", [1, 2], [3]),
            op(2, "sgd", "update", [0, 3], [0]),
        ),
        layers=("a",),
        stages=(Stage(name="a", phase="forward"), Stage(name="a", phase="backward")),
    )  # fmt: skip


def test_later_gradients_are_added_to_the_first() -> None:
    trace = accumulated(by_hand(), 3)
    shown = [(each.kind, each.phase, each.reads, each.writes) for each in trace.ops]
    assert shown == [
        ("mul", "forward", (0, 1), (2,)), ("mul", "backward", (1, 2), (3,)),
        ("mul", "forward", (0, 1), (4,)), ("mul", "backward", (1, 4), (5,)),
        ("add_", "backward", (3, 5), (3,)),
        ("mul", "forward", (0, 1), (6,)), ("mul", "backward", (1, 6), (7,)),
        ("add_", "backward", (3, 7), (3,)),
        ("sgd", "update", (0, 3), (0,)),
    ]  # fmt: skip
    assert (trace.ops[4].nbytes, trace.ops[4].flops) == (24, 2)
    lives = [(each.kind, each.allocated, each.freed) for each in trace.tensors[2:]]
    assert lives == [
        ("activation", 0, 2), ("gradient", 1, 9), ("activation", 2, 4), ("temporary", 3, 5),
        ("activation", 5, 7), ("temporary", 6, 8),
    ]  # fmt: skip
    assert trace.origin == {"accumulate": 3, "applied": ["accumulate=3"]}


@pytest.mark.parametrize("name", ["gpt-tiny", "bert-base", "resnet-50", "lstm-ptb"])
def test_micro_batches_multiply_work_and_share_memory(name: str) -> None:
    trace = load_trace(name)
    ours = accumulated(trace, 3)
    gradients = {each.id: each.nbytes for each in trace.tensors if each.kind == "gradient"}
    plain = [each for each in trace.ops if each.phase != "update"]
    added = [each for each in ours.ops if each.kind == "add_" and each.reads[0] in gradients]
    added = [each for each in added if each.writes[0] in gradients]
    assert sum(each.nbytes for each in added) == 2 * 3 * sum(gradients.values())
    assert len(ours.ops) == len(trace.ops) + 2 * (len(plain) + len(gradients))
    work, once = (sum(each.flops for each in some.ops if each.geometry) for some in (ours, trace))
    assert work == 3 * once
    assert peak_bytes(ours, "activation") == peak_bytes(trace, "activation")
    assert peak_bytes(ours, "gradient") == sum(gradients.values())
    assert {ours.tensors[each].freed for each in gradients} == {len(ours.ops)}
    most = peak_bytes(trace) + sum(gradients.values())
    assert peak_bytes(trace) <= peak_bytes(ours) <= most
    assert peak_bytes(accumulated(trace, 2)) == peak_bytes(ours)


def test_a_gpt_is_as_pytorch_accumulates_it() -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[torch]'")
    from sw_driver.workload.capture import capture
    from sw_driver.workload.models.gpt import gpt_loss, gpt_with_batch

    config = GptConfig(n_layers=2, d_model=32, n_heads=2, batch=2, context=16, vocabulary=128)

    def captured(steps: int) -> Trace:
        def step(*given: Any) -> None:
            for _ in range(steps):
                loss = gpt_loss(*given)
                loss.backward()
                del loss

        return capture(lambda: gpt_with_batch(config), step, name="gpt")

    def counts(step: Trace) -> Counter[Any]:
        return Counter((each.kind, each.phase, each.flops, each.nbytes) for each in step.ops)

    ours, truth = accumulated(captured(1), 3), captured(3)
    assert counts(ours) == counts(truth)
    for kinds in ((), ("activation", "temporary"), ("gradient",)):
        assert peak_bytes(ours, *kinds) == peak_bytes(truth, *kinds)


def test_repeated_operations_are_listed_for_every_micro_batch() -> None:
    trace = checkpointed(load_trace("gpt-tiny"), "full")
    ours = accumulated(trace, 2)
    kinds = [trace.ops[each].kind for each in trace.origin["recomputed"]]
    assert [ours.ops[each].kind for each in ours.origin["recomputed"]] == 2 * kinds


@pytest.mark.parametrize(
    ("scheme", "times"), [("ddp", 1), ("zero1", 1), ("zero2", 3), ("zero3", 3)]
)
def test_shared_gradients_are_reduced_after_every_micro_batch(scheme: str, times: int) -> None:
    trace = sharded(load_trace("bert-base"), scheme, 4)
    ours = accumulated(trace, 3)

    def reductions(step: Trace) -> list[str]:
        return [each.kind for each in step.ops if "reduce" in each.kind]

    assert reductions(ours) == times * reductions(trace) != []
    gathers = [sum(each.kind == "all_gather" for each in step.ops) for step in (ours, trace)]
    assert gathers[0] == (3 if scheme == "zero3" else 1) * gathers[1]


def test_one_micro_batch_is_the_step() -> None:
    trace = by_hand()
    assert accumulated(trace, 1) is trace


def test_what_cannot_be_accumulated_is_refused() -> None:
    with pytest.raises(TraceError, match=r"accumulate is 0: expected an integer of 1 or more"):
        accumulated(by_hand(), 0)
    with pytest.raises(TraceError, match=rf"makes 200,001 operations .* expected {MOST_OPS:,} at"):
        accumulated(by_hand(), 100_000)
    trace = by_hand()
    early = replace(
        trace,
        ops=(*trace.ops, op(3, "mul", "backward", [1], [4])),
        tensors=(*trace.tensors, Tensor(id=4, nbytes=8, kind="temporary", allocated=3, freed=4)),
    )
    with pytest.raises(TraceError, match=r"by hand updates parameters in its backward pass"):
        accumulated(early, 2)
