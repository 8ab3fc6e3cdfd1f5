"""Stages of captured steps: the layers of a network, there and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[torch]'")

from torch import nn
from torch.utils.checkpoint import checkpoint

from sw_driver.workload import Trace
from sw_driver.workload.capture import OUTSIDE, capture


class Steps(nn.Module):
    """One layer and one activation, used again and again: twice in each of ``parts``."""

    def __init__(self, parts: int, run: Callable[..., Any]) -> None:
        super().__init__()
        self.cell, self.act = nn.Linear(4, 4), nn.Tanh()
        self.parts, self.run = parts, run

    def twice(self, values: Any) -> Any:
        return self.act(self.cell(self.act(self.cell(values))))

    def forward(self, values: Any) -> Any:
        for _ in range(self.parts):
            values = self.run(self.twice, values)
        return values


def captured(model: Callable[[], nn.Module], step: Any = None) -> Trace:
    step = step or (lambda model, batch: model(batch).sum())
    return capture(lambda: (model(), (torch.zeros(8, 4),)), step, name="test", rule="sgd")


def kinds(trace: Trace) -> list[list[str]]:
    """What runs in each stage."""
    return [[op.kind for op in trace.ops if op.stage == each] for each in range(len(trace.stages))]


def test_an_activation_that_all_layers_share_belongs_to_each() -> None:
    def model() -> nn.Module:
        relu = nn.ReLU()
        return nn.Sequential(
            relu, nn.Linear(4, 4, bias=False), relu, nn.LayerNorm(4), nn.Linear(4, 2), relu
        )

    trace = captured(model)
    assert [each.name for each in trace.stages] == ["1", "4", "4", "1"]
    assert kinds(trace) == [
        ["relu", "mm", "relu", "native_layer_norm"],
        ["addmm", "relu", "sum"],
        ["ones_like", "threshold_backward", "mm", "mm", "sum", "sgd", "sgd"],
        ["native_layer_norm_backward", "threshold_backward", "mm", "sgd", "sgd", "sgd"],
    ]


def recompute(function: Any, values: Any) -> Any:
    return checkpoint(function, values, use_reentrant=False)


@pytest.mark.parametrize("run", [lambda function, values: function(values), recompute])
def test_a_time_step_is_a_layer_and_recomputes_in_its_own(run: Any) -> None:
    trace = captured(lambda: Steps(3, run))
    again = ["addmm", "tanh"] if run is recompute else []
    assert [each.name for each in trace.stages] == ["cell"] * 12
    found = kinds(trace)
    assert found[:6] == 5 * [["addmm", "tanh"]] + [["addmm", "tanh", "sum"]]
    backward = ["tanh_backward", "mm", "mm", "sum"]
    sums = ["add", "add"]
    assert found[6:] == [
        ["ones_like", *again, *backward],
        *4 * [[*again, *backward, *sums]],
        [*again, "tanh_backward", "mm", "sum", *sums, "sgd", "sgd"],
    ]


def test_a_module_begins_its_layer_with_what_it_does_to_its_weights() -> None:
    def step(model: Any, batch: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(batch).float().sum()

    def model() -> nn.Module:
        normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4, bias=False))
        return nn.Sequential(nn.Linear(4, 4, bias=False), normed)

    trace = captured(model, step)
    assert [each.name for each in trace.stages] == ["0", "1", "1", "0"]
    assert kinds(trace) == [
        ["_to_copy", "_to_copy", "mm"],  # batch and weights
        ["_weight_norm_interface", "_to_copy", "mm", "_to_copy", "sum"],
        ["ones_like", "_to_copy", "mm", "mm", "_to_copy", "_weight_norm_interface_backward", "sgd",
         "sgd"],
        ["mm", "_to_copy", "sgd"],
    ]  # fmt: skip


def test_weights_without_a_module_make_one_layer_each_time() -> None:
    def model() -> nn.Module:
        return nn.ParameterList(torch.zeros(4, 4) for _ in range(2))

    def step(weights: Any, batch: Any) -> Any:
        for _ in range(3):
            batch = batch @ weights[0] @ weights[1]
        return batch.sum()

    trace = captured(model, step)
    assert [each.name for each in trace.stages] == [OUTSIDE] * 6
    assert kinds(trace)[:3] == [["mm", "mm"], ["mm", "mm"], ["mm", "mm", "sum"]]


def test_weights_of_several_products_in_one_parameter_are_one_layer() -> None:
    """Attention to other tokens takes queries, keys and values from parts of a parameter."""

    def step(model: Any, batch: Any) -> Any:
        return model(batch, batch[:5], batch[:5])[0].sum()

    trace = captured(lambda: nn.MultiheadAttention(4, 2), step)
    assert [each.name for each in trace.stages] == [OUTSIDE] * 2
    products = [op.kind for op in trace.ops if op.geometry and op.phase == "forward"]
    assert products == ["addmm", "addmm", "addmm", "bmm", "bmm", "addmm"]


def test_parts_of_a_batch_have_their_own_stages() -> None:
    def step(model: Any, batch: Any) -> Any:
        first, second = batch.chunk(2)
        model(first).sum().backward()
        return model(second).sum()

    trace = captured(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), step)
    assert [each.name for each in trace.stages] == ["0", "1", "0", "1", "1", "0", "1", "0"]
    order = [op.stage for op in trace.ops if op.kind in ("addmm", "mm")]
    assert [*dict.fromkeys(order)] == [0, 1, 6, 7, 2, 3, 4, 5]
    assert {op.stage for op in trace.ops if op.phase == "update"} == {6, 7}


def test_a_network_without_layers_is_one() -> None:
    trace = captured(lambda: nn.BatchNorm1d(4))
    assert [(each.name, each.phase) for each in trace.stages] == [
        (OUTSIDE, "forward"), (OUTSIDE, "backward"),
    ]  # fmt: skip
    assert [op.stage for op in trace.ops] == [int(op.phase != "forward") for op in trace.ops]


def test_a_frozen_layer_has_an_empty_stage() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4))

    assert kinds(captured(model))[1:] == [
        ["addmm", "sum"],
        ["ones_like", "mm", "sum", "sgd", "sgd"],
        [],
    ]
