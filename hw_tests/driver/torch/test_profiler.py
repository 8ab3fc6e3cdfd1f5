"""The profiler, on a clock that runs by what PyTorch computes and where its parameters are."""

# it begins with whether PyTorch is there

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[torch]'")

from torch import Tensor, nn
from torch.optim import Adam
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from sw_driver.device.errors import InvalidArgumentError
from sw_driver.system.memferry.profile import LayerProfile, ModelProfile
from sw_driver.torch.profiler import Cuda, in_host_memory, profile_model

NS = {
    "embedding": 10, "native_layer_norm": 20, "addmm": 30, "relu": 3, "sum": 5,
    "embedding_dense_backward": 100, "native_layer_norm_backward": 200, "mm": 300,
    "threshold_backward": 7, "mul": 2000, "copy_": 50, "_fused_adam_": 4000,
    "add_": 40,
}  # fmt: skip
"""Of an operation: `add_` is of a gradient to one that is there already."""
READ, WRITTEN = 1000, 5000
"""More, for each tensor in the host's memory."""
PEAK = {"native_layer_norm": 1000, "mm": 3000}
"""Bytes of the GPU's memory, of which :data:`BASE` were taken before."""
BASE = 100


class Clock(TorchDispatchMode, Cuda):
    """A GPU, both of whose memories are the host's."""

    def __init__(self) -> None:
        TorchDispatchMode.__init__(self)
        self.name, self.device, self.now, self.held = "clock", torch.device("cpu"), 0, 0
        self.mapped: list[Tensor] = []
        self.peak = BASE

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kind = func.overloadpacket.__name__
        self.now += NS.get(kind, 0)
        self.peak = max(self.peak, PEAK.get(kind, 0))
        at = {each.untyped_storage().data_ptr() for each in self.mapped}
        there = [
            each
            for each in tree_leaves((args, kwargs))
            if isinstance(each, Tensor) and each.untyped_storage().data_ptr() in at
        ]
        if kind in NS:
            self.now += len(there) * (WRITTEN if kind == "mul" else READ)
        return func(*args, **(kwargs or {}))

    def hold(self) -> None:
        self.held += 1

    def mark(self) -> int:
        return self.now

    def ns(self, before: int, after: int) -> int:
        return after - before

    def host_ns(self) -> int:
        return self.now

    def peak_bytes(self) -> int:
        self.peak, peak = BASE, self.peak
        return peak

    def host(self, tensor: Tensor) -> tuple[Tensor, Tensor]:
        self.mapped.append(tensor.clone())
        return tensor.clone(), self.mapped[-1]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.more = nn.Embedding(5, 4), nn.Embedding(5, 4)
        self.frozen = nn.Linear(4, 4)
        self.frozen.requires_grad_(False)
        self.norm = nn.LayerNorm(4)
        self.out = nn.Linear(4, 5)
        self.out.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        values = self.words(tokens).relu() + self.more(tokens)
        return self.out(self.norm(self.frozen(values.relu()).relu()))


def loss(model: nn.Module, *batch: Tensor) -> Tensor:
    return model(*batch).sum()


def profiled(
    model: nn.Module, step: Any = loss, *, gpu: Clock | None = None, **options: Any
) -> ModelProfile:
    with gpu or Clock() as clock:
        return profile_model(model, (torch.tensor([0, 3, 3]),), step, gpu=clock, **options)


def row(
    name: str,
    nbytes: int,
    transfer: int,
    forward: tuple[int, int],
    backward: tuple[int, int, int],
    gaps: tuple[int, int],
    memory: tuple[int, int],
) -> LayerProfile:
    return LayerProfile(
        name=name,
        nbytes=nbytes,
        transfer_ns=transfer,
        forward_ns=forward[0],
        forward_dha_ns=forward[1],
        backward_ns=backward[0],
        backward_dha_ns=backward[1],
        backward_gradient_dha_ns=backward[2],
        gap_forward_ns=gaps[0],
        gap_backward_ns=gaps[1],
        activation_bytes=memory[0],
        workspace_bytes=memory[1],
    )


def test_every_time_and_size_of_a_model() -> None:
    written = 2 * (2000 + WRITTEN)
    expected = (
        # The table is the output's to copy and its gradient is the output's to write. It is read in
        # the host's memory here whatever is done with it there.
        row("words", 0, 0, (1010, 1010), (100, 100, 100), (3, 7), (24 + 48, 0)),
        row("more", 80, 50, (10, 1010), (100, 100, 100 + written // 2), (3, 7), (48, 0)),
        # No gradient is made, but that of its input by a product that reads the weights.
        row("frozen", 80, 100, (30, 2030), (300, 1300, 300), (3, 7), (48, 3000 - BASE - 3 * 48)),
        row(
            "norm", 32, 100, (20, 2020), (200, 2200, 200 + written), (0, 0),
            (24, 1000 - BASE - 3 * 48 - 24),
        ),
        # Two products and a sum, of which one reads the weights; gradients take 100 bytes.
        row(
            "out", 100, 100, (30, 2030), (605, 1605, 605 + written), (5, 0),
            (48, 3000 - BASE - 4 * 48 - 24 - 100),
        ),
    )  # fmt: skip
    profile = profiled(Model(), repeats=2)
    assert profile.layers == expected
    assert (profile.device, profile.update_ns) == ("clock, measured", 4000)
    assert profile.link_bytes_per_s == 1e9


def test_the_middle_of_what_is_measured_counts_and_not_the_first() -> None:
    class Slow(Clock):
        def hold(self) -> None:
            super().hold()
            # Steps for the memory, three on the GPU and three by DHA, three copies and writes.
            self.slower = [0, 9000, 50, 70, 9000, 5, 6, 9000, 1, 4, 9000, 0, 0][self.held - 1]

        def ns(self, before: int, after: int) -> int:
            return super().ns(before, after) + self.slower

    one = profiled(Model(), repeats=2, gpu=Slow()).layers[2]
    assert (one.forward_ns, one.forward_dha_ns, one.transfer_ns) == (90, 2035, 102)


def test_a_module_may_be_called_twice_and_have_others_in_it() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4))
            self.inner = nn.Linear(4, 4)

        def forward(self, values: Tensor, *, bias: Tensor) -> Tensor:
            return self.inner(values) * self.scale + bias

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.scaled = nn.Embedding(5, 4), Scaled()

        def forward(self, tokens: Tensor) -> Tensor:
            values = self.words(tokens)
            return self.scaled(self.scaled(values, bias=values).relu(), bias=values)

    words, scaled = profiled(Twice()).layers
    assert (words.name, words.nbytes, scaled.name, scaled.nbytes) == ("words", 80, "scaled", 96)
    assert (scaled.forward_ns, scaled.gap_forward_ns) == (2 * (30 + 2000), 3 + 5)
    # Two products and a sum of the inner one; the scale's gradient, and that of what it scales.
    assert (scaled.backward_ns, scaled.gap_backward_ns) == (2 * (605 + 2000 + 2000 + 5), 7)


