"""Training steps captured from models of PyTorch."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[torch]'")

from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim.optimizer import _global_optimizer_pre_hooks
from torch.utils.checkpoint import checkpoint

from hw.rules import RULES
from sw_driver.workload import GPTS, Geometry, Trace, load_trace
from sw_driver.workload.capture import OUTSIDE, capture, capture_shipped, main
from sw_driver.workload.models.gpt import gpt_loss, gpt_with_batch
from sw_driver.workload.trace import SHIPPED

ROWS, INPUTS, OUTPUTS = 5, 3, 7


def captured(
    model: Callable[[], nn.Module],
    *shape: int,
    step: Callable[..., Any] = lambda model, batch: model(batch).sum(),
    rule: str = "adam",
) -> Trace:
    """A step of a model with one batch of this shape."""
    return capture(lambda: (model(), (torch.zeros(shape),)), step, name="test", rule=rule)


def ops_of(trace: Trace, phase: str) -> list[tuple[str, str]]:
    """Kinds and layers."""
    return [(op.kind, trace.layers[op.layer]) for op in trace.ops if op.phase == phase]


def tensors(trace: Trace, kind: str) -> list[tuple[str, int]]:
    """Names and sizes."""
    return [(each.name, each.nbytes) for each in trace.tensors if each.kind == kind]


# What is captured.


def test_a_linear_layer_is_counted_as_by_hand() -> None:
    def step(model: nn.Module, batch: Any) -> Any:
        return model(batch.requires_grad_()).sum()

    trace = captured(lambda: nn.Linear(INPUTS, OUTPUTS), ROWS, INPUTS, step=step)
    weight, batch, result = 4 * INPUTS * OUTPUTS, 4 * ROWS * INPUTS, 4 * ROWS * OUTPUTS
    products = [op for op in trace.ops if op.kind in ("addmm", "mm")]
    assert [(op.phase, op.flops) for op in products] == [
        ("forward", 2 * ROWS * INPUTS * OUTPUTS),
        ("backward", 2 * ROWS * INPUTS * OUTPUTS),
        ("backward", 2 * ROWS * INPUTS * OUTPUTS),
    ]
    bias, seed = 4 * OUTPUTS, 4  # the gradient of a sum is one number for all
    assert [op.nbytes for op in products] == [
        batch + weight + bias + result,
        seed + weight + batch,
        seed + batch + weight,
    ]
    assert tensors(trace, "parameter") == [("weight", weight), ("bias", bias)]
    assert sorted(tensors(trace, "gradient")) == [("bias", bias), ("weight", weight)]
    assert tensors(trace, "optimizer_state") == [
        ("weight", weight), ("weight", weight), ("bias", bias), ("bias", bias),
    ]  # fmt: skip
    assert tensors(trace, "input") == [("", batch)]


def test_memory_is_held_as_long_as_pytorch_holds_it() -> None:
    """An input of tanh is gone once it is read, its output once its gradient is reckoned; the seed
    of the backward pass stays to its end, and gradients to the step's."""

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 4, bias=False))

    trace = captured(model, 2, 4, rule="sgd")
    assert [op.kind for op in trace.ops] == [
        "mm", "tanh", "mm", "sum", "ones_like", "mm", "mm", "tanh_backward", "mm", "sgd", "sgd",
    ]  # fmt: skip
    made = {trace.ops[each[0]].id: trace.tensors[number]
            for number, each in enumerate(trace.accesses)
            if each and number in trace.ops[each[0]].writes}  # fmt: skip
    lives = {number: (each.kind, each.allocated, each.freed) for number, each in made.items()}
    assert lives == {
        0: ("temporary", 0, 2),
        1: ("activation", 1, 8),
        2: ("temporary", 2, 4),
        3: ("temporary", 3, 9),
        4: ("temporary", 4, 9),
        5: ("gradient", 5, 11),
        6: ("temporary", 6, 8),
        7: ("temporary", 7, 9),
        8: ("gradient", 8, 11),
    }
    lasting = {each.kind: (each.allocated, each.freed) for each in trace.tensors
               if each not in made.values()}  # fmt: skip
    assert lasting == dict.fromkeys(("parameter", "input"), (0, None))


