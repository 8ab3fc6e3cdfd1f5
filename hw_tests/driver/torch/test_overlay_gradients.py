"""Gradients under the overlay: PyTorch's own to the last bit, or its own error."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[torch]'")

from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from sw_driver.memory_node import DeviceNode
from sw_driver.memory_node.backends.golden import GoldenNetwork
from sw_driver.torch.overlay import CHEAP, MemoryOverlay

pytestmark = pytest.mark.filterwarnings(
    "ignore:Sparse CSR", "ignore:The PyTorch API of nested", "ignore:torch.quantize_per_tensor"
)

SHAPE = (4, 6, 5, 7)
HELD: list[Any] = []
"""What lives on to the backward pass."""
CONV = partial(nn.Conv2d, 6, 6, 1)
BATCH = partial(nn.BatchNorm2d, 6)
LAYER = partial(nn.LayerNorm, SHAPE[2:])
LAYERS: dict[type[nn.Module], Callable[[], nn.Module]] = {
    **{each: each for each in CHEAP},
    nn.BatchNorm1d: lambda: nn.Sequential(
        nn.Flatten(2), nn.BatchNorm1d(6), nn.Unflatten(2, (5, 7))
    ),
    nn.BatchNorm2d: BATCH,
    nn.LayerNorm: LAYER,
    nn.MaxPool2d: partial(nn.MaxPool2d, 3, 1, 1),
    nn.AvgPool2d: partial(nn.AvgPool2d, 3, 1, 1),
    nn.LocalResponseNorm: partial(nn.LocalResponseNorm, 3),
}
"""All cheap layers, with arguments."""


class Scaled(nn.LayerNorm):
    def forward(self, input: Any, scale: float = 1.0) -> Any:
        return super().forward(input) * scale


class Doubled(nn.ReLU):
    def forward(self, input: Any) -> Any:
        return super().forward(input) * 2


class Doubles(nn.Module):
    def forward(self, weight: Any) -> Any:
        return weight * 2


class Drops(nn.Module):
    """Changes what it saved, and asks for no gradient of it."""

    def forward(self, given: Any) -> Any:
        HELD.append(given * given)
        return given.mul_(2).detach()


class OfAClass(torch.Tensor):
    pass


class Keeps(torch.autograd.Function):
    """Saves what is made of its input, of which its gradient is made."""

    @staticmethod
    def forward(context: Any, given: Any, make: Any, back: Any) -> Any:
        context.save_for_backward(make(given))
        context.back = back
        return given * 3

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        return gradient * context.back(*context.saved_tensors), None, None


class Mode(torch.overrides.TorchFunctionMode):
    """Makes another function of GELU."""

    def __torch_function__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        return torch.mul(made, 3) if function is functional.gelu else made


class Dispatch(TorchDispatchMode):
    """Makes another function of GELU, below autograd."""

    def __torch_dispatch__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        return torch.mul(made, 3) if function is torch.ops.aten.gelu.default else made


def _with(prepare: Callable[[Any], Any], make: Callable[[], nn.Module] = nn.GELU) -> Any:
    """A layer, prepared."""

    def made() -> nn.Module:
        prepare(layer := make())
        return layer

    return made


def _call(given: Any, layer: Any, after: Any, **keywords: Any) -> Any:
    """A layer whose input and output others save."""
    return after(layer(torch.tanh(given), **keywords))


def _then(change: Callable[[Any], Any]) -> Callable[..., Any]:
    def called(given: Any, layer: Any, after: Any) -> Any:
        made = _call(given, layer, after)
        with torch.no_grad():
            change(layer)
        return made

    return called


def _under(context: Callable[[Any], Any]) -> Callable[..., Any]:
    def called(given: Any, layer: Any, after: Any) -> Any:
        with context(layer):
            made = layer(torch.tanh(after(given)))
        return after(made.float())

    return called


def _modes(given: Any, layer: Any, after: Any) -> Any:
    first = _call(given, layer.eval(), after)
    return first - _call(given * 2, layer.train(), after)


def _threads(given: Any, layer: Any, after: Any) -> Any:
    """Sums of another order, in a layer that sums over samples."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    wide = given.repeat(64, 1, 1, 1).to(memory_format=torch.channels_last)
    made = _call(wide, layer, after)
    torch.set_num_threads(before)
    return made[: SHAPE[0]]


