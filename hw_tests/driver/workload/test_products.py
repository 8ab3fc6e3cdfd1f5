"""The work of captured products, against what the products of ones add up to."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[torch]'")

from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import flop_registry

from sw_driver.workload import Trace
from sw_driver.workload.capture import capture

PLAIN = {"add", "add_", "cat", "clone", "copy_", "div", "mul", "ones_like", "sum", "zeros",
         "zeros_like"}  # fmt: skip
"""What else runs here: operations for each element."""

conv2d, transposed = functional.conv2d, functional.conv_transpose2d
FACTORS: dict[str, tuple[Any, tuple[tuple[int, ...], ...]]] = {
    "conv1d, dilated": (lambda x, w: functional.conv1d(x, w, dilation=2), ((2, 4, 11), (6, 4, 3))),
    "conv2d": (lambda x, w: conv2d(x, w, stride=2), ((2, 4, 9, 7), (6, 4, 3, 2))),
    "conv2d, grouped": (lambda x, w: conv2d(x, w, groups=2), ((3, 4, 9, 7), (6, 2, 3, 2))),
    "conv2d, depthwise": (
        lambda x, w: conv2d(x, w, stride=(1, 2), groups=5), ((2, 5, 9, 7), (10, 1, 3, 3)),
    ),
    "conv2d, grouped, weights only": (
        lambda x, w: conv2d(x.detach(), w, groups=4), ((3, 4, 9, 7), (8, 1, 3, 2)),
    ),
    "conv2d, grouped, inputs only": (
        lambda x, w: conv2d(x, w.detach(), groups=4), ((3, 4, 9, 7), (8, 1, 3, 2)),
    ),
    "conv3d, grouped": (
        lambda x, w: functional.conv3d(x, w, groups=3), ((2, 6, 5, 4, 3), (3, 2, 2, 3, 2)),
    ),
    "transposed": (lambda x, w: transposed(x, w, stride=2), ((2, 4, 5, 3), (4, 6, 3, 2))),
    "transposed, grouped": (
        lambda x, w: transposed(x, w, stride=3, groups=2, dilation=2), ((2, 4, 5, 3), (4, 3, 3, 2)),
    ),
    "conv_tbc": (lambda x, w: torch.conv_tbc(x, w, torch.zeros(6)), ((7, 2, 4), (3, 4, 6))),
    "mm": (torch.mm, ((3, 4), (4, 5))),
    "addmm_": (lambda a, b: torch.zeros(3, 5).addmm_(a, b), ((3, 4), (4, 5))),
    "baddbmm": (lambda a, b: torch.baddbmm(torch.zeros(5), a, b), ((2, 3, 4), (2, 4, 5))),
    "addbmm": (lambda a, b: torch.addbmm(torch.zeros(3, 5), a, b), ((2, 3, 4), (2, 4, 5))),
    "bilinear": (lambda x, w, y: functional.bilinear(x, y, w), ((7, 3), (5, 3, 4), (7, 4))),
    "einsum": (lambda a, b: torch.einsum("bij,jhk->bhik", a, b), ((2, 3, 4), (4, 5, 6))),
    "multi_dot": (lambda a: torch.linalg.multi_dot([a, a]), ((4, 4),)),
    "mv": (lambda a, b: torch.mv(a.detach(), b), ((3, 4), (4,))),
    "addmv": (lambda a, b: torch.addmv(torch.zeros(3), a.detach(), b), ((3, 4), (4,))),
    "addr": (lambda a, b: torch.addr(torch.zeros(3, 4), a, b), ((3,), (4,))),
}  # fmt: skip


def flops(trace: Trace, phase: str) -> int:
    return sum(op.flops for op in trace.ops if op.phase == phase and op.kind not in PLAIN)


def of_factors(function: Any, *shapes: tuple[int, ...]) -> Trace:
    def build() -> tuple[nn.Module, tuple[Any, ...]]:
        return nn.ParameterList(torch.zeros(shape) for shape in shapes), ()

    return capture(build, lambda factors: function(*factors).sum(), name="test", rule="sgd")


@pytest.mark.parametrize("name", FACTORS)
def test_a_product_is_as_much_work_as_ones_add_up_to(name: str) -> None:
    """Of ones, each multiplication adds one to the results, forward and in the gradients."""
    function, shapes = FACTORS[name]
    factors = [torch.ones(shape, requires_grad=True) for shape in shapes]
    result = function(*factors).sum()
    result.backward()
    trace = of_factors(function, *shapes)
    gradients = sum(int(each.grad.sum()) for each in factors if each.grad is not None)
    assert flops(trace, "forward") == 2 * int(result)
    assert flops(trace, "backward") == 2 * gradients


@pytest.mark.parametrize("dot", [torch.dot, torch.vdot])
def test_a_dot_product_multiplies_and_adds(dot: Any) -> None:
    assert flops(of_factors(dot, (7,), (7,)), "forward") == 2 * 7


def test_operations_on_lists_are_something_for_each_element() -> None:
    trace = of_factors(lambda a, b: torch.cat(torch._foreach_mul([a, b], 2.0)), (7,), (12,))
    (op,) = (op for op in trace.ops if op.kind == "_foreach_mul")
    assert op.flops == 7 + 12


@pytest.mark.parametrize("weighted", [False, True])
def test_bags_add_up_rows_of_a_table(weighted: bool) -> None:
    def step(table: nn.Module, rows: Any, weights: Any) -> Any:
        return table(rows, per_sample_weights=weights.requires_grad_() if weighted else None).sum()

    def build() -> tuple[nn.Module, tuple[Any, ...]]:
        rows = torch.zeros((5, 3), dtype=torch.int64)
        return nn.EmbeddingBag(1000, 4, mode="sum"), (rows, torch.zeros(5, 3))

    trace = capture(build, step, name="test", rule="sgd")
    work = [op for op in trace.ops if op.kind.startswith("_embedding_bag")]
    elements = 5 * 3 * 4
    assert work[0].flops == elements * (2 if weighted else 1)
    table, *others = work[0].reads
    assert trace.tensors[table].nbytes == 1000 * 4 * 4
    whole = sum(trace.tensors[each].nbytes for each in (*others, *work[0].writes))
    assert work[0].nbytes == 4 * elements + whole
    if weighted:
        assert work[1].flops == 2 * elements


@pytest.mark.parametrize(("points", "each"), [(5, 3 * 4), (40, 2 * (4 + 2))])
def test_distances_are_counted_by_pairs(points: int, each: int) -> None:
    """Of few points one by one, of many as a product, with the points' norms beside them."""
    trace = of_factors(torch.cdist, (points, 4), (points + 1, 4))
    (op,) = (op for op in trace.ops if op.kind in ("_cdist_forward", "_euclidean_dist"))
    assert op.flops == points * (points + 1) * each


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (torch.linalg.inv, "aten::linalg_inv_ex"),
        (lambda a: torch.linalg.qr(a)[0], "aten::linalg_qr"),
        (lambda a: torch.fft.rfft(a).real, "aten::_fft_r2c"),
        (functional.pdist, "aten::_pdist_forward"),
    ],
)
def test_work_that_is_not_known_is_refused(function: Any, kind: str) -> None:
    with pytest.raises(ValueError, match=rf"operation {kind} of layer '\(model\)' has an unknown"):
        of_factors(function, (4, 4))


def test_work_of_custom_operations_is_what_their_formula_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with torch.library._scoped_library("nearmem_test", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "Meta")
        twice = torch.ops.nearmem_test.twice
        with pytest.raises(ValueError, match="operation nearmem_test::twice of layer"):
            of_factors(lambda a: a.sum() + twice(a.detach()), (4,))
        monkeypatch.setitem(flop_registry, twice, lambda *_, out_val: 77)
        trace = of_factors(lambda a: a.sum() + twice(a.detach()), (4,))
        assert [op.flops for op in trace.ops if op.kind == "twice"] == [77]
