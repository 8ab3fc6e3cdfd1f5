"""Choices of a training run: alone and together, on shipped steps."""

from __future__ import annotations

import doctest
from collections import Counter
from typing import Any

import pytest

from sw_driver.device.errors import InvalidArgumentError
from sw_driver.workload import Trace, TraceError, load_trace, peak_bytes, training
from sw_driver.workload.collectives import COLLECTIVES
from sw_driver.workload.summary import parameters_of
from sw_driver.workload.training import Training

NAMES = ["gpt-tiny", "bert-base", "resnet-50", "lstm-ptb"]
CHOICES: list[dict[str, Any]] = [
    {"accumulate": 2},
    {"compiled": True},
    *({"shard": scheme, "gpus": 4} for scheme in ("ddp", "zero1", "zero2", "zero3")),
    {"precision": "bf16-mixed", "optimizer": "adam8bit", "compiled": True},
    {"shard": "zero3", "gpus": 8, "accumulate": 2, "compiled": True},
]
OF_BLOCKS: list[dict[str, Any]] = [
    {"checkpoint": "full"},
    {"checkpoint": "selective", "compiled": True},
    {"tensor_parallel": 2, "gpus": 2},
    {"tensor_parallel": 2, "gpus": 8, "shard": "zero2", "checkpoint": "full", "accumulate": 2},
    {
        "precision": "bf16", "checkpoint": "full", "optimizer": "adam", "in_backward": True,
        "tensor_parallel": 2, "compiled": True, "shard": "zero3", "gpus": 8,
    },
    {"precision": "bf16-mixed", "loss_chunks": 4, "checkpoint": "full", "accumulate": 2},
    {"precision": "bf16-mixed", "fused_loss": True, "loss_chunks": 4, "compiled": True},
]  # fmt: skip
"""Choices that need blocks of modules."""


def products(trace: Trace) -> int:
    """Return the work of products, without those that are repeated."""
    again = {*trace.origin.get("recomputed", ())}
    return sum(each.flops for each in trace.ops if each.geometry and each.id not in again)


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        *((name, choices) for name in NAMES for choices in CHOICES),
        *((name, choices) for name in ("gpt-tiny", "bert-base") for choices in OF_BLOCKS),
        ("resnet-50", OF_BLOCKS[0]),
    ],
)
def test_a_training_updates_every_parameter_once_and_multiplies_as_much(
    name: str, choices: dict[str, Any]
) -> None:
    trace = load_trace(name)
    ours = Training(**choices).apply(trace)
    updated = Counter(
        one
        for op in ours.ops
        if op.phase == "update" and op.kind not in COLLECTIVES
        for one in op.writes
        if ours.tensors[one].kind == "parameter"
    )
    trained = {
        one.name for one in trace.tensors if one.id in {each.parameter for each in trace.tensors}
    }
    assert {ours.tensors[one].name for one in updated} == trained
    assert {*updated.values()} == {1}
    once = products(trace) * choices.get("accumulate", 1)
    if choices.get("tensor_parallel", 1) == 1:
        assert products(ours) == once
    else:
        assert once / 2 < products(ours) < once
    if choices.keys().isdisjoint(("accumulate", "optimizer")):
        assert peak_bytes(ours) < 1.01 * peak_bytes(trace)
    texts = {text.partition("=")[0]: text.partition("=")[2] for text in ours.origin["applied"]}
    assert list(texts) == [each for each in Training.__dataclass_fields__ if each in texts]
    assert texts.keys() == choices.keys() - {"gpus", "in_backward"}
    assert ours.origin.get("gpus", 1) == choices.get("gpus", 1)


def test_adapters_are_trained_alone() -> None:
    trace = load_trace("bert-base")
    ours = Training(trainable="lora:4", precision="bf16-mixed", checkpoint="full").apply(trace)
    updated = {
        ours.tensors[one].name for op in ours.ops if op.phase == "update" for one in op.writes
    }
    assert updated
    assert all("lora_" in name for name in updated)
    assert peak_bytes(ours) < peak_bytes(trace) / 2


def test_without_a_choice_the_step_is_the_captured() -> None:
    trace = load_trace("gpt-tiny")
    assert Training().apply(trace) is trace
    assert Training(precision="fp32").apply(trace) is trace


def test_several_gpus_share_all_unless_another_scheme_is_given() -> None:
    assert [Training(gpus=n, tensor_parallel=2).scheme for n in (2, 4)] == ["none", "zero3"]
    trace = load_trace("gpt-tiny")
    ours = Training(gpus=8).apply(trace)
    assert ours == Training(gpus=8, shard="zero3").apply(trace)
    assert parameters_of(ours) == parameters_of(trace)


def test_the_example_runs() -> None:
    assert doctest.testmod(training) == (0, 3)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"precision": "fp4"}, r"precision is 'fp4': .*expected one of fp32, tf32"),
        ({"checkpoint": "full:mlp"}, r"checkpoint is 'full:mlp': expected one of none, full"),
        ({"trainable": "some"}, r"trainable is 'some': expected one of all, lora:RANK"),
        ({"optimizer": "magic"}, r"optimizer is 'magic': expected one of"),
        ({"shard": "zero4", "gpus": 2}, r"shard is 'zero4': .*expected one of none, ddp"),
        ({"accumulate": 0}, r"accumulate is 0: expected an integer of 1 or more"),
        ({"loss_chunks": True}, r"loss_chunks is True: expected an integer"),
        (
            {"gpus": 2, "shard": "none"},
            r"shard is 'none' with 2 GPUs .*: expected shard as one of ddp, .*, or gpus of 1",
        ),
        (
            {"shard": "zero3", "gpus": 2, "tensor_parallel": 2},
            r"shard is 'zero3' with 2 GPUs and tensor_parallel 2: expected gpus of 4 or more",
        ),
        ({"gpus": 3, "tensor_parallel": 2}, r"gpus is 3, .*: expected a multiple of 2"),
        (
            {"in_backward": True, "optimizer": "adam", "accumulate": 2},
            r"in_backward with accumulate 2: .* take accumulate 1, or leave out in_backward",
        ),
        ({"in_backward": True}, r"in_backward without an optimizer: expected one of"),
    ],
)
def test_what_does_not_fit_together_is_refused(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        Training(**choices)


def test_a_choice_is_applied_once() -> None:
    choices = Training(shard="ddp", gpus=2)
    with pytest.raises(TraceError, match=r"has shard=ddp already: shard is applied at most once"):
        choices.apply(choices.apply(load_trace("gpt-tiny")))