def _one_source(given: Any, *layers: Any) -> Any:
    """Outputs of one input that nobody saves, one of them in its place."""
    norm, dropout, relu, drops, after = layers
    normal = norm(torch.tanh(given))
    made = after(dropout(normal)) + after(relu(normal))
    normal = norm(torch.tanh(given))
    return made + after(dropout(normal)) + drops(normal)


def _complex(given: Any) -> Any:
    value = torch.complex(given, given.flip(0))
    row, conjugate = value.flatten(1), (value * 1j).conj()
    return given * (row @ row.mH).abs().mean() + conjugate.imag * value.mH.mH.conj().imag


def _lower_half(given: Any) -> Any:
    given = given * 1
    given[:, ::2].relu_()
    given[0].mul_(given[1].detach())
    return given


def _sparse(given: Any, layout: str) -> Any:
    flat = given.flatten(1)
    return given * torch.mm(getattr(torch.eye(len(flat)), layout)(), flat.sin()).mean()


def _nested(given: Any, layout: Any) -> Any:
    made = torch.nested.as_nested_tensor([given[0, 0], given[1, 0, 1:]], layout=layout)
    return given * (made * made).to_padded_tensor(0.0).mean()


def _hooks(given: Any) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved.half(), torch.Tensor.float):
        return torch.tanh(given) * given


def _uncounted(given: Any) -> Any:
    """What is still held is changed unseen by its version: statistics, and by force."""
    held = torch.zeros(6), torch.ones(6), torch.tanh(given)
    HELD.append(held)
    first = functional.batch_norm(held[2], *held[:2], training=False)
    made = held[2] * functional.batch_norm(given * 3, *held[:2], training=True)
    held[2].data.mul_(2)
    return first + made


def _keep(given: Any, make: Any = lambda x: x, back: Any = lambda saved: saved) -> Any:
    with torch.device("meta"):
        return Keeps.apply(given, make, back)


def _later(given: Any, dropout: Any, after: Any) -> Any:
    """A layer's input is saved after it was changed."""
    held = given * 1
    dropped = dropout(held)
    held.data.mul_(2)
    return held * held + after(dropped)


def _forgotten(given: Any, *layers: Any) -> Any:
    """A layer's output is saved, and changed, so much later that nobody knows how to make it."""
    norm, dropout, relu, drops, after = layers
    normal = norm(torch.tanh(given))
    dropped = dropout(normal)
    for _ in range(64):
        relu(torch.tanh(given))
    return drops(normal) + after(dropped)


def _again(reentrant: bool) -> Callable[..., Any]:
    return lambda given, layers: checkpoint(layers, given, use_reentrant=reentrant)


STAYS: dict[str, tuple[Any, Any]] = {
    "two tensors": (lambda x: TwoTensor(x * 1, x.sin()), lambda two: two.a * two.b),
    "one of a class": (lambda x: x.sin().as_subclass(OfAClass), torch.Tensor.cos),
    "a quantized one": (
        lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), torch.dequantize
    ),
    "a sparse one": (torch.Tensor.to_sparse, torch.Tensor.to_dense),
    "one without bytes": (lambda x: x.to("meta"), torch.Tensor.dim),
}  # fmt: skip
"""Tensors that stay, and what a gradient makes of them."""