def test_memory_that_is_not_written_is_held_all_the_same() -> None:
    def step(model: nn.Module, batch: Any) -> Any:
        room = torch.empty(100)
        values = model(batch)
        return values.sum() + room[0]

    trace = captured(lambda: nn.Linear(4, 4), 2, 4, step=step)
    (room,) = (each for each in trace.tensors if each.nbytes == 400)
    assert (room.kind, room.allocated, room.freed) == ("temporary", 0, 3)
    assert trace.accesses[room.id] == (2,)


def of_convolution(trace: Trace) -> list[tuple[str, list[str], list[str], int]]:
    """Kinds of the parts of its backward pass, of what they read and write, and their work."""
    return [
        (
            op.kind.removeprefix("convolution_backward_"),
            [trace.tensors[each].kind for each in op.reads],
            [trace.tensors[each].kind for each in op.writes],
            op.flops,
        )
        for op in trace.ops
        if op.kind.startswith("convolution_backward")
    ]


def test_a_convolution_goes_back_in_its_parts() -> None:
    def model() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(4, 4, 1, bias=False),
            nn.Conv2d(4, 6, 3, stride=2, padding=1, dilation=(1, 2), groups=2),
        )

    trace = captured(model, 5, 4, 9, 8)
    places, pairs = 5 * 5 * 3, 6 * 2 * 3 * 3  # of the output, and of the weights
    assert of_convolution(trace)[:3] == [
        ("input", ["temporary", "parameter"], ["temporary"], 2 * places * pairs),
        ("filter", ["temporary", "activation"], ["gradient"], 2 * places * pairs),
        ("bias", ["temporary"], ["gradient"], places * 6),
    ]
    whole = 5 * 4 * 9 * 8
    assert of_convolution(trace)[3:] == [
        ("filter", ["temporary", "input"], ["gradient"], 2 * whole * 4)
    ]
    products = [op for op in trace.ops if op.kind.startswith("convolution")][1:4]
    values, weights, result = (5, 4, 9, 8), (6, 2, 3, 3), (5, 6, 5, 3)
    assert [(op.geometry.operands, op.geometry.result) for op in products if op.geometry] == [
        ((values, weights, (6,)), result),
        ((result, weights), values),
        ((result, values), weights),
    ]
    for op in products:
        assert op.geometry == Geometry(
            operands=op.geometry.operands, result=op.geometry.result,
            stride=(2, 2), padding=(1, 1), dilation=(1, 2), groups=2,
        )  # fmt: skip
    first = products[0]
    assert first.read_bytes == (4 * whole, 4 * pairs, 4 * 6)
    assert first.write_bytes == (4 * places * 6,)
    frozen = captured(lambda: model().requires_grad_(False).append(nn.Conv2d(6, 2, 1)), 5, 4, 9, 8)
    assert [part for part, *_ in of_convolution(frozen)] == ["filter", "bias"]


def test_a_transposed_convolution_says_so() -> None:
    trace = captured(lambda: nn.ConvTranspose1d(4, 6, 3, stride=2), 5, 4, 9)
    (product,) = (op for op in trace.ops if op.kind == "convolution")
    assert product.geometry == Geometry(
        operands=((5, 4, 9), (4, 6, 3), (6,)), result=(5, 6, 19),
        stride=(2,), padding=(0,), dilation=(1,), transposed=True,
    )  # fmt: skip
    assert all(op.geometry is None for op in trace.ops if "convolution" not in op.kind)


def test_a_lookup_reads_its_rows_only() -> None:
    trace = captured(lambda: nn.Embedding(1000, 4), 6, step=lambda m, x: m(x.long()).sum())
    (lookup,) = (op for op in trace.ops if op.kind == "embedding")
    rows = 6 * 4 * 4
    assert (lookup.read_bytes, lookup.write_bytes) == ((rows, 6 * 8), (rows,))
    assert [trace.tensors[each].nbytes for each in lookup.reads] == [1000 * 4 * 4, 6 * 8]


@pytest.mark.parametrize(
    ("kind", "look", "nbytes"),
    [
        ("index", lambda table, rows: table[rows], 6 * 4 * 4),
        ("index_select", lambda table, rows: table.index_select(0, rows), 6 * 4 * 4),
        ("gather", lambda table, rows: table.gather(0, rows[:, None]), 6 * 4),
        ("take", lambda table, rows: table.take(rows), 6 * 4),
    ],
)
def test_what_looks_up_is_no_work_and_reads_no_more(kind: str, look: Any, nbytes: int) -> None:
    def step(model: Any, batch: Any) -> Any:
        return look(model.weight, batch.long()).sum()

    trace = captured(lambda: nn.Embedding(1000, 4), 6, step=step)
    (lookup,) = (op for op in trace.ops if op.kind == kind)
    assert (lookup.read_bytes, lookup.write_bytes) == ((nbytes, 6 * 8), (nbytes,))
    assert lookup.flops == 0