def test_what_gets_no_gradient_writes_and_updates_none() -> None:
    class Features(Model):
        def forward(self, tokens: Tensor) -> Tensor:
            with torch.no_grad():
                values = self.norm(self.frozen(self.words(tokens) + self.more(tokens)))
            return self.out(values)

    found, updated = [], []
    model = Features()
    model.register_buffer("table", torch.zeros(3))
    profile = profiled(model, optimizer=lambda each: updated.append(each) or Adam(each))
    assert profile.layers[0].activation_bytes == 24 + 12  # the batch and the buffer
    for each in profile.layers:
        found.append((each.name, each.backward_ns, each.backward_gradient_dha_ns))
    *rest, out = found
    assert rest == [("words", 0, 0), ("more", 0, 0), ("frozen", 0, 0), ("norm", 0, 0)]
    assert out == ("out", 305, 305 + 2 * (2000 + WRITTEN))
    assert [[each.numel() for each in of] for of in updated] == [[20, 5]]


def test_parameters_in_the_host_memory_give_the_same_bits() -> None:
    model, found = Model(), []
    before = {name: each.data_ptr() for name, each in model.named_parameters()}

    def bits() -> list[bytes]:
        model.zero_grad()
        made = loss(model, torch.tensor([0, 3, 3]))
        made.backward()
        grads = [each.grad for each in model.parameters() if each.grad is not None]
        return [each.detach().numpy().tobytes() for each in (made, *grads)]

    found = [bits()]
    with in_host_memory(model, Clock()):
        assert not {each.data_ptr() for each in model.parameters()} & {*before.values()}
        found.append(bits())
    assert found[0] == found[1]
    assert {name: each.data_ptr() for name, each in model.named_parameters()} == before


@pytest.mark.parametrize("last", [1, 4, 10])
def test_the_model_is_as_it_was_whatever_happens(last: int) -> None:
    model, steps = Model(), iter(range(last))
    gradient = model.norm.bias.grad = torch.ones(4)
    before = [(each.data_ptr(), each.detach().clone()) for each in model.parameters()]

    def step(model: nn.Module, *batch: Tensor) -> Tensor:
        if next(steps, None) is None:
            raise RuntimeError("out of memory")
        return loss(model, *batch)

    if last < 10:
        with pytest.raises(RuntimeError, match="out of memory"):
            profiled(model, step, repeats=2)
    else:
        profiled(model, step, repeats=2)
    for each, (at, values) in zip(model.parameters(), before, strict=True):
        assert each.data_ptr() == at
        assert torch.equal(each, values)
    assert model.norm.bias.grad is gradient
    assert model.words.weight.grad is None
    assert not model.norm._forward_hooks and not model.norm._forward_pre_hooks  # noqa: PT018
    loss(model, torch.tensor([0, 3, 3])).backward()
    assert model.words.weight.grad is not None


class Odd(Model):
    def forward(self, tokens: Tensor) -> Tensor:
        values = self.norm(self.frozen(self.words(tokens) + self.more(tokens)))
        return checkpoint(self.out, values, use_reentrant=False)


def test_odd_models_are_refused() -> None:
    uncalled, whole = Model(), Model()
    uncalled.unused = nn.Linear(2, 2)
    whole.token = nn.Parameter(torch.ones(1))
    for model, step, message in (
        (uncalled, loss, "the step does not call 'unused', which has parameters: expected it to"),
        (whole, loss, "parameter 'token' is of the whole model: expected parameters of modules"),
        (Odd(), loss, "'out' is called in the backward pass: expected no recomputation"),
        (Model().to("meta"), loss, "parameter 'words.weight' is on meta: move model and batch to"),
        (nn.ReLU(), loss, "ReLU has no parameters: expected some"),
        (Model(), lambda *_: None, "step gives None: expected the loss, a tensor of one number"),
        (Model(), lambda model, *batch: model(*batch), "step gives tensor"),
        (Model(), lambda *each: loss(*each).backward(), "step makes gradients: expected it to"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            profiled(model, step)
    with pytest.raises(InvalidArgumentError, match="repeats is 0: expected an integer of 1 or"):
        profiled(Model(), repeats=0)
    if not torch.cuda.is_available():
        with pytest.raises(InvalidArgumentError, match="finds no GPU with CUDA: profile on a mach"):
            profile_model(Model(), (), loss)
