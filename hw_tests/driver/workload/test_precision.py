"""Steps in other formats, against captures in them and counts by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sw_driver.workload import Trace, TraceError, load_trace, peak_bytes
from sw_driver.workload.precision import PRECISIONS, in_precision
from sw_driver.workload.summary import parameters_of

SHIPPED = ["gpt-tiny", "bert-base", "resnet-50", "lstm-ptb"]


def products(trace: Trace) -> list[Any]:
    return [
        (op.kind, op.phase, op.geometry, op.flops, op.dtype, op.read_bytes, op.write_bytes)
        for op in trace.ops
        if op.geometry
    ]


def captured(run: str, model: str = "transformer") -> Trace:
    """A small model in FP32, under autocast, or cast as a whole.

    On a CPU autocast leaves layer norms and softmax in 16 bits; ``float`` casts as on a GPU.
    """
    torch = pytest.importorskip(
        "torch", reason="PyTorch is not installed: pip install -e '.[torch]'"
    )
    from torch import nn
    from torch.nn import functional

    from sw_driver.workload.capture import capture
    from sw_driver.workload.models.gpt import dropout

    def wide(values: Any) -> Any:
        return values.float() if run == "mixed" else values

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.norm = nn.Embedding(256, 64), nn.LayerNorm(64)
            self.out = nn.Linear(64, 256)
            self.qkv, self.dense = nn.Linear(64, 192), nn.Linear(64, 64, bias=False)
            self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

        def forward(self, tokens: Any) -> Any:
            x = self.table(tokens)
            q, k, v = self.qkv(self.norm(wide(x))).chunk(3, -1)
            scores = torch.softmax(wide(q @ k.transpose(-1, -2) / 8), -1)
            x = x + dropout(self.dense(dropout(scores, 0.1) @ v), 0.1)
            x = x + self.down(functional.gelu(self.up(self.norm(wide(x)))))
            return self.out(x)

    class Mlp(nn.Sequential):
        def __init__(self) -> None:
            one, other = nn.Linear(64, 64), nn.Linear(64, 64)
            other.weight = one.weight
            super().__init__(one, nn.ReLU(), other, nn.ReLU(), nn.Linear(64, 256))

        def forward(self, tokens: Any) -> Any:
            return super().forward(functional.one_hot(tokens, 64).to(self[0].weight.dtype))

    class Cnn(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(
                nn.Conv2d(1, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True),
                nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.ReLU(),
                nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                nn.Linear(32, 256),
            )  # fmt: skip

        def forward(self, tokens: Any) -> Any:
            images = functional.one_hot(tokens, 256).to(self[0].weight.dtype)
            return super().forward(images.view(-1, 1, 16, 16)).view(4, 32, 256)

    def build() -> Any:
        made = {"transformer": Transformer, "mlp": Mlp, "cnn": Cnn}[model]()
        return made.bfloat16() if run == "pure" else made, (torch.zeros(4, 32, dtype=torch.int64),)

    def step(made: Any, tokens: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=run == "mixed"):
            logits = made(tokens).flatten(0, 1)
            if run == "pure":  # as the codes of Llama do
                logits = logits.float()
            return functional.cross_entropy(logits, tokens.flatten())

    return capture(build, step, name=model)


def cast_parameters(trace: Trace) -> list[str]:
    read = [trace.tensors[op.reads[0]] for op in trace.ops if op.kind == "_to_copy"]
    return sorted(one.name for one in read if one.kind == "parameter")


def moved(trace: Trace) -> int:
    return sum(op.nbytes for op in trace.ops)


@pytest.mark.parametrize("model", ["transformer", "mlp", "cnn"])
@pytest.mark.parametrize(("run", "precision"), [("mixed", "bf16-mixed"), ("pure", "bf16")])
def test_it_is_as_captured(model: str, run: str, precision: str) -> None:
    """On a CPU PyTorch keeps the statistics of some norms in BF16, unlike on a GPU."""
    truth, ours = captured(run, model), in_precision(captured("plain", model), precision)
    assert products(ours) == products(truth)
    assert parameters_of(ours) == parameters_of(truth)
    for kind in ("parameter", "gradient"):
        assert peak_bytes(ours, kind) == peak_bytes(truth, kind)
    for kinds in (["activation"], []):
        statistics_bytes = 1024 if (model, run) != ("transformer", "mixed") else 2
        kept = peak_bytes(truth, *kinds)
        assert peak_bytes(ours, *kinds) == pytest.approx(kept, abs=statistics_bytes)
    assert cast_parameters(ours) == cast_parameters(truth)
    assert moved(ours) == pytest.approx(moved(truth), rel=0.05)  # casts of integers differ


def test_pure_formats_keep_the_inside_of_rms_norm_wide() -> None:
    """The forward pass is that of PyTorch, whose ``rms_norm`` casts to FP32."""
    torch = pytest.importorskip("torch")

    def of(dtype: Any) -> Trace:
        def build() -> Any:
            layers = [torch.nn.Linear(64, 64, bias=False), torch.nn.RMSNorm(64)]
            model = torch.nn.Sequential(*layers, torch.nn.Linear(64, 64, bias=False)).to(dtype)
            return model, (torch.zeros(32, 64, dtype=dtype),)

        from sw_driver.workload.capture import capture

        return capture(build, lambda model, values: model(values).sum(), name="norm")

    def forward(trace: Trace) -> list[Any]:
        ops = [op for op in trace.ops if op.phase == "forward"]
        return [(op.kind, op.dtype, op.read_bytes, op.write_bytes) for op in ops]

    truth, (_, *ours) = (
        forward(of(torch.bfloat16)),
        forward(in_precision(of(torch.float32), "bf16")),
    )
    assert ours == truth  # but for the cast of the captured input


@pytest.mark.parametrize("name", SHIPPED)
def test_products_and_updates_stay(name: str, tmp_path: Path) -> None:
    trace = load_trace(name)
    work = [(op.kind, op.flops, op.geometry) for op in trace.ops if op.geometry]
    for precision in PRECISIONS:
        made = in_precision(trace, precision)
        assert [(op.kind, op.flops, op.geometry) for op in made.ops if op.geometry] == work
        updated = [op.reads[0] for op in made.ops if op.phase == "update"]
        assert updated == [op.reads[0] for op in trace.ops if op.phase == "update"]
        assert parameters_of(made) == parameters_of(trace)
        made.save(tmp_path / "trace")
        assert load_trace(tmp_path / "trace") == made
    states = sum(one.nbytes for one in trace.tensors if one.kind == "optimizer_state")
    pure = in_precision(trace, "bf16")
    assert 2 * sum(one.nbytes for one in pure.tensors if one.kind == "optimizer_state") == states


@pytest.mark.parametrize(
    ("precision", "forward", "backward"),
    # addmm reads bias, tokens and weight; mm reads the gradient and the weight, or the tokens.
    [("tf32", (4, 4, 4, 4), (4, 4)), ("bf16-mixed", (2, 2, 2, 2), (2, 2)),
     ("bf16", (2, 2, 2, 2), (2, 2)), ("fp8-mixed", (2, 1, 1, 2), (1, 2))],
)  # fmt: skip
def test_a_layer_by_hand(
    precision: str, forward: tuple[int, ...], backward: tuple[int, ...]
) -> None:
    made = in_precision(load_trace("bert-base"), precision)
    tokens, width = 8 * 128, 768
    place = next(n for n, name in enumerate(made.layers) if name.endswith("0.mlp.dense_h_to_4h"))
    one, other, third, *_ = (op for op in made.ops if op.layer == place and op.geometry)
    bias, rows, weight = 4 * width, tokens * width, width * 4 * width
    elements = (bias, rows, weight, 4 * rows)
    assert one.read_bytes + one.write_bytes == tuple(map(int.__mul__, elements, forward))
    for product, read, written in ((other, weight, rows), (third, rows, weight)):
        width_bytes, result_bytes = backward
        assert product.read_bytes == (4 * rows * width_bytes, read * width_bytes)
        assert product.write_bytes == (written * result_bytes,)
    assert one.dtype == {"tf32": "tf32", "fp8-mixed": "fp8"}.get(precision, "bf16")
    casts = [op for op in made.ops if op.layer == place and op.kind == "_to_copy"]
    cast_bytes = sum(op.nbytes for op in casts if weight * 4 in op.read_bytes)
    assert cast_bytes == (0 if precision in ("tf32", "bf16") else weight * (4 + forward[2]))


@pytest.mark.parametrize("precision", ["bf16", "bf16-mixed"])
def test_statistics_of_norms_stay_wide(precision: str) -> None:
    for name, kind in (("resnet-50", "native_batch_norm"), ("bert-base", "native_layer_norm")):
        made = in_precision(load_trace(name), precision)
        for op in made.ops:
            if op.kind == kind:
                *_, mean, deviation = (made.tensors[one] for one in op.writes)
                assert {mean.element_bytes, deviation.element_bytes} == {4}


def test_what_is_no_step_in_fp32_is_refused() -> None:
    trace = load_trace("gpt-tiny")
    mixed = in_precision(trace, "bf16-mixed")
    assert mixed.origin["applied"] == ["precision=bf16-mixed"]
    unmarked = replace(mixed, origin=trace.origin)
    for step, name, message in (
        (trace, "bf16-mxied", "precision is 'bf16-mxied': did you mean bf16-mixed"),
        (mixed, "bf16", "gpt-tiny has precision=bf16-mixed already: precision is applied at most"),
        (unmarked, "bf16", "gpt-tiny is captured in bf16 already: capture it in FP32"),
        (trace.unrolled(2), "bf16", "gpt-tiny has 2 steps: expected one"),
        (replace(trace, origin={"recomputed": []}), "tf32", "has checkpointing already: .* after"),
    ):
        with pytest.raises(TraceError, match=message):
            in_precision(step, name)


@pytest.mark.parametrize(("precision", "direct"), [("fp16-mixed", True), ("bf16-mixed", False)])
def test_softmax_reads_fp16_without_a_copy(precision: str, direct: bool) -> None:
    """PyTorch's log_softmax on a GPU converts FP16 inside, and BF16 by an operation of its own."""
    trace = load_trace("gpt-tiny")
    made = in_precision(trace, precision)
    logits = 4 * 2 * 16 * 128
    forward, backward = (op for op in made.ops if op.kind.startswith("_log_softmax"))
    read, written = forward.read_bytes[0], backward.write_bytes[0]
    assert (read, written) == ((logits // 2,) * 2 if direct else (logits,) * 2)
    assert forward.write_bytes[0] == logits
    near = {*forward.reads, *backward.writes}
    casts = [op for op in made.ops if op.kind == "_to_copy" and near & {*op.reads, *op.writes}]
    assert len(casts) == (0 if direct else 2)
