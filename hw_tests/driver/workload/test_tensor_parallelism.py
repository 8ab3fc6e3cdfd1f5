"""Tensor parallelism: shares of products and bytes, and the all-reduces of a block."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from sw_driver.workload import Trace, TraceError, load_trace, peak_bytes
from sw_driver.workload.adapters import frozen
from sw_driver.workload.recomputation import checkpointed
from sw_driver.workload.sharding import sharded
from sw_driver.workload.summary import parameters_of
from sw_driver.workload.tensor_parallelism import tensor_parallel


def inside(trace: Trace, *, blocks: bool) -> int:
    """Return the additions and multiplications of products, in blocks or outside."""
    return sum(
        each.flops
        for each in trace.ops
        if each.geometry and trace.layers[each.layer].startswith("layers.") == blocks
    )


@pytest.mark.parametrize(("name", "width"), [("gpt-tiny", 2), ("bert-base", 4)])
def test_a_share_has_its_part_of_every_block(name: str, width: int) -> None:
    trace = load_trace(name)
    ours = tensor_parallel(trace, width)
    assert inside(ours, blocks=True) * width == inside(trace, blocks=True)
    assert inside(ours, blocks=False) == inside(trace, blocks=False)
    layers = trace.origin["n_layers"]
    reduced = Counter(each.phase for each in ours.ops if each.kind == "all_reduce")
    assert reduced == {"forward": 2 * layers, "backward": 2 * layers}
    rows = trace.origin["batch"] * trace.origin.get("context", 128)
    sizes = {each.read_bytes for each in ours.ops if each.kind == "all_reduce"}
    assert sizes == {(4 * rows * trace.origin["d_model"],)}
    assert ours.origin["tensor_parallel"] == ours.origin["gpus"] == width
    for kind in ("parameter", "gradient", "optimizer_state", "activation"):
        assert peak_bytes(trace, kind) / width < peak_bytes(ours, kind) < peak_bytes(trace, kind)


def test_the_layers_take_turns() -> None:
    trace = load_trace("gpt-tiny")
    ours = tensor_parallel(trace, 2)
    shares = {
        one.name.removeprefix("layers.1."): one.nbytes / other.nbytes
        for one, other in zip(ours.tensors, trace.tensors, strict=True)
        if one.kind == "parameter" and one.name.startswith("layers.1.")
    }
    halves = {
        "attention.query_key_value.weight", "attention.query_key_value.bias",
        "attention.dense.weight", "mlp.dense_h_to_4h.weight", "mlp.dense_h_to_4h.bias",
        "mlp.dense_4h_to_h.weight",
    }  # fmt: skip
    assert {name for name, share in shares.items() if share == 1 / 2} == halves
    assert {share for name, share in shares.items() if name not in halves} == {1}
    wide = trace.origin["d_model"]
    saved = 2 * 6 * wide**2 + 2 * (3 + 4) * wide // 2
    assert parameters_of(trace) - parameters_of(ours) == saved
    for one in ours.tensors:
        if one.parameter is not None:
            assert one.nbytes == ours.tensors[one.parameter].nbytes


def test_shapes_multiply_to_the_work() -> None:
    trace = tensor_parallel(load_trace("gpt-tiny"), 2)
    for each in trace.ops:
        if each.geometry is not None:
            (*_, rows, depth), (*_, columns) = each.geometry.operands[-2:]
            batch = each.geometry.result[0] if "bmm" in each.kind else 1
            assert each.flops == 2 * batch * rows * depth * columns
            assert each.geometry.result[-2:] == (rows, columns)


def test_repeated_layers_are_reduced_again() -> None:
    trace = checkpointed(load_trace("gpt-tiny"), "full")
    ours = tensor_parallel(trace, 2)
    reduced = [each for each in ours.ops if each.kind == "all_reduce"]
    assert Counter(each.phase for each in reduced) == {"forward": 4, "backward": 8}
    assert inside(ours, blocks=True) * 2 == inside(trace, blocks=True)
    assert len(ours.origin["recomputed"]) == len(trace.origin["recomputed"]) + 4


def test_attention_of_other_products_is_split_too() -> None:
    trace = load_trace("transformer-xl-0.7b")
    ours = tensor_parallel(trace, 2)
    assert inside(ours, blocks=True) * 2 == inside(trace, blocks=True)
    reduced = Counter(each.phase for each in ours.ops if each.kind == "all_reduce")
    assert reduced == {"forward": 22, "backward": 22}


def test_partial_sums_are_added_before_they_are_reduced() -> None:
    """The gradients of a block's three projections, and of its gate and the layer beside it."""
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[torch]'")
    from .llama import LAYERS, captured_llama

    trace = captured_llama()
    ours = tensor_parallel(trace, 2)
    reduced = Counter(each.phase for each in ours.ops if each.kind == "all_reduce")
    assert reduced == {"forward": 2 * LAYERS, "backward": 2 * LAYERS}
    assert inside(ours, blocks=True) * 2 == inside(trace, blocks=True)
    fused = [each.geometry for each in ours.ops if "scaled_dot_product" in each.kind]
    shapes = {shape for each in fused if each for shape in (*each.operands, each.result)}
    assert shapes == {(2, 2, 16, 8), (2, 2, 16)}  # samples and heads first; sums of rows, too
    whole = {
        one.name.rpartition(".")[0].rpartition(".")[2]
        for one, other in zip(ours.tensors, trace.tensors, strict=True)
        if one.kind == "parameter" and one.nbytes == other.nbytes
    }
    assert whole == {"words", "norm", "other_norm", "query_norm", "output"}