SEVERAL = lambda: nn.Sequential(BATCH(), nn.ReLU(True), nn.Dropout(0.3), CONV())  # noqa: E731
STAGES: dict[str, tuple[Any, ...]] = {
    **{each.__name__: (_call, make, CONV) for each, make in LAYERS.items()},
    "ReLU in place": (_call, partial(nn.ReLU, True), CONV),
    "layers": (_call, SEVERAL, CONV),
    "subclass": (_call, Doubled, CONV),
    "a keyword of a subclass": (partial(_call, scale=3.0), partial(Scaled, SHAPE[2:]), CONV),
    "a keyword": (lambda x, gelu, after: after(gelu(input=torch.tanh(x))), nn.GELU, CONV),
    "forward hook": (
        _call, _with(lambda layer: layer.register_forward_hook(lambda *all: all[2] * 2)), CONV
    ),
    "forward pre-hook": (
        _call, _with(lambda layer: layer.register_forward_pre_hook(lambda _, x: x[0] * 2)), CONV
    ),
    "backward hook": (
        _call,
        _with(lambda layer: layer.register_full_backward_hook(lambda _, x, __: (x[0] * 2,))),
        CONV,
    ),
    "a later pre-hook": (
        _under(lambda layer: layer.register_forward_pre_hook(lambda _, x: x[0] * 2)), nn.GELU, CONV
    ),
    "a forward of its own": (
        _call, _with(lambda layer: setattr(layer, "forward", lambda x: x.sin() * 3)), CONV
    ),
    "parametrized": (
        _call,
        _with(lambda it: parametrize.register_parametrization(it, "weight", Doubles()), LAYER),
        CONV,
    ),
    "then another slope": (
        _then(lambda layer: setattr(layer, "negative_slope", 0.9)), nn.LeakyReLU, CONV
    ),
    "then another kernel": (
        _then(lambda layer: layer.kernel_size.reverse()),
        lambda: nn.AvgPool2d([1, 3], 1, [0, 1]),
        CONV,
    ),
    "then another probability": (_then(lambda layer: setattr(layer, "p", 0.1)), nn.Dropout, CONV),
    "then evaluation": (_then(nn.Module.eval), BATCH, CONV),
    "then another bias": (_then(lambda layer: layer.bias.add_(1)), LAYER, CONV),
    "then a new bias": (_then(lambda layer: setattr(layer, "bias", None)), BATCH, CONV),
    "then in place": (_then(lambda layer: setattr(layer, "inplace", True)), nn.ReLU, CONV),
    "then a hook": (
        _then(lambda layer: layer.register_forward_hook(lambda *all: all[2] * 2)), nn.GELU, CONV
    ),
    "evaluation, then training": (_modes, BATCH, CONV),
    "autocast": (_under(lambda _: torch.autocast("cpu")), LAYERS[nn.LocalResponseNorm], CONV),
    "a mode of functions": (_under(lambda _: Mode()), nn.GELU, CONV),
    "a mode of the dispatcher": (_under(lambda _: Dispatch()), nn.GELU, CONV),
    "another device": (_under(lambda _: torch.device("meta")), nn.GELU, CONV),
    "a hook of all": (
        _under(lambda _: nn.modules.module.register_module_forward_hook(lambda *all: all[2] * 2)),
        nn.GELU,
        CONV,
    ),
    "a pre-hook of all": (
        _under(lambda _: nn.modules.module.register_module_forward_pre_hook(lambda _, x: x[0] * 2)),
        nn.GELU,
        CONV,
    ),
    "another weight": (_then(lambda it: setattr(it.weight, "data", it.weight * 2)), CONV, CONV),
    "other threads": (_threads, BATCH, CONV),
    "one source": (_one_source, LAYER, nn.Dropout, partial(nn.ReLU, True), Drops, CONV),
    "rrelu": (lambda x: functional.rrelu(x, training=True) * x,),
    "dropout": (lambda x: functional.dropout(x) * x,),
    "complex": (_complex,),
    "view as real": (lambda x: x * torch.view_as_real(((x + 1j).conj() ** 2).conj()).sum(),),
    "rows in place": (_lower_half,),
    "expanded": (lambda x: x * (x[:1].sin().expand(SHAPE) ** 2),),
    "overlapping": (lambda x: x * (x.flatten().as_strided((8, 8), (1, 1)) ** 2).mean(),),
    "channels last": (
        lambda x, layers: layers(x.to(memory_format=torch.channels_last)), SEVERAL
    ),
    "empty, and without dimensions": (lambda x: x * x.mean().exp() + (x[:0] ** 2).sum(),),
    "other precisions": (lambda x: (x.double().tanh() ** 2).bfloat16().tanh().float() ** 2,),
    "sparse": (partial(_sparse, layout="to_sparse"),),
    "sparse rows": (partial(_sparse, layout="to_sparse_csr"),),
    "nested": (partial(_nested, layout=torch.strided),),
    "jagged": (partial(_nested, layout=torch.jagged),),
    "a class of tensors": (
        lambda x: (x.as_subclass(OfAClass).sin() * x).tanh().as_subclass(torch.Tensor),
    ),
    "vmap": (lambda x, gelu: torch.vmap(lambda each: gelu(each.tanh()) * each)(x), nn.GELU),
    "hooks of others": (_hooks,),
    "uncounted": (_uncounted,),
    "changed in the backward pass": (
        lambda x, it, after: after(it(held := x.tanh())) + _keep(held, back=lambda x: x.mul_(2)),
        nn.ReLU,
        CONV,
    ),
    "changed and kept": (
        lambda x, relu, after: HELD.append((held := x * 1) * held) or after(relu(held)),
        partial(nn.LeakyReLU, 0.3, True),
        CONV,
    ),
    "changed later, uncounted": (_later, nn.Dropout, CONV),
    "forgotten": (_forgotten, LAYER, nn.Dropout, nn.ReLU, Drops, CONV),
    "kept": (partial(_keep, make=torch.sin),),
    **{name: (partial(_keep, make=make, back=back),) for name, (make, back) in STAYS.items()},
    "inference": (
        lambda x, gelu: x * torch.inference_mode()(lambda: gelu(x))().clone() + gelu(
            torch.inference_mode()(lambda: x * 1)()
        ),
        nn.GELU,
    ),
    "checkpoint": (_again(False), SEVERAL),
    "checkpoint, reentrant": (_again(True), SEVERAL),
}  # fmt: skip
"""Functions that keep a tensor's shape, each with its layers."""


