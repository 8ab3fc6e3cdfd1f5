"""Loss in chunks of tokens, against a loop over chunks and counts by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sw_driver.workload import Trace, TraceError, load_trace, peak_bytes
from sw_driver.workload.adapters import frozen
from sw_driver.workload.fusion import compiled
from sw_driver.workload.loss import chunked_loss, fused_loss
from sw_driver.workload.optimizers import with_optimizer
from sw_driver.workload.precision import in_precision
from sw_driver.workload.recomputation import recomputed

SHIPPED = ["gpt-tiny", "bert-base", "resnet-50", "lstm-ptb"]


def work(trace: Trace) -> Counter[str]:
    counts = Counter[str]()
    for op in trace.ops:
        counts[op.kind] += op.flops
    return counts


def captured(chunks: int) -> Trace:
    """A network of 16 inputs and 512 outputs, whose loss is computed in chunks by hand."""
    torch = pytest.importorskip(
        "torch", reason="PyTorch is not installed: pip install -e '.[torch]'"
    )
    from torch import nn
    from torch.nn import functional

    from sw_driver.workload.capture import capture

    def build() -> Any:
        layers = {"body": nn.Linear(16, 16, bias=False), "out": nn.Linear(16, 512, bias=False)}
        return nn.ModuleDict(layers), (torch.zeros(512, 16), torch.zeros(512, dtype=torch.int64))

    def step(model: Any, values: Any, labels: Any) -> Any:
        hidden = model["body"](values).tanh()
        if chunks == 1:
            return functional.cross_entropy(model["out"](hidden), labels)
        weight = model["out"].weight
        weight.grad, of_hidden = torch.zeros_like(weight), torch.empty_like(hidden)
        parts = zip(hidden.detach().chunk(chunks), labels.chunk(chunks), strict=True)
        for place, (rows, own) in enumerate(parts):
            loss = functional.cross_entropy(model["out"](rows.requires_grad_()), own)
            of_weight, of_rows = torch.autograd.grad(loss, (weight, rows))
            weight.grad += of_weight
            of_hidden.chunk(chunks)[place].copy_(of_rows)
        hidden.backward(of_hidden)
        return None

    return capture(build, step, name="net")


@pytest.mark.parametrize("chunks", [2, 4, 8])
def test_it_is_as_a_loop_over_chunks(chunks: int) -> None:
    truth, ours = captured(chunks), chunked_loss(captured(1), chunks)
    products = [
        Counter((op.kind, op.flops, op.geometry) for op in each.ops if op.geometry)
        for each in (truth, ours)
    ]
    assert products[0] == products[1]
    # The loop adds up the weight's gradient in a tensor of its own.
    extra_bytes = 2 * 4 * 16 * 512
    assert 0 <= peak_bytes(truth) - peak_bytes(ours) < extra_bytes
    logits_bytes = 4 * 512 * 512 // chunks
    assert peak_bytes(ours, "temporary") == pytest.approx(3 * logits_bytes, rel=0.25)


@pytest.mark.parametrize("name", SHIPPED)
def test_work_stays_and_logits_shrink(name: str, tmp_path: Path) -> None:
    trace = in_precision(load_trace(name), "bf16-mixed")
    made = chunked_loss(trace, 4)
    assert work(made) == work(trace)
    assert sum(op.phase == "update" for op in made.ops) == sum(
        op.phase == "update" for op in trace.ops
    )
    phases = [op.phase for op in made.ops]
    assert phases == sorted(phases, key=("forward", "backward", "update").index)
    assert made.origin["applied"] == ["precision=bf16-mixed", "loss_chunks=4"]
    made.save(tmp_path / "trace")
    assert load_trace(tmp_path / "trace") == made


def test_a_chunk_by_hand() -> None:
    """8 chunks of 128 tokens with 30522 logits each, in BERT's language model."""
    trace = in_precision(load_trace("bert-base"), "bf16-mixed")
    made = chunked_loss(trace, 8)
    logits, weight, rows = 128 * 30522, 30522 * 768, 128 * 768
    place = made.layers.index("logits")
    products = [op for op in made.ops if op.layer == place and op.geometry]
    assert len(products) == 8 * 3
    forward, of_rows, of_weight = products[-3:]
    bias = 2 * 30522
    assert forward.read_bytes == (bias, 2 * rows, 2 * weight)
    assert (of_rows.read_bytes, of_rows.write_bytes) == ((2 * logits, 2 * weight), (2 * rows,))
    assert of_weight.read_bytes == (2 * logits, 2 * rows, 2 * weight)  # adds to the others
    assert products[2].read_bytes == (2 * logits, 2 * rows)
    assert {op.flops for op in products} == {2 * logits * 768}
    alive = [one.nbytes for one in made.tensors if one.nbytes >= 2 * 1024 * 30522]
    assert max(alive) == 4 * weight  # no tensor has all logits
    # The logits of a chunk, in FP32 their logarithms and two gradients, instead of all.
    saved = peak_bytes(trace) - peak_bytes(made)
    assert saved > 0.5 * (3 * 4 * 7 * logits)


