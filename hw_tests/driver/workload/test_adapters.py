"""Steps with frozen weights and adapters, against a model that has them and counts by hand."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sw_driver.workload import Trace, TraceError, load_trace, peak_bytes
from sw_driver.workload.adapters import frozen
from sw_driver.workload.optimizers import with_optimizer
from sw_driver.workload.precision import in_precision
from sw_driver.workload.summary import parameters_of

QKV = "layers.0.attention.query_key_value"


def captured(rank: int = 0, names: str = "qkv,dense,up,down", *, mixed: bool = False) -> Trace:
    """A transformer's block between an embedding and an output layer, with adapters or without.

    If it is ``mixed``, frozen parameters are in BF16, and autocast runs as on a GPU.
    """
    torch = pytest.importorskip(
        "torch", reason="PyTorch is not installed: pip install -e '.[torch]'"
    )
    from torch import nn
    from torch.nn import functional

    from sw_driver.workload.capture import capture
    from sw_driver.workload.models.gpt import dropout

    def wide(values: Any) -> Any:
        return values.float() if mixed else values

    class Adapted(nn.Module):
        def __init__(self, base: Any) -> None:
            super().__init__()
            self.base = base
            self.a = nn.Parameter(torch.zeros(rank, base.in_features))
            self.b = nn.Parameter(torch.zeros(base.out_features, rank))

        def forward(self, x: Any) -> Any:
            made = self.base(x)
            return made + functional.linear(functional.linear(x, self.a), self.b) * 2

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.norm = nn.Embedding(256, 64), nn.LayerNorm(64)
            self.qkv, self.dense = nn.Linear(64, 192), nn.Linear(64, 64, bias=False)
            self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)
            self.out = nn.Linear(64, 256, bias=False)

        def forward(self, tokens: Any) -> Any:
            x = dropout(self.table(tokens), 0.1)
            x = x + dropout(self.attend(self.normed(x)), 0.1)
            x = x + self.down(functional.gelu(self.up(self.normed(x))))
            return self.out(x)

        def normed(self, x: Any) -> Any:
            return functional.layer_norm(
                wide(x), [64], wide(self.norm.weight), wide(self.norm.bias)
            )

        def attend(self, x: Any) -> Any:
            q, k, v = self.qkv(x).chunk(3, -1)
            return self.dense(dropout(wide(q @ k.transpose(-1, -2) / 8).softmax(-1), 0.1) @ v)

    def build() -> Any:
        model = Transformer()
        if rank:
            model.requires_grad_(requires_grad=False)
            if mixed:
                model.bfloat16()
            for name in names.split(","):
                setattr(model, name, Adapted(getattr(model, name)))
        return model, (torch.zeros(4, 32, dtype=torch.int64),)

    def step(model: Any, tokens: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            return functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())

    return capture(build, step, name="transformer")


def work(trace: Trace) -> Counter[Any]:
    return Counter((op.kind, op.phase, op.flops) for op in trace.ops if op.phase != "update")


@pytest.mark.parametrize("names", ["qkv,dense,up,down", "qkv", "down", "up,out"])
def test_it_is_as_captured(names: str) -> None:
    truth, ours = captured(4, names), frozen(captured(), f"lora:4:{names}")
    assert work(ours) == work(truth)
    assert parameters_of(ours) == parameters_of(truth)
    updated = ([op.flops for op in each.ops if op.phase == "update"] for each in (ours, truth))
    assert Counter(next(updated)) == Counter(next(updated))
    for kind in ("parameter", "gradient", "optimizer_state", "activation"):
        assert peak_bytes(ours, kind) == peak_bytes(truth, kind), kind
    assert peak_bytes(ours) == pytest.approx(peak_bytes(truth), rel=0.005)
    moved = [sum(op.nbytes for op in each.ops if op.geometry) for each in (ours, truth)]
    assert moved[0] == moved[1]


def test_it_is_as_captured_with_autocast() -> None:
    truth, ours = captured(4, mixed=True), in_precision(frozen(captured(), "lora:4"), "bf16-mixed")
    shapes = [
        Counter(
            (op.phase, op.flops, op.dtype, frozenset(op.read_bytes), op.write_bytes)
            for op in each.ops
            if op.geometry
        )
        for each in (ours, truth)
    ]
    assert shapes[0] == shapes[1]
    for kind in ("parameter", "gradient", "optimizer_state", "activation"):
        assert peak_bytes(ours, kind) == peak_bytes(truth, kind), kind
    assert peak_bytes(ours) == pytest.approx(peak_bytes(truth), abs=2)  # the loss's gradient


def one_layer(trace: Trace) -> list[tuple[str, str, tuple[int, ...], tuple[int, ...]]]:
    """Products of a layer and what unpacks its weight."""
    kinds = ("mm", "addmm", "dequantize")
    return [
        (op.kind, op.phase, op.read_bytes, op.write_bytes)
        for op in trace.ops
        if trace.layers[op.layer] == QKV and op.kind in kinds and op.phase != "update"
    ]


@pytest.mark.parametrize(
    ("trainable", "bits", "packed"),
    [("lora:4", None, None), ("qlora:4", None, (1536, 48 + 4)), ("lora:4", 8, (3072, 4 * 96))],
)
def test_a_layer_by_hand(trainable: str, bits: int | None, packed: Any, tmp_path: Path) -> None:
    """32 tokens of 32, and 96 outputs; in 4 bits 48 blocks of 64 weights have a scale of a byte."""
    trace = load_trace("gpt-tiny")
    made = in_precision(frozen(trace, trainable, base_bits=bits), "bf16-mixed")
    unpack = [("dequantize", packed, (2 * 96 * 32,))] if packed else []
    x, h, y, a, b, w = (2 * n for n in (1024, 32 * 4, 32 * 96, 4 * 32, 96 * 4, 96 * 32))
    expected = [
        *((kind, "forward", *sizes) for kind, *sizes in unpack),
        ("addmm", "forward", (192, x, w), (y,)),
        ("mm", "forward", (x, a), (h,)), ("mm", "forward", (h, b), (y,)),
        ("mm", "backward", (y, h), (b,)), ("mm", "backward", (y, b), (h,)),
        ("mm", "backward", (h, x), (a,)),
    ]  # fmt: skip
    assert one_layer(made) == expected  # the first block's input needs no gradient
    weight = next(one for one in made.tensors if one.name == f"{QKV}.weight")
    assert weight.nbytes == (packed[0] if packed else w)
    assert parameters_of(made) - parameters_of(trace) == 2 * 4 * (32 * 2 + 160 * 2 + 96 + 32)
    made.save(tmp_path / "trace")
    assert load_trace(tmp_path / "trace") == made


def test_only_adapters_are_trained() -> None:
    trace = load_trace("bert-base")
    made = with_optimizer(in_precision(frozen(trace, "qlora:16"), "bf16-mixed"), "adamw8bit")
    own = [one for one in made.tensors if one.kind in ("gradient", "optimizer_state")]
    assert {one.name.split(".")[-2] for one in own} == {"lora_A", "lora_B"}
    updated = [made.tensors[op.reads[0]].name for op in made.ops if op.phase == "update"]
    assert len(updated) == len({*updated}) == 2 * len(linear := [n for n in updated if "_A" in n])
    assert "layers.0.mlp.dense_h_to_4h.lora_A.weight" in linear
    packed = [one for one in made.tensors if one.element_bytes == 0.5]
    scales = [one for one in made.tensors if one.name.endswith(".scales")]
    stored_bits = 8 * sum(one.nbytes for one in packed + scales)
    assert stored_bits / sum(one.elements for one in packed) == pytest.approx(4.127, abs=0.0005)
    for op in made.ops:
        if op.phase == "update":
            assert {made.tensors[one].name for one in op.reads + op.writes} == {
                made.tensors[op.reads[0]].name
            }
    unpacked = [op.phase for op in made.ops if op.kind == "dequantize"]
    # Twelve blocks of four layers and three others; the first block's input needs no gradient.
    assert Counter(unpacked) == {"forward": 12 * 4 + 3, "backward": 12 * 4 + 2}


@pytest.mark.parametrize("name", ["resnet-50", "lstm-ptb"])
def test_an_output_layer_gets_an_adapter_by_name(name: str) -> None:
    trace = load_trace(name)
    output = {"resnet-50": "20", "lstm-ptb": "logits"}[name]
    made = frozen(trace, f"lora:8:{output}")
    assert sum(op.phase == "update" for op in made.ops) == 2
    # No other layer has a gradient.
    assert {made.layers[op.layer] for op in made.ops if op.phase == "backward"} <= {
        output, "(model)",
    }  # fmt: skip
    with pytest.raises(TraceError, match=rf"no linear layer of {name} matches: .* {output}$"):
        frozen(trace, "lora:8")


def test_what_makes_no_sense_is_refused() -> None:
    trace = load_trace("gpt-tiny")
    assert frozen(trace, "all") is trace
    made = frozen(trace, "lora:4:qkv,query")
    assert made.origin["applied"] == ["trainable=lora:4:qkv,query"]
    packed = frozen(trace, "lora:4", base_bits=8)
    assert packed.origin["applied"] == ["trainable=lora:4, weights of 8 bits"]
    for step, trainable, bits, message in (
        (trace, "lora", None, "trainable is 'lora': expected one of all, lora:RANK"),
        (trace, "dora:4", None, "trainable is 'dora:4': expected one of all"),
        (trace, "lora:4:", None, "trainable is 'lora:4:': expected one of all"),
        (trace, "lora:4:qkv,", None, "trainable is 'lora:4:qkv,': expected one of all"),
        (trace, "lora:0", None, "rank is 0: expected an integer of 1 or more"),
        (trace, "lora:four", None, "rank is 'four': expected an integer"),
        (trace, "lora:4", 3, "base_bits is 3 with trainable 'lora:4': expected 4 or 8"),
        (trace, "all", 4, "base_bits is 4 with trainable 'all': expected 4 or 8 with frozen"),
        (trace, "lora:4:q_proj", None, "tiny matches: give parts of the names dense, dense_4h"),
        (load_trace("rnn-gru"), "lora:4", None, "layer of rnn-gru matches: train all of it"),
        (made, "lora:4", None, "has trainable=lora:4:qkv,query already"),
        (in_precision(trace, "bf16"), "lora:4", None, "precision=bf16 already: .* before any"),
    ):
        with pytest.raises(TraceError, match=message):
            frozen(step, trainable, base_bits=bits)