def _changed(change: Callable[[Any], Any], make: Callable[[Any], Any] = torch.tanh) -> Any:
    def called(given: Any) -> Any:
        made = make(given)
        product = made * made
        change(made)
        return given + product.real.mean()

    return called


def _half(given: Any) -> Any:
    made = torch.tanh(given)
    product = made[1:] * made[:-1]
    made[0, 0, 0].zero_()
    return given + product.mean()


def _sparse_changed(given: Any) -> Any:
    rows = torch.eye(4).to_sparse()
    product = torch.mm(rows, given.flatten(1))
    rows.mul_(2)
    return given + product.mean()


def _norm_changed(given: Any, norm: Any) -> Any:
    made = norm.eval()(given)
    norm.reset_running_stats()
    return made


CHANGES: dict[str, tuple[Any, ...]] = {
    "plainly": (_changed(lambda made: made.mul_(2)),),
    "without gradients": (_changed(torch.no_grad()(lambda made: made.mul_(2))),),
    "through detach": (_changed(lambda made: made.detach().zero_()),),
    "through a view": (_changed(lambda made: made.view(-1)[:3].add_(1)),),
    "of a view": (_half,),
    "of a conjugate": (
        _changed(lambda made: made.mul_(2), lambda x: torch.complex(x, x.sin()).conj() * 1j),
    ),
    "of a small tensor": (_changed(lambda made: made.add_(1), torch.mean),),
    "of a class of tensors": (
        _changed(lambda made: made.add_(1), lambda x: torch.sin(x.as_subclass(OfAClass))),
    ),
    "of a sparse tensor": (_sparse_changed,),
    "of a weight": (_then(lambda layer: layer.weight.mul_(3)), CONV, CONV),
    "of a buffer": (_norm_changed, BATCH),
    "by a layer": (lambda x, relu: x * relu(torch.tanh(x)), partial(nn.ReLU, True)),
    "of what is computed again": (
        lambda x, layer: _changed(lambda made: made.add_(1), layer)(torch.tanh(x)), nn.GELU
    ),
    "in a layer": (lambda x, layer: layer(x), lambda: _Function(_changed(torch.Tensor.zero_))),
}  # fmt: skip
"""Functions that change what they have saved."""


