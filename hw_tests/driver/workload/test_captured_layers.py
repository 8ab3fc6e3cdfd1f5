"""Layers of captured networks: of any element size, and what fits none is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[torch]'")

from torch import nn
from torch.nn import functional

from sw_driver.workload import Trace, TraceError, load_trace
from sw_driver.workload.capture import capture
from sw_driver.workload.layers import layers_of

BATCH = 8


def captured(
    model: Callable[[], nn.Module],
    *shape: int,
    step: Callable[..., Any] = lambda model, batch: model(batch).sum(),
    batch: Any = BATCH,
    dtype: Any = torch.float32,
) -> Trace:
    def build() -> tuple[nn.Module, tuple[Any, ...]]:
        return model().to(dtype), (torch.zeros(shape, dtype=dtype),)

    return capture(build, step, name="test", origin={} if batch is None else {"batch": batch})


class Own(nn.Module):
    """Modules and parameters by their names."""

    def __init__(self, **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            made = nn.Parameter(torch.zeros(part)) if isinstance(part, tuple) else part
            setattr(self, name, made)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_element_sizes_make_no_difference(dtype: Any, tmp_path: Path) -> None:
    def model() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, bias=False), nn.Tanh(), nn.Flatten(), nn.Linear(8 * 16, 10)
        )

    trace = captured(model, BATCH, 3, 6, 6, dtype=dtype)
    expected = layers_of(captured(model, BATCH, 3, 6, 6))
    assert layers_of(trace) == expected
    sizes = [(each.rows, each.columns, each.depth, each.inputs) for each in expected]
    assert sizes == [(16, 8, 27, 3 * 36), (1, 10, 128, 128)]
    trace.save(tmp_path / "trace.json.gz")
    assert load_trace(tmp_path / "trace.json.gz") == trace


@pytest.mark.parametrize(
    ("model", "shape", "step", "expected"),
    [
        (lambda: nn.Conv1d(4, 6, 3, dilation=2), (BATCH, 4, 9), None, (5, 6, 12, 36)),
        (lambda: nn.Conv3d(2, 5, 2, bias=False), (BATCH, 2, 3, 3, 3), None, (8, 5, 16, 54)),
        (lambda: nn.Conv2d(8, 8, 3, groups=8), (BATCH, 8, 5, 5), None, (9, 8, 9, 200)),
        (lambda: nn.ConvTranspose2d(4, 6, 2, stride=2), (BATCH, 4, 3, 3), None, (9, 24, 4, 36)),
        (lambda: nn.Linear(1, 7), (BATCH, 1), None, (1, 7, 1, 1)),
        (
            lambda: Own(w=(4, 2, 5)), (BATCH, 3, 4),
            lambda model, x: torch.einsum("bij,jhk->bhik", x, model.w).sum(), (3, 10, 4, 12),
        ),
        (lambda: Own(w=(3, 4)), (BATCH, 4), lambda model, x: (model.w @ x.T).sum(), (1, 3, 4, 4)),
        (
            lambda: Own(w=(3, 4, 5), b=(3, 1, 5)), (3, BATCH, 4),
            lambda model, x: torch.baddbmm(model.b, x, model.w).sum(), (1, 15, 4, 12),
        ),
        (
            lambda: Own(table=nn.Embedding(9, 4).requires_grad_(False), a=nn.Linear(4, 5)),
            (BATCH, 3), lambda model, x: model.a(model.table(x.long())).sum(), (3, 5, 4, 12),
        ),
    ],
)  # fmt: skip
def test_products_with_weights_are_layers(
    model: Any, shape: tuple[int, ...], step: Any, expected: tuple[int, ...]
) -> None:
    more = {} if step is None else {"step": step}
    (layer,) = layers_of(captured(model, *shape, **more))
    assert (layer.rows, layer.columns, layer.depth, layer.inputs) == expected
    assert layer.first


def test_weights_that_layers_share_are_one() -> None:
    def tied() -> nn.Module:
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        model[2].weight = model[0].weight
        return nn.Sequential(model, model)

    layers = layers_of(captured(tied, BATCH, 4))
    assert len({each.weights for each in layers}) == 1
    assert [(each.first, each.needs) for each in layers] == [
        (True, ()), (False, (0,)), (False, (1,)), (False, (2,)),
    ]  # fmt: skip


def test_a_loss_in_a_module_has_its_backward_pass_counted() -> None:
    def model() -> nn.Module:
        return Own(a=nn.Linear(4, 4), loss=nn.MSELoss())

    def step(model: Any, batch: Any) -> Any:
        return model.loss(model.a(batch), batch)

    (layer,) = layers_of(captured(model, BATCH, 4, step=step))
    assert layer.between_backward > 0


def looks_up(model: Any, batch: Any) -> Any:
    return model.a(model.table(batch.long())).sum()


def passes_twice(model: Any, batch: Any) -> Any:
    model(batch[: BATCH // 2]).sum().backward()
    return model(batch[BATCH // 2 :]).sum()


def autocasts(model: Any, batch: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model(batch).float().sum()


def codes(model: Any, batch: Any) -> Any:
    values = model.a(batch)
    return (values + model.table(values.argmax(1))).sum()


def attends(model: Any, batch: Any) -> Any:
    return functional.scaled_dot_product_attention(*model(batch).chunk(3, 3)).sum()


NO_PRODUCT = f"it does not multiply {BATCH} samples with weights"


@pytest.mark.parametrize(
    ("model", "shape", "step", "said"),
    [
        (
            lambda: Own(table=nn.Embedding(9, 4), a=nn.Linear(4, 4)), (BATCH, 3), looks_up,
            r"1 \(embedding of 'table'\) fits no layer: the gradient of its 'table.weight' would",
        ),
        (
            lambda: Own(table=nn.EmbeddingBag(9, 4), a=nn.Linear(4, 4)), (BATCH, 3), looks_up,
            r"\(_embedding_bag of 'table'\) fits no layer: the gradient of its 'table.weight'",
        ),
        (
            lambda: Own(a=nn.Linear(4, 9), table=nn.Embedding(9, 9)), (BATCH, 4), codes,
            r"\(embedding of 'table'\) fits no layer: the gradient of its 'table.weight'",
        ),
        (
            lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4)), (BATCH, 4), None,
            r"\(native_batch_norm of '0'\) fits no layer: the gradient of its '0.weight'",
        ),
        (lambda: nn.Linear(4, 4), (BATCH, 4), autocasts, r"\(_to_copy of '\(model\)'\) fits no"),
        (
            lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), (BATCH, 4), None,
            r"\(_weight_norm_interface of .*\) fits no layer: the gradient of",
        ),
        (
            lambda: nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4)),
            (BATCH, 4), None, r"\(addmm of '0'\) fits no layer: its weights are not updated",
        ),
        (
            lambda: Own(a=nn.Bilinear(4, 4, 3)), (BATCH, 4), lambda model, x: model.a(x, x).sum(),
            rf"\(_trilinear of 'a'\) fits no layer: {NO_PRODUCT}",
        ),
        (
            lambda: Own(w=(3, 4, 5)), (3, BATCH, 4),
            lambda model, x: torch.addbmm(torch.zeros(BATCH, 5), x, model.w).sum(),
            rf"\(addbmm of '\(model\)'\) fits no layer: {NO_PRODUCT}",
        ),
        (lambda: Own(w=(4,)), (4,), lambda model, x: x @ model.w, rf"\(dot of .*: {NO_PRODUCT}"),
        (lambda: nn.Linear(4, 12), (BATCH, 1, 3, 4), attends, rf"attention.*: {NO_PRODUCT}"),
        (
            lambda: Own(w=(4, 4), a=(4, 2), b=(2, 4)), (BATCH, 4),
            lambda model, x: (x @ (model.w + model.a @ model.b)).sum(), rf"0 \(mm .*{NO_PRODUCT}",
        ),
        (
            lambda: Own(a=nn.Linear(4, 32), bias=(8,)), (BATCH, 4),
            lambda model, x: torch.addmm(model.bias, x, model.a(x)[0].view(4, 8)).sum(),
            rf"1 \(addmm of '\(model\)'\) fits no layer: {NO_PRODUCT}",
        ),
        (
            lambda: Own(w=(4, 12)), (3 * BATCH, 4), lambda model, x: (x @ model.w[:, :4]).sum(),
            rf"\(mm of .*: {NO_PRODUCT}",
        ),
        (
            lambda: Own(w=(4, 12)), (BATCH, 4), lambda model, x: (x @ model.w[:, :1]).sum(),
            rf"\(mm of .*: {NO_PRODUCT}",
        ),
        (lambda: Own(w=(0, 4)), (BATCH, 0), lambda model, x: (x @ model.w).sum(), "not multiply"),
        (
            lambda: nn.ConvTranspose2d(4, 8, 3, stride=2), (BATCH, 4, 6, 6), None,
            rf"\(convolution of .*: {NO_PRODUCT}",
        ),
        (
            lambda: nn.Conv2d(4, 8, 1), (BATCH, 4, 4, 4), passes_twice,
            r"\(convolution of '\(model\)'\) fits no layer: it belongs to a second forward pass",
        ),
        (lambda: nn.BatchNorm1d(4), (BATCH, 4), None, "no operation of the forward pass is a prod"),
    ],
)  # fmt: skip
def test_what_fits_no_layer_is_named(
    model: Any, shape: tuple[int, ...], step: Any, said: str
) -> None:
    trace = captured(model, *shape, **({} if step is None else {"step": step}))
    with pytest.raises(TraceError, match=said):
        layers_of(trace)


def test_a_batch_that_is_none_is_refused() -> None:
    trace = captured(lambda: nn.Linear(4, 4), BATCH, 4, batch="8")
    with pytest.raises(TraceError, match="test: the batch of its origin is '8': expected an integ"):
        layers_of(trace)


def test_without_a_batch_it_is_the_fewest_samples() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4), nn.Flatten(), nn.Linear(12, 5))

    layers = layers_of(captured(model, BATCH, 3, 4, batch=None))
    assert [each.rows for each in layers] == [3, 1]