def test_it_composes() -> None:
    trace = in_precision(frozen(load_trace("bert-base"), "qlora:8"), "bf16-mixed")
    made = chunked_loss(trace, 4)
    last = with_optimizer(recomputed(made), "adamw8bit")
    assert last.origin["applied"][-1] == "optimizer=adamw8bit"
    assert peak_bytes(last) < peak_bytes(made) < peak_bytes(trace)
    again = [last.ops[number].kind for number in last.origin["recomputed"]]
    assert Counter(again)["dequantize"] > 40
    assert sum(op.flops for op in made.ops) == sum(op.flops for op in trace.ops)


def test_what_makes_no_sense_is_refused() -> None:
    trace = load_trace("gpt-tiny")
    assert chunked_loss(trace, 1) is trace
    made = chunked_loss(trace, 2)
    empty = replace(trace, ops=(), tensors=())
    output = frozen(load_trace("lstm-ptb"), "lora:8:logits")
    for step, chunks, message in (
        (trace, 5, "chunks is 5: expected a divisor of the 32 tokens of gpt-tiny"),
        (trace, 0, "chunks is 0: expected an integer of 1 or more"),
        (made, 2, "gpt-tiny has loss_chunks=2 already: loss_chunks is applied at most once"),
        (recomputed(trace), 2, "has checkpointing already: .* after trainable and precision"),
        (output, 2, "the loss of lstm-ptb needs more than a chunk's logits in add"),
        (load_trace("dcgan"), 2, "the loss of dcgan needs more than a chunk's logits"),
        (empty, 2, "chunks is 2, but gpt-tiny has no output layer: expected a linear layer"),
    ):
        with pytest.raises(TraceError, match=message):
            chunked_loss(step, chunks)
    for step, message in (
        (made, "has loss_chunks=2 already: fused_loss is applied after trainable and precision"),
        (load_trace("dcgan"), "fused_loss is yes, but dcgan has no cross entropy"),
        (empty, "fused_loss is yes, but gpt-tiny has no cross entropy of an output layer"),
    ):
        with pytest.raises(TraceError, match=message):
            fused_loss(step)


@pytest.mark.parametrize(
    ("precision", "before", "width"),
    [
        ("fp32", 4 + 4 + 4, 4),
        ("bf16-mixed", 4 + 4 + 4, 2),
        ("fp16-mixed", 4 + 4 + 2, 2),
        ("bf16", 4 + 4 + 4, 2),
        ("fp8-mixed", 4 + 4 + 4, 2),
    ],
)
def test_a_fused_loss_keeps_logits_and_a_sum(precision: str, before: int, width: int) -> None:
    """BERT's 1024 tokens have 30522 logits each; a bias of the output layer sums their gradient."""
    trace = in_precision(load_trace("bert-base"), precision)
    made = fused_loss(trace)
    logits, rows = 1024 * 30522, 4 * 1024
    forward, backward = (op for op in made.ops if op.kind == "cross_entropy")
    assert [op.phase for op in (forward, backward)] == ["forward", "backward"]
    assert forward.read_bytes[0] == backward.read_bytes[0] == width * logits
    assert backward.write_bytes == (width * logits,)
    assert rows in forward.write_bytes
    assert rows in backward.read_bytes
    assert sum(op.flops for op in made.ops) == sum(op.flops for op in trace.ops)
    assert most_bytes(trace, logits) == before * logits
    assert most_bytes(made, logits) == 2 * width * logits
    assert [op.kind for op in compiled(made).ops].count("cross_entropy") == 2


def most_bytes(trace: Trace, elements: int) -> int:
    """Return the bytes of tensors of a size that exist at a time."""
    alive = [one for one in trace.tensors if one.elements == elements]
    return max(
        sum(one.nbytes for one in alive if one.allocated <= op.id < (one.freed or 0))
        for op in trace.ops
    )