class _Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.forward = function


class Chain(nn.Module):
    def __init__(self, names: list[str]) -> None:
        super().__init__()
        stages = [STAGES.get(name) or CHANGES[name] for name in names]
        self.functions = [function for function, *_ in stages]
        self.layers = nn.ModuleList(
            nn.ModuleList(make() for make in layers) for _, *layers in stages
        )

    def forward(self, given: Any) -> Any:
        for function, layers in zip(self.functions, self.layers, strict=True):
            given = function(given, *layers)
        return given


def _gradients(model: nn.Module, given: Any, way: str) -> None:
    loss = model(given).square().mean()
    if way == "twice":
        with torch.autocast("cpu"):
            loss.backward(retain_graph=True)
    if way == "of gradients":
        wanted = [given, *model.parameters()]
        made = torch.autograd.grad(loss, wanted, create_graph=True, allow_unused=True)
        loss = sum(each.abs().square().sum() for each in made if each is not None)
    loss.backward()


def _bytes(tensor: Any) -> bytes | None:
    return None if tensor is None else tensor.numpy().tobytes()


def _both(names: list[str], way: str, least_bytes: int = 1) -> tuple[MemoryOverlay, str]:
    """Trains a step without and with an overlay, and compares all that is left of it."""
    found: list[dict[str, Any]] = []
    HELD.clear()
    for overlaid in (False, True):
        torch.manual_seed(7)
        model = nn.Sequential(CONV(), Chain(names), CONV())
        given = torch.randn(SHAPE, requires_grad=True)
        device = DeviceNode(GoldenNetwork(local_bytes=1 << 20, share_bytes=1 << 21))
        overlay = MemoryOverlay(model, device, least_bytes=least_bytes)
        error = ""
        try:
            with overlay if overlaid else nullcontext():
                _gradients(model, given, way)
        except RuntimeError as raised:
            made_by = r"\[\w+(\.\w+)? |, which is output \d+ of [\w:]+,| instead.*"
            error = re.sub(made_by, "", str(raised))
        left = {name: each.grad for name, each in model.named_parameters()}
        left.update(model.named_buffers(), given=given.grad, random=torch.get_rng_state())
        found.append({name: _bytes(each) for name, each in left.items()} | {"error": error})
    assert found[0] == found[1]
    return overlay, error


@pytest.mark.parametrize("way", ["twice", "of gradients"])
@pytest.mark.parametrize("name", STAGES)
def test_gradients_are_the_same_to_the_last_bit(name: str, way: str) -> None:
    statistics = _both([name], way)[0].statistics
    assert statistics.bytes_out > 0
    assert statistics.bytes_recomputed > 0 or name not in {each.__name__ for each in CHEAP}


@pytest.mark.parametrize("seed", range(24))
def test_gradients_of_chains_are_the_same_to_the_last_bit(seed: int) -> None:
    names = random.Random(seed).choices(list(STAGES), k=5)
    _both(names, "once")


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_changed_in_place_is_told_as_pytorch_tells_it(name: str) -> None:
    _, error = _both([name], "once", least_bytes=64)
    assert error.startswith("one of the variables needed for gradient computation has been")


@pytest.mark.parametrize("name", STAYS)
def test_what_is_no_plain_tensor_stays(name: str) -> None:
    device = DeviceNode(GoldenNetwork(local_bytes=1 << 20, share_bytes=1 << 21))
    with MemoryOverlay(nn.ReLU(), device, least_bytes=1) as overlay:
        Chain([name])(torch.randn(SHAPE, requires_grad=True))
    assert overlay.statistics.bytes_out == 0


def test_a_saved_tensor_is_read_under_another_default() -> None:
    device = DeviceNode(GoldenNetwork(local_bytes=1 << 20, share_bytes=1 << 21))
    with MemoryOverlay(nn.ReLU(), device, least_bytes=1):
        made = torch.randn(SHAPE, requires_grad=True).tanh()
        with torch.device("meta"):
            assert torch.equal(made.grad_fn._saved_result, made)