def test_attention_and_recurrent_layers_are_counted_by_their_products() -> None:
    def attend(model: nn.Module, batch: Any) -> Any:
        return nn.functional.scaled_dot_product_attention(*model(batch).chunk(3, 3)).sum()

    batch, heads, context, width = 2, 3, 5, 8
    trace = captured(lambda: nn.Linear(width, 3 * width), batch, heads, context, width, step=attend)
    (forward, backward) = (op for op in trace.ops if "attention" in op.kind)
    assert forward.flops == 4 * batch * heads * context**2 * width
    assert backward.flops == 10 * batch * heads * context**2 * width  # scores are made again

    steps, inputs, hidden = 5, 4, 8
    trace = captured(
        lambda: nn.LSTM(inputs, hidden), steps, 2, inputs, step=lambda model, x: model(x)[0].sum()
    )
    products = [op for op in trace.ops if op.kind in ("mm", "addmm") and op.phase == "forward"]
    assert sum(op.flops for op in products) == 2 * steps * 2 * (inputs + hidden) * 4 * hidden


@pytest.mark.parametrize("rule", ["sgd", "momentum", "adam", "amsgrad", "adagrad", "lion"])
def test_the_update_is_the_rules(rule: str) -> None:
    trace = captured(lambda: nn.Linear(INPUTS, OUTPUTS), ROWS, INPUTS, rule=rule)
    states = {"sgd": 0, "amsgrad": 3, "adam": 2}.get(rule, 1)
    updates = [op for op in trace.ops if op.phase == "update"]
    assert [op.kind for op in updates] == [rule, rule]
    for op, count in zip(updates, (INPUTS * OUTPUTS, OUTPUTS), strict=True):
        assert len(op.reads) == 2 + states
        assert op.nbytes == RULES[rule].bytes_per_parameter * count
        assert op.flops == len(RULES[rule].flow().placed) * count
    assert len(tensors(trace, "optimizer_state")) == 2 * states


class Pieces(nn.Module):
    """Parameters that are pieces of one memory; gradients show one number again and again."""

    def __init__(self) -> None:
        super().__init__()
        memory = torch.zeros(24)
        self.one, self.other = nn.Parameter(memory[:16]), nn.Parameter(memory[16:])

    def forward(self, batch: Any) -> Any:
        return self.one.sum() + self.other.sum()


def test_the_update_of_a_piece_of_memory_moves_that_piece() -> None:
    trace = captured(Pieces, 1)
    for op, size in zip([op for op in trace.ops if op.phase == "update"], (64, 32), strict=True):
        assert (op.read_bytes, op.write_bytes) == ((size,) * 4, (size,) * 3)
    assert [size for _, size in tensors(trace, "optimizer_state")] == [64, 64, 32, 32]
    trace = captured(Pieces, 1, step=asks_for_gradients, rule="sgd")
    assert [op.read_bytes for op in trace.ops if op.phase == "update"] == [(64, 4), (32, 4)]