def test_a_block_that_ends_between_two_layers_is_refused() -> None:
    torch = pytest.importorskip(
        "torch", reason="PyTorch is not installed: pip install -e '.[torch]'"
    )
    from torch import nn

    from sw_driver.workload.capture import capture

    def build() -> Any:
        blocks = (nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2))
        return nn.Sequential(*blocks), (torch.zeros(4, 8),)

    trace = capture(build, lambda model, values: model(values).sum(), name="tower")
    with pytest.raises(TraceError, match=r"addmm of layer '1.0', reads a tensor that another"):
        tensor_parallel(trace, 2)


def test_both_kinds_of_parallelism_multiply_the_gpus() -> None:
    trace = sharded(tensor_parallel(load_trace("gpt-tiny"), 2), "zero3", 4)
    assert trace.origin["gpus"] == 8
    assert trace.origin["applied"] == ["tensor_parallel=2", "shard=zero3"]


def test_one_gpu_and_refusals() -> None:
    trace = load_trace("gpt-tiny")
    assert tensor_parallel(trace, 1) is trace
    with pytest.raises(TraceError, match=r"is 4, but gpt-tiny has 2 heads \(n_heads\): expected a"):
        tensor_parallel(trace, 4)
    unknown = replace(trace, origin={})
    with pytest.raises(TraceError, match=r"is 8, which does not divide 4 \(g of \(4, 16, 16\)\)"):
        tensor_parallel(unknown, 8)
    with pytest.raises(TraceError, match=r"resnet-50 has no linear layer in a numbered block"):
        tensor_parallel(load_trace("resnet-50"), 2)
    with pytest.raises(TraceError, match=r"tensor_parallel is 0: expected an integer of 1 or more"):
        tensor_parallel(trace, 0)


@pytest.mark.parametrize("trainable", ["lora:4", "qlora:4"])
def test_adapters_are_split_on_the_side_of_their_layer(trainable: str) -> None:
    """Two layers of a GPT with 32 tokens: a and b of columns are whole and split, of rows split
    and whole. Blocks have 4 linear layers; the first block's input needs no gradient."""
    trace = frozen(load_trace("gpt-tiny"), trainable)
    ours = tensor_parallel(trace, 2)
    columns, rows = ("query_key_value", "dense_h_to_4h"), ("attention.dense", "dense_4h_to_h")
    split = (*(f"{end}.lora_B" for end in columns), *(f"{end}.lora_A" for end in rows))
    parts = dict.fromkeys((one.name for one in trace.tensors if "lora" in one.name), 0)
    for one in trace.tensors:
        parts[one.name] = parts.get(one.name, 0) + one.nbytes
    for one in ours.tensors:
        parts[one.name] -= one.nbytes
    for name, saved in parts.items():
        if "lora" in name:
            whole = sum(one.nbytes for one in trace.tensors if one.name == name)
            assert saved == (whole / 2 if any(end in name for end in split) else 0)
    weights = [one for one in trace.tensors if one.name.endswith(("dense.weight", ".scales"))]
    assert all(2 * (one.nbytes - parts[one.name]) == one.nbytes for one in weights)
    reduced = Counter((op.phase, op.read_bytes) for op in ours.ops if op.kind == "all_reduce")
    narrow, wide = (4 * 32 * 4,), (4 * 32 * 32,)
    assert reduced == {
        ("forward", narrow): 4, ("forward", wide): 4,
        ("backward", narrow): 4, ("backward", wide): 3,
    }  # fmt: skip
