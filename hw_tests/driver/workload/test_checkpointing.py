"""Activation checkpointing of modules, as PyTorch does it and on shipped steps."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from sw_driver.workload import GptConfig, Trace, TraceError, load_trace, peak_bytes
from sw_driver.workload.recomputation import checkpointed, recomputed
from sw_driver.workload.stages import blocks_of

CONFIG = GptConfig(n_layers=6, d_model=64, n_heads=4, batch=2, context=32, vocabulary=96)


def again_under(policy: str) -> Any:
    """Return a function that runs a module under PyTorch's checkpoint."""
    import torch
    from torch.utils.checkpoint import (
        CheckpointPolicy,
        checkpoint,
        create_selective_checkpoint_contexts,
    )

    aten = torch.ops.aten

    def contexts() -> Any:
        counts = [0, 0]

        def choose(ctx: Any, func: Any, *_: Any, **__: Any) -> Any:
            linear = func in (aten.mm.default, aten.addmm.default)
            counts[ctx.is_recompute] += linear
            fused = func == aten._scaled_dot_product_flash_attention_for_cpu.default
            keep = fused or (linear and counts[ctx.is_recompute] % 2)
            return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

        return create_selective_checkpoint_contexts(choose)

    more = {"context_fn": contexts} if policy == "selective" else {}
    return lambda run, *values: checkpoint(run, *values, use_reentrant=False, **more)


def captured(policy: str) -> Trace:
    """Capture a GPT, with attention of one operation, under PyTorch's own checkpoints."""
    from torch import nn
    from torch.nn.functional import scaled_dot_product_attention

    from sw_driver.workload.capture import capture
    from sw_driver.workload.models.gpt import Gpt, gpt_loss, gpt_with_batch

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query_key_value, self.dense = nn.Linear(64, 192), nn.Linear(64, 64)

        def forward(self, values: Any, _: Any) -> Any:
            parts = self.query_key_value(values).unflatten(2, (3, 4, 16)).permute(2, 1, 3, 0, 4)
            out = scaled_dot_product_attention(*parts, is_causal=True)
            return self.dense(out.permute(2, 0, 1, 3).reshape(values.shape))

    def build() -> Any:
        model, batch = Gpt(CONFIG), gpt_with_batch(CONFIG)[1]
        for layer in model.layers:
            layer.attention = Attention()
            part = layer.mlp if policy == "selective:mlp" else layer
            if policy != "none":
                part.forward = partial(again_under(policy), part.forward)
        return model, batch

    return capture(build, gpt_loss, name="gpt")


@pytest.mark.parametrize("policy", ["full", "selective", "selective:mlp"])
def test_a_gpt_is_as_under_the_checkpoints_of_pytorch(policy: str) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[torch]'")
    plain, truth = captured("none"), captured(policy)
    ours = checkpointed(plain, policy)
    assert products(ours) == products(truth) != products(plain)
    assert sorted(each.kind for each in ours.ops) == sorted(each.kind for each in truth.ops)
    for kinds in ((), ("activation", "temporary")):
        assert peak_bytes(ours, *kinds) == pytest.approx(peak_bytes(truth, *kinds), rel=0.05)
        assert peak_bytes(ours, *kinds) < peak_bytes(plain, *kinds)


@pytest.mark.parametrize("policy", ["full", "selective"])
def test_a_kept_result_that_nothing_needs_stays_as_under_pytorch(policy: str) -> None:
    """The seventh linear layer of a block is kept, and the backward pass does not read it."""
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[torch]'")
    from .llama import captured_llama

    plain, truth = captured_llama(), captured_llama(again_under(policy))
    ours = checkpointed(plain, policy)
    assert products(ours) == products(truth) != products(plain)
    kinds = ("activation", "temporary")
    assert peak_bytes(ours, *kinds) == pytest.approx(peak_bytes(truth, *kinds), rel=0.01)


def test_blocks_are_numbered_modules_with_others_inside() -> None:
    layers = {f"layers.{number}" for number in range(12)}
    assert blocks_of(load_trace("bert-base")) == layers  # and not its head.0
    assert blocks_of(load_trace("lstm-ptb")) == set()


def products(trace: Trace) -> list[Any]:
    # PyTorch repeats a module one product earlier if that needs the module's weight first.
    return sorted((each.kind, each.phase, each.flops) for each in trace.ops if each.geometry)


def product_flops(trace: Trace) -> int:
    return sum(each.flops for each in trace.ops if each.geometry)


@pytest.mark.parametrize("policy", ["full", "selective", "selective:mlp"])
@pytest.mark.parametrize("name", ["gpt-tiny", "bert-base"])
def test_a_policy_repeats_products_and_saves_bytes(name: str, policy: str) -> None:
    trace = load_trace(name)
    ours = checkpointed(trace, policy)
    again = sum(
        ours.ops[each].flops for each in ours.origin["recomputed"] if ours.ops[each].geometry
    )
    assert product_flops(ours) == product_flops(trace) + again
    assert peak_bytes(ours) < peak_bytes(trace)
    assert ours.origin["applied"] == [f"checkpoint={policy}"]


def test_full_is_the_division_into_blocks() -> None:
    trace = load_trace("bert-base")
    ours, papers = checkpointed(trace, "full"), recomputed(trace)
    assert peak_bytes(ours) == peak_bytes(papers)
    selective = checkpointed(trace, "selective")
    assert peak_bytes(ours) < peak_bytes(selective) < peak_bytes(trace)
    assert len(selective.origin["recomputed"]) == len(ours.origin["recomputed"]) - 2 * 12


def test_none_changes_nothing() -> None:
    trace = load_trace("gpt-tiny")
    assert checkpointed(trace, "none") is trace


@pytest.mark.parametrize(
    ("name", "policy", "message"),
    [
        ("gpt-tiny", "most", r"checkpoint is 'most': expected one of none, full, selective, "),
        ("gpt-tiny", "selective:", r"checkpoint is 'selective:': expected one of"),
        ("gpt-tiny", "full:mlp", r"checkpoint is 'full:mlp': expected one of"),
        ("gpt-tiny", "selective:moe", r"no such module with activations inside, among embedding"),
        ("lstm-ptb", "full", r"no such module with activations inside, among words"),
    ],
)
def test_another_policy_is_refused(name: str, policy: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        checkpointed(load_trace(name), policy)


def test_a_checkpointed_step_is_refused() -> None:
    with pytest.raises(TraceError, match=r"gpt-tiny has checkpointing already"):
        checkpointed(recomputed(load_trace("gpt-tiny")), "full")