class Branches(nn.Module):
    """A frozen stem, two branches, one submodule used twice, and one that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 4, bias=False).requires_grad_(False)
        self.left = nn.Linear(4, 4, bias=False)
        self.shared = nn.Linear(4, 4, bias=False)
        self.again = self.shared
        self.unused = nn.Linear(4, 4, bias=False)

    def forward(self, batch: Any) -> Any:
        stem = self.stem(batch)
        left = self.shared(self.left(stem).relu())
        positions = torch.arange(4)  # belongs to no node of autograd's graph
        return left * self.again(stem) + positions


def test_branches_frozen_parameters_and_shared_submodules() -> None:
    trace = captured(Branches, 2, 4)
    assert ops_of(trace, "forward") == [
        ("mm", "stem"),
        ("mm", "left"),
        ("relu", OUTSIDE),
        ("mm", "shared"),
        ("arange", OUTSIDE),
        ("mm", "shared"),
        ("mul", OUTSIDE),
        ("add", OUTSIDE),
        ("sum", OUTSIDE),
    ]
    backward = ops_of(trace, "backward")
    assert backward[:4] == [
        ("ones_like", OUTSIDE), ("mul", OUTSIDE), ("mul", OUTSIDE), ("mm", "shared"),
    ]  # fmt: skip
    # The frozen stem has no gradient; both uses of the shared one are added up.
    assert backward.count(("mm", "shared")) == 3
    assert backward.count(("add", "shared")) == 1
    assert backward[-1] == ("mm", "left")
    assert len(backward) == 4 + 2 + 1 + 1 + 1
    names = [f"{name}.weight" for name in ("stem", "left", "shared", "unused")]
    assert [name for name, _ in tensors(trace, "parameter")] == names
    assert ops_of(trace, "update") == [("adam", "left"), ("adam", "shared")]
    assert sorted(name for name, _ in tensors(trace, "gradient")) == names[1:3]
    (relu,) = (op for op in trace.ops if op.kind == "relu")
    kinds = [trace.tensors[each].kind for each in relu.reads + relu.writes]
    assert kinds == ["temporary", "activation"]


def test_views_are_the_tensor_that_they_show_and_changes_in_place_read_it() -> None:
    def step(model: nn.Module, batch: Any) -> Any:
        values = model(batch)
        values[:, :2].mul_(2)
        values[0].zero_()
        return values.t().sum() + values[:1].expand(3, 4).sum()

    trace = captured(lambda: nn.Linear(4, 4, bias=False), 8, 4, step=step)
    forward = [op for op in trace.ops if op.phase == "forward"]
    assert [op.kind for op in forward] == ["mm", "mul_", "zero_", "sum", "sum", "add"]
    (values,) = forward[0].writes
    assert [(op.reads, op.writes) for op in forward[1:3]] == [
        ((values,), (values,)),
        ((), (values,)),
    ]
    assert [op.nbytes for op in forward[1:5]] == [
        2 * 8 * 2 * 4,
        4 * 4,
        8 * 4 * 4 + 4,
        4 * 4 + 4,  # a row, shown three times
    ]


def test_batch_norm_changes_its_buffers() -> None:
    trace = captured(lambda: nn.BatchNorm1d(4), 8, 4)
    (norm,) = (op for op in trace.ops if op.kind == "native_batch_norm")
    names = [trace.tensors[each].name for each in norm.writes]
    assert names[:2] == ["running_mean", "running_var"]
    assert {"running_mean", "running_var"} < {trace.tensors[each].name for each in norm.reads}
    assert [name for name, _ in tensors(trace, "input")][:2] == names[:2]


def test_what_is_recomputed_belongs_to_its_module() -> None:
    def step(model: Any, batch: Any) -> Any:
        return checkpoint(model, batch.requires_grad_(), use_reentrant=False).sum()

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 4, bias=False))

    trace = captured(model, 2, 4, step=step)
    forward = [each for each in ops_of(trace, "forward") if each[1] != OUTSIDE]
    backward = [each for each in ops_of(trace, "backward") if each[1] != OUTSIDE]
    assert forward == [("mm", "0"), ("tanh", "1"), ("mm", "2")]
    assert backward[:2] == forward[:2]
    assert [layer for _, layer in backward[-5:]] == ["2", "2", "1", "0", "0"]
    assert not tensors(trace, "activation")


def returns(model: nn.Module, batch: Any) -> Any:
    return model(batch).square().mean()


def calls(model: nn.Module, batch: Any) -> None:
    model(batch).square().mean().backward()


def calls_autograd(model: nn.Module, batch: Any) -> None:
    torch.autograd.backward([model(batch).square().mean()])


def asks_for_gradients(model: nn.Module, batch: Any) -> None:
    gradients = torch.autograd.grad(model(batch).square().mean(), [*model.parameters()])
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.grad = gradient


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))


@pytest.mark.parametrize("step", [calls, calls_autograd, asks_for_gradients])
def test_a_backward_pass_is_one_whoever_calls_it(step: Callable[..., Any]) -> None:
    assert captured(layers, 8, 4, step=step) == captured(layers, 8, 4, step=returns)


def test_passes_of_parts_of_a_batch_are_forward_and_backward() -> None:
    def step(model: nn.Module, batch: Any) -> Any:
        first, second = batch.chunk(2)
        (returns(model, first) / 2).backward()
        return returns(model, second) / 2

    parts, whole = (captured(layers, 8, 4, step=each) for each in (step, returns))
    forward = 2 * 8 * (4 * 5 + 5 * 2)
    for phase, flops in (("forward", forward), ("backward", forward + 2 * 8 * 5 * 2)):
        for trace in (parts, whole):
            products = [op for op in trace.ops if op.phase == phase and op.kind in ("addmm", "mm")]
            assert sum(op.flops for op in products) == flops
    runs = [op.phase for op in parts.ops]
    assert [name for name, before in zip(runs, ["", *runs], strict=False) if name != before] == [
        "forward", "backward", "forward", "backward", "update",
    ]  # fmt: skip
    assert sum(size for _, size in tensors(parts, "activation")) == sum(
        size for _, size in tensors(whole, "activation")
    )


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_what_runs_without_gradients_is_captured_in_the_same_parts(mode: Any) -> None:
    def step(model: Any, batch: Any) -> Any:
        with mode():
            given = model[0](batch)
        return model[1](given.clone()).sum()

    def model() -> nn.Module:
        teacher = nn.Linear(4, 8), nn.Unflatten(1, (2, 4)), nn.Conv1d(2, 2, 3), nn.Softmax(1)
        return nn.ModuleList([nn.Sequential(*teacher), nn.Linear(2, 3)])

    assert ops_of(captured(model, 8, 4, step=step), "forward") == [
        ("addmm", "0.0"), ("convolution", "0.2"), ("_softmax", "0.3"), ("clone", OUTSIDE),
        ("addmm", "1"), ("sum", OUTSIDE),
    ]  # fmt: skip


def test_a_gradient_of_gradients_has_phases_and_layers() -> None:
    def step(model: nn.Module, batch: Any) -> Any:
        values = model(batch.requires_grad_())
        (gradient,) = torch.autograd.grad(values.sum(), batch, create_graph=True)
        return values.sum() + gradient.square().sum()

    trace = captured(layers, 8, 4, step=step)
    assert [kind for kind, _ in ops_of(trace, "forward")] == [
        "addmm", "tanh", "addmm", "sum", "sum", "pow", "sum", "add",
    ]  # fmt: skip
    products = [layer for kind, layer in ops_of(trace, "backward") if kind == "mm"]
    # First to the batch. Then each layer's two products, and what the first pass's need: two of
    # layer 0, and of layer 2, whose gradient is of ones, the weights' only.
    assert products == ["2", "0", "0", "0", "2", "2", "2", "0", "0"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_model_that_is_cast_is_one_of_that_type(dtype: Any) -> None:
    def made(**options: Any) -> nn.Module:
        tied = nn.Linear(4, 4, **options)
        norm = nn.LayerNorm(4, **options)
        return nn.Sequential(tied, norm, tied, nn.RNN(4, 3, **options))

    def step(model: Any, batch: Any) -> Any:
        return model(batch)[0].sum()

    def trace(model: Callable[[], nn.Module]) -> Trace:
        def build() -> tuple[nn.Module, tuple[Any, ...]]:
            return model(), (torch.zeros(8, 4, dtype=dtype),)

        return capture(build, step, name="test")

    swap = torch.utils.swap_tensors
    short = {torch.float16: nn.Module.half, torch.bfloat16: nn.Module.bfloat16}
    expected = trace(lambda: made(dtype=dtype))
    assert {each.element_bytes for each in expected.tensors if each.kind == "parameter"} == {
        dtype.itemsize
    }
    assert trace(lambda: made().to(dtype)) == expected
    assert trace(lambda: short.get(dtype, nn.Module.double)(made())) == expected
    assert torch.utils.swap_tensors is swap


def test_a_model_that_is_copied_is_another_of_its_kind() -> None:
    def copied() -> nn.Module:
        layer = nn.Linear(4, 4)
        return nn.Sequential(layer, deepcopy(layer))

    expected = captured(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), 2, 4)
    assert captured(copied, 2, 4) == expected
    assert not hasattr(FakeTensorMode, "__deepcopy__")


def saved_bytes(model: nn.Module, batch: tuple[Any, ...]) -> int:
    """Of what PyTorch keeps for the backward pass of a real step, besides parameters and batch."""
    known = {each.untyped_storage()._cdata for each in [*model.parameters(), *batch]}
    storages = {}

    def pack(tensor: Any) -> Any:
        storages[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        gpt_loss(model, *batch)
    return sum(each.nbytes() for address, each in storages.items() if address not in known)


def test_activations_are_what_pytorch_saves() -> None:
    found = sum(nbytes for _, nbytes in tensors(load_trace("gpt-tiny"), "activation"))
    assert found == saved_bytes(*gpt_with_batch(GPTS["gpt-tiny"]))


def test_a_real_step_runs_the_same_products() -> None:
    """Contents make no difference: a real model does as many operations of each kind."""
    with torch.profiler.profile(with_flops=True) as profile:
        model, batch = gpt_with_batch(GPTS["gpt-tiny"])
        gpt_loss(model, *batch).backward()
    trace = load_trace("gpt-tiny")
    for kind in ("addmm", "mm", "bmm", "native_layer_norm", "_softmax", "embedding"):
        real = [each for each in profile.events() if each.name == f"aten::{kind}"]
        assert len(real) == sum(op.kind == kind for op in trace.ops), kind


# The shipped traces.


@pytest.mark.parametrize(
    "name", ["gpt-tiny", "alexnet", "rnn-lstm-1", "resnet32", "dcgan", "word2vec"]
)
def test_a_shipped_trace_is_what_is_captured(name: str) -> None:
    shipped, again = load_trace(name), capture_shipped(name)
    if again.origin != shipped.origin:
        pytest.skip(f"made by PyTorch {shipped.origin['torch']}, here is {torch.__version__}")
    assert again == shipped


def test_two_captures_are_the_same_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("one", "two"):
        assert main(["gpt-tiny", "--to", str(tmp_path / folder)]) == 0
    files = [tmp_path / folder / "gpt-tiny.json.gz" for folder in ("one", "two")]
    assert files[0].read_bytes() == files[1].read_bytes()
    shipped = gzip.decompress((SHIPPED / "gpt-tiny.json.gz").read_bytes())
    assert len(gzip.decompress(files[0].read_bytes())) == len(shipped)
    assert capsys.readouterr().out == "".join(f"{file}: 140 operations\n" for file in files)


# What is refused.


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gpt-4"], "no trace 'gpt-4': choose from gpt3-large, "),
        (
            ["gpt-tiny", "--to", "/dev/null/x"],
            "/dev/null/x: Not a directory; choose another folder",
        ),
    ],
)
def test_the_command_refuses(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    assert exit.value.code == 2
    output = capsys.readouterr()
    assert said in output.err
    assert not output.out


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("adamax", "no update rule 'adamax'; known: "),
        ("copy", "rule 'copy' updates no parameter: "),
    ],
)
def test_a_rule_that_updates_nothing_is_refused(rule: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        captured(lambda: nn.Linear(2, 2), 2, 2, rule=rule)


def grows(model: Any, batch: Any) -> Any:
    model.more = nn.Linear(2, 1)
    return model.more(model(batch)).sum()


def optimizes(model: nn.Module, batch: Any) -> None:
    calls(model, batch)
    torch.optim.Adam(model.parameters()).step()


@pytest.mark.parametrize(
    ("model", "step", "said"),
    [
        (lambda: nn.Linear(2, 2), optimizes, r"the step runs Adam.step\(\): leave it out, "),
        (lambda: nn.Linear(2, 2), lambda *_: None, "the step leaves no gradient: "),
        (lambda: nn.Linear(2, 2), grows, "the step makes parameter 'more.weight': make it with"),
        (
            lambda: nn.Embedding(9, 2, sparse=True),
            lambda table, batch: table(batch.long()).sum(),
            r"a tensor of shape \(9, 2\) is torch.sparse_coo or nested, and capture takes dense",
        ),
    ],
)
def test_a_step_that_cannot_be_captured_is_refused(model: Any, step: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        captured(model, 2, 2, step=step)
    assert not _global_optimizer_pre_hooks


def test_a_loss_without_a_gradient_is_pytorchs_error() -> None:
    with pytest.raises(RuntimeError, match="does not require grad"):
        captured(lambda: nn.Linear(2, 2).requires_grad_(False), 2, 2)
    hooks = torch.nn.modules.module
    assert not hooks._global_forward_pre_hooks
    assert not hooks._global_forward_hooks
