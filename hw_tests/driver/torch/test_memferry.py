"""MemFerry for real: what a plan moves, and that results are bit for bit PyTorch's."""

# it begins with whether PyTorch is there

from __future__ import annotations

import gc
import io
import json
import re
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[torch]'")

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from sw_driver.device.errors import InvalidArgumentError
from sw_driver.torch import memferry
from sw_driver.torch.memferry import MemFerry
from sw_driver.torch.profiler import layers_of

DEVICES = ["cpu", *["cuda"] * torch.cuda.is_available()]
on_every_device = pytest.mark.parametrize("device", DEVICES)
WAYS = [*product(("GFGB", "DHA", "DFGB"), (True, False))]


class Odd(nn.Module):
    """A table that is the output's weight, too, a frozen layer, a branch that is taken in every
    other step, a layer that is called twice, one whose forward pass changes its parameter, dropout,
    running statistics, and checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(64, 32, max_norm=0.9)
        self.frozen = nn.Linear(32, 32).requires_grad_(False)
        self.shared = nn.Linear(32, 32)
        self.branch = nn.Linear(32, 32)
        self.wide = nn.Conv1d(32, 64, 3, padding=1)
        self.narrow = nn.Conv1d(64, 32, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm1d(32)
        self.attention = nn.MultiheadAttention(32, 4, dropout=0.1, batch_first=True)
        self.recurrent = nn.GRU(32, 32, batch_first=True)
        self.last = nn.LayerNorm(32)
        self.table = nn.Embedding(64, 32)
        self.out = nn.Linear(32, 64)
        self.out.weight = self.table.weight
        self.number = 0

    def _block(self, x: Tensor) -> Tensor:
        return x + nn.functional.dropout(torch.tanh(self.shared(x)), 0.1, self.training)

    def _convolutions(self, x: Tensor) -> Tensor:
        return self.norm(self.narrow(torch.relu(self.wide(x.transpose(1, 2))))).transpose(1, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self._block(self.frozen(self.words(tokens) + self.table(tokens)))
        if self.training:
            x = checkpoint(self._block, x, use_reentrant=True)
        x = checkpoint(self._convolutions, x, use_reentrant=False)
        if self.number % 2:
            x = self.branch(x)
        self.number += 1
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.out(self.last(self.recurrent(x)[0]))


def plan_of(model: nn.Module, ways: Sequence[tuple[str, bool]] = WAYS) -> dict[str, Any]:
    """One way after the other."""
    names = [*layers_of(model)]
    chosen = {name: ways[number % len(ways)] for number, name in enumerate(names)}
    return {
        "modes": {name: mode for name, (mode, _) in chosen.items()},
        "gradients_on_gpu": [name for name, (_, stays) in chosen.items() if stays],
    }


def adam(model: nn.Module) -> Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def on_host(optimizer: Optimizer) -> Callable[..., None]:
    """Has a plain optimizer update on the host, as its arithmetic may differ from a GPU's."""
    homes: dict[Tensor, Any] = {}

    def give(host: bool) -> None:
        for group in optimizer.param_groups:
            for each in group["params"]:
                grad, each.grad = each.grad, None
                device = "cpu" if host else homes.setdefault(each, each.device)
                each.data = each.data.to(device)
                each.grad = None if grad is None else grad.to(device)
                optimizer.state[each].update({k: v.cpu() for k, v in optimizer.state[each].items()})

    give(host=False)
    optimizer.register_step_pre_hook(lambda *_: give(host=True))
    optimizer.register_step_post_hook(lambda *_: give(host=False))
    return give


def trained(
    device: str,
    ways: Sequence[tuple[str, bool]] | None,
    *,
    steps: int = 4,
    context: Callable[[], Any] = nullcontext,
) -> list[Any]:
    """All results of a training loop with what such loops have."""
    torch.manual_seed(0)
    model = Odd().to(device)
    optimizer = adam(model)
    if ways is None:
        on_host(optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    if ways is not None:
        MemFerry(model, optimizer, plan=plan_of(model, ways))
    tokens = torch.randint(64, (steps, 2, 4, 16)).to(device)
    found: list[Any] = []
    for batches in tokens:
        for batch in batches:
            with context():
                loss = nn.functional.cross_entropy(model(batch).flatten(0, 1), batch.flatten())
            loss.backward()
            found.append(loss.detach())
        found.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5))
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            found.append(model(batches[0]))
        model.train()
    return [*found, *states(model, optimizer)]


def states(model: nn.Module, optimizer: Optimizer) -> list[Any]:
    state = optimizer.state_dict()["state"]
    return [
        *model.state_dict().values(),
        *(v for key in sorted(state) for v in state[key].values()),
    ]


def same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a.cpu(), b.cpu()) for a, b in zip(one, other, strict=True)
    )


@on_every_device
@pytest.mark.parametrize("ways", [[each] for each in WAYS] + [WAYS, WAYS[::-1]], ids=str)
def test_results_are_those_of_plain_training(device: str, ways: Any) -> None:
    assert same(trained(device, ways), trained(device, None))


@on_every_device
def test_autocast(device: str) -> None:
    def context() -> Any:
        return torch.autocast(device, torch.bfloat16)

    assert same(trained(device, WAYS, context=context), trained(device, None, context=context))


class Late(memferry._Copies):
    """Copies when they are waited for."""

    def __init__(self, device: Any) -> None:
        super().__init__(device)
        self.saves: list[Any] = []

    def load(self, target: Tensor, source: Tensor) -> Any:
        target.fill_(255)
        return target, source

    def wait(self, loaded: Any) -> None:
        super().load(*loaded)

    def save(self, target: Tensor, source: Tensor) -> None:
        target.fill_(torch.nan)
        self.saves.append((target, source))

    def settle(self) -> None:
        for each in self.saves:
            super().save(*each)
        self.saves.clear()


def test_copies_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memferry, "_Copies", Late)
    assert same(trained("cpu", WAYS), trained("cpu", None))


class Scale(nn.Module):
    """Unlike a Linear, which saves a view of its weight, this saves the weight itself."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


@pytest.mark.parametrize("kind", [Scale, lambda: nn.Linear(1, 1, bias=False)])
@pytest.mark.parametrize(
    ("mode", "output", "gradient", "again"),
    [("GFGB", 24, 8, 2 * 24 * 8), ("DHA", 12, 4, 2 * 12 * 4), ("DFGB", 12, 8, 2 * 24 * 8)],
)
def test_which_memory_is_read_in_each_pass(
    kind: Any, mode: str, output: int, gradient: int, again: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1 times 3 times 4, where copies are twice what they should be; then the square of that, which
    is computed again in the backward pass."""

    def double(self: Any, target: Tensor, source: Tensor) -> bool:
        target.view(torch.float32).copy_(2 * source.view(torch.float32))
        return True

    monkeypatch.setattr(memferry._Copies, "load", double)
    model = nn.Sequential(kind(), kind())
    with torch.no_grad():
        model[0].weight.fill_(3)
        model[1].weight.fill_(4)
    plan = {"modes": {"0": "DHA", "1": mode}, "gradients_on_gpu": []}
    ferry = MemFerry(model, adam(model), plan=plan)
    found = model(torch.ones(1, 1))
    found.sum().backward()
    assert (found.item(), model[0].weight.grad.item()) == (output, gradient)
    model.zero_grad()
    checkpoint(lambda x: model(x).square(), torch.ones(1, 1), use_reentrant=False).sum().backward()
    assert model[0].weight.grad.item() == again
    assert ferry.report()["to_gpu_bytes"] == (mode != "DHA") * 2 * 256
    assert model[1].weight.item() == 4


def small() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Embedding(16, 64), nn.Linear(64, 64), nn.Linear(64, 16))


SMALL = {"modes": {"0": "DHA", "1": "GFGB", "2": "DFGB"}, "gradients_on_gpu": ["1", "2"]}
TOKENS = torch.arange(16)


def stepped(model: Any, optimizer: Any, steps: int = 1) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(TOKENS.to(model[1].weight.device)).square().sum().backward()
        optimizer.step()


@on_every_device
def test_what_a_plan_moves(device: str) -> None:
    """Parameters begin at whole 256 bytes."""
    model = small().to(device)
    ferry = MemFerry(model, adam(model), plan=SMALL)
    model(TOKENS.to(device)).sum().backward()
    hidden, out = 64 * 64 * 4 + 64 * 4, 64 * 16 * 4 + 256
    begins = [each.grad.data_ptr() for each in model.parameters()]
    assert [each - begins[0] for each in begins] == [0, 4096, 20480, 20736, 24832]
    assert ferry.counts == {
        "0": {"written": 16 * 64 * 4},
        "1": {"to_gpu": hidden, "to_host": hidden},
        "2": {"to_gpu": out, "to_host": 64 * 16 * 4 + 16 * 4},
    }
    with torch.no_grad():
        model(TOKENS.to(device))
    report = ferry.report()
    assert report["to_gpu_bytes"] == 2 * hidden + out
    assert report["peak_bytes"] == report["budget_bytes"] == hidden + out
    assert report["host_bytes"] == 2 * (16 * 64 * 4 + hidden + out)
    assert report["layers"]["0"] == {
        "mode": "DHA", "gradients": "written",
        "to_gpu_bytes": 0, "to_host_bytes": 0, "written_bytes": 4096,
    }  # fmt: skip
    assert re.search(rf"^to gpu +{2 * hidden + out:,} bytes$", str(ferry), re.M)


def test_parameters_stay_laid_out_as_they_were() -> None:
    """As products may be rounded otherwise."""
    model = nn.Sequential(
        nn.Linear(64, 4), nn.Conv2d(4, 4, 3).to(memory_format=torch.channels_last)
    )
    model[0].weight = nn.Parameter(torch.ones(4, 128)[:, ::2])
    before = [(each.stride(), each.tolist()) for each in model.parameters()]
    MemFerry(model, adam(model), plan=plan_of(model))
    assert before == [(each.stride(), each.tolist()) for each in model.parameters()]
    assert before[0][0] == (128, 2)


def test_copies_are_in_the_order_of_their_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """GFGB's from the first layer on, then DFGB's from the last."""
    found: list[int] = []

    def load(self: Any, target: Tensor, source: Tensor) -> bool:
        found.append(source.nbytes // 4096)
        return True

    monkeypatch.setattr(memferry._Copies, "load", load)
    model = nn.Sequential(*(nn.Linear(32 * n, 32 * n + 32, bias=False) for n in (1, 2, 3, 4)))
    modes = zip("0123", ("DFGB", "GFGB", "DFGB", "GFGB"), strict=True)
    MemFerry(model, adam(model), plan={"modes": dict(modes), "gradients_on_gpu": []})
    model(torch.ones(1, 32))
    assert found == [2 * 3, 4 * 5, 3 * 4, 1 * 2]


def test_a_tied_table_belongs_to_the_last_layer_of_the_plan() -> None:
    for first, last in "01", "10":
        model = nn.Sequential(nn.Embedding(16, 64), nn.Linear(64, 16, bias=False))
        model[1].weight = model[0].weight
        plan = {"modes": {first: "GFGB", last: "GFGB"}, "gradients_on_gpu": [last]}
        ferry = MemFerry(model, adam(model), plan=plan)
        model(TOKENS).sum().backward()
        assert ferry.counts == {first: {"to_gpu": 0}, last: {"to_gpu": 4096, "to_host": 4096}}


@on_every_device
def test_a_layer_may_be_called_beside_the_model(device: str) -> None:
    found: list[Tensor] = []
    for by_plan in False, True:
        model = small().to(device)
        on_host(optimizer := adam(model))
        if by_plan:
            model = small()
            ferry = MemFerry(model, optimizer := adam(model), plan=SMALL, device=device)
        for _ in range(2):
            found.append(model[1](torch.ones(1, 64, device=device)))
            found[-1].sum().backward()
            optimizer.step()
    assert ferry.counts["1"]["to_gpu"] == 2 * (64 * 64 * 4 + 64 * 4)
    assert same(found[:2], found[2:])


@on_every_device
def test_save_and_resume_by_plain_training_and_back(device: str) -> None:
    saved = io.BytesIO()
    found = []
    for ferried in (False, False), (True, False), (False, True), (True, True):
        for number, by_plan in enumerate(ferried):
            model = small()
            optimizer = adam(model)
            if by_plan:
                MemFerry(model, optimizer, plan=SMALL, device=device)
            else:
                model.to(device)
                on_host(optimizer)
            if number:
                saved.seek(0)
                before = torch.load(saved)
                model.load_state_dict(before[0])
                optimizer.load_state_dict(before[1])
            stepped(model, optimizer, 2)
            saved = io.BytesIO()
            torch.save((model.state_dict(), optimizer.state_dict()), saved)
        found.append(states(model, optimizer))
    assert all(same(each, found[0]) for each in found[1:])


@on_every_device
def test_an_optimizer_that_has_a_state_already(device: str) -> None:
    found = []
    for by_plan in False, True:
        model = small().to(device)
        optimizer = adam(model)
        on_host(optimizer)
        stepped(model, optimizer)
        if by_plan:
            for each in optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks:
                each.clear()  # on_host
            model(TOKENS.to(device)).sum().backward()
            MemFerry(model, optimizer, plan=SMALL)
        else:
            model(TOKENS.to(device)).sum().backward()
        optimizer.step()
        found.append(states(model, optimizer))
    assert same(*found)


def closed(device: str, *, by_plan: bool) -> list[Any]:
    """Two models and their optimizers, which call closures."""
    models = [small().to(device) for _ in range(2)]
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.01, momentum=0.9) for each in models]
    if by_plan:
        for model, optimizer in zip(models, optimizers, strict=True):
            MemFerry(model, optimizer, plan=SMALL)
    schedulers = [torch.optim.lr_scheduler.StepLR(each, 1, 0.5) for each in optimizers]

    def closure() -> Tensor:
        for each in optimizers:
            each.zero_grad()
        loss = models[0](models[1](TOKENS.to(device)).argmax(1)).square().sum()
        loss = loss + models[1](TOKENS.to(device)).square().sum()
        loss.backward()
        return loss

    losses: list[Tensor] = []
    for optimizer, scheduler in [*zip(optimizers, schedulers, strict=True)] * 2:
        losses.append(optimizer.step(closure).detach())
        scheduler.step()
    pairs = zip(models, optimizers, strict=True)
    return [*losses, *(each for pair in pairs for each in states(*pair))]


@on_every_device
def test_two_models_and_steps_with_closures(device: str) -> None:
    found, wanted = closed(device, by_plan=True), closed(device, by_plan=False)
    if device == "cpu":
        assert same(found, wanted)
    for one, other in zip(found, wanted, strict=True):  # a GPU's update may be rounded otherwise
        torch.testing.assert_close(one.cpu(), other.cpu())


class Failure(Exception):
    pass


@on_every_device
@pytest.mark.parametrize("where", ["forward", "backward", "step"])
def test_training_goes_on_after_an_exception(device: str, where: str) -> None:
    def fail(*_: Any) -> None:
        raise Failure

    found = []
    give: Any = None
    for by_plan in False, True:
        model = small().to(device)
        optimizer = adam(model)
        if by_plan:
            MemFerry(model, optimizer, plan=SMALL)
        else:
            give = on_host(optimizer)
        stepped(model, optimizer)
        if where == "forward":
            hook: Any = model[1].register_forward_hook(fail)
        elif where == "backward":
            hook = model[1].bias.register_hook(fail)
        else:
            hook = optimizer.register_step_pre_hook(fail)
        with pytest.raises(Failure):
            stepped(model, optimizer)
        hook.remove()
        if not by_plan:
            give(host=False)
        with torch.no_grad():
            for each in model.parameters():
                each.mul_(0.5)
        assert model[1].weight.device.type == device
        stepped(model, optimizer)
        found.append(states(model, optimizer))
    assert same(*found)


def test_all_memory_is_free_when_the_model_is_gone() -> None:
    model = small()
    optimizer = adam(model)
    ferry = weakref.ref(MemFerry(model, optimizer, plan=SMALL))
    stepped(model, optimizer)
    gc.collect()
    assert ferry() is not None
    del model, optimizer
    gc.collect()
    assert ferry() is None


def test_a_backward_pass_behind_a_step_is_refused_as_ever() -> None:
    for plan in SMALL, None:
        model = small()
        optimizer = adam(model)
        if plan:
            MemFerry(model, optimizer, plan=plan)
        loss = model(TOKENS).sum()
        stepped(model, optimizer)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_a_hook_that_returns_something_is_refused_by_name() -> None:
    model = small()
    model[1].bias.register_post_accumulate_grad_hook(lambda each: each.grad.clamp_(-1, 1))
    MemFerry(model, adam(model), plan=SMALL)
    with pytest.raises(RuntimeError, match=r"hook\(\) returned a value"):
        model(TOKENS).sum().backward()


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_derivatives_of_functions() -> None:
    def derivatives(model: nn.Module) -> list[Any]:
        given = {name: each.detach() for name, each in model.named_parameters()}

        def loss(parameters: Any, tokens: Any) -> Any:
            return torch.func.functional_call(model, parameters, tokens).square().mean()

        slopes = torch.func.vmap(torch.func.grad(loss), (None, 0))(given, TOKENS.view(-1, 1))
        along = {name: torch.ones_like(each) for name, each in given.items()}
        both = torch.func.jvp(lambda each: loss(each, TOKENS), (given,), (along,))
        return [*slopes.values(), *both]

    plain, model = small(), small()
    theirs, mine = adam(plain), adam(model)
    MemFerry(model, mine, plan=SMALL)
    for _ in range(3):
        stepped(plain, theirs)
        stepped(model, mine)
        assert all(map(torch.equal, derivatives(plain), derivatives(model)))


def test_what_layers_save_goes_to_hooks_around_them() -> None:
    model = small()
    MemFerry(model, adam(model), plan=SMALL)
    seen: list[Any] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: seen.append(x.shape), lambda x: x):
        model(TOKENS)
    assert seen == [(16,), (16, 64), (16, 64)]


def test_bad_input(tmp_path: Path) -> None:
    def refused(match: str, model: Any = None, optimizer: Any = None, **changes: Any) -> None:
        model = model or small()
        before = [each.data_ptr() for each in model.parameters()]
        with pytest.raises(InvalidArgumentError, match=match):
            MemFerry(model, optimizer or adam(model), **{"plan": SMALL, **changes})
        assert before == [each.data_ptr() for each in model.parameters()]

    modes: Any = SMALL["modes"]
    refused("has no mode for 0, 2: ", plan=SMALL | {"modes": {"1": "DHA"}, "gradients_on_gpu": []})
    refused(
        "layer of the plan is 'x': .*one of 0, 1, 2", plan=SMALL | {"modes": modes | {"x": "DHA"}}
    )
    refused("layer of the plan is 'y'", plan=SMALL | {"gradients_on_gpu": ["y"]})
    refused("mode of '1' is 'GPU': .*GFGB, DHA, DFGB", plan=SMALL | {"modes": modes | {"1": "GPU"}})
    refused("with modes and gradients_on_gpu", plan={"modes": {}})
    refused("with modes and gradients_on_gpu", plan={"results": [SMALL]})
    refused("budget is 20991.* take 20992", budget=20991)
    refused("2 of the optimizer's 2 parameters", optimizer=adam(nn.Linear(2, 2)))
    refused("device's type is 'meta': expected one of cpu, cuda", device="meta")
    refused("'weight' is of the whole model", model=nn.Linear(2, 2))
    model = small()
    model[1].to("meta")
    refused("1.weight is on meta, without memory", model=model)
    model = nn.Sequential(nn.Embedding(4, 4, sparse=True))
    plan = {"modes": {"0": "GFGB"}, "gradients_on_gpu": []}
    MemFerry(model, torch.optim.SparseAdam(model.parameters()), plan=plan)
    with pytest.raises(InvalidArgumentError, match=r"'0.weight' is torch.sparse_coo: expected a"):
        model(TOKENS[:4]).sum().backward()
    (tmp_path / "plan.json").write_text(json.dumps({"results": SMALL, "files": []}))
    model = small()
    MemFerry(model, optimizer := adam(model), plan=tmp_path / "plan.json", budget=20992)
    model[0].weight.data = torch.zeros(16, 64)
    for act in (lambda: model(TOKENS), optimizer.step):
        with pytest.raises(RuntimeError, match=r"'0.weight' was given other memory"):
            act()


def shared(kind: str) -> nn.Sequential:
    """A model whose layers have memory in common, without having one Parameter."""
    torch.manual_seed(0)
    first, second = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)
    weight = first.weight.detach()
    flat = torch.randn(600)
    if kind == "buffer":
        second.register_buffer("other", weight[3])
    elif kind == "flat buffer":
        first.weight, second.weight = (
            nn.Parameter(flat[begin : begin + 256].view(16, 16)) for begin in (0, 256)
        )
    elif kind == "overlap":
        first.weight, second.weight = (
            nn.Parameter(flat[begin : begin + 256].view(16, 16)) for begin in (0, 100)
        )
    elif kind == "numpy":
        second.weight = nn.Parameter(torch.from_numpy(weight.numpy().T))
    else:
        second.weight = nn.Parameter(weight.t() if kind == "transposed" else weight)
    return nn.Sequential(first, second)


@pytest.mark.parametrize(
    "kind",
    ["same", "transposed", "overlap", "flat buffer", "buffer", "numpy"],
)
def test_parameters_that_share_memory_are_refused(kind: str) -> None:
    model = shared(kind)
    plan = {"modes": {"0": "GFGB", "1": "GFGB"}, "gradients_on_gpu": []}
    before = [each.data_ptr() for each in model.parameters()]
    with pytest.raises(InvalidArgumentError, match=r"[01]\.\w+ shares memory with [01]"):
        MemFerry(model, adam(model), plan=plan)
    assert before == [each.data_ptr() for each in model.parameters()]


@pytest.mark.parametrize("kind", ["state dict", "another layer", "attribute"])
def test_memory_that_is_shared_with_what_is_outside_the_model_is_told(kind: str) -> None:
    model, plan = small(), SMALL | {"modes": dict.fromkeys("012", "GFGB")}
    keep: Any = {
        "state dict": lambda: model.state_dict(),
        "another layer": lambda: nn.Parameter(model[1].weight.data),
        "attribute": lambda: model[1].weight.detach()[3],
    }
    kept = keep[kind]()
    with pytest.warns(UserWarning, match=r"[01]\.weight.*: memory is shared with tensors outside"):
        MemFerry(model, adam(model), plan=plan)
    del kept
    model = small()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MemFerry(model, adam(model), plan=plan)


def test_weights_of_a_recurrent_layer_may_lie_one_behind_the_other() -> None:
    model = nn.Sequential(nn.LSTM(8, 8))
    flat = torch.randn(1000)
    for number, each in enumerate(model.parameters()):
        each.data = flat[256 * number :][: each.numel()].view(each.shape)
    MemFerry(model, adam(model), plan={"modes": {"0": "GFGB"}, "gradients_on_gpu": []})


@on_every_device
def test_layers_called_beside_the_model_have_parameters_as_they_are(device: str) -> None:
    model = small().to(device)
    MemFerry(model, adam(model), plan=SMALL | {"modes": dict.fromkeys("012", "GFGB")})
    model(TOKENS.to(device))
    x = torch.ones(4, 64, device=device)
    for act in (lambda weight: weight.mul_(2), lambda weight: weight.data.add_(1)):
        with torch.no_grad():
            act(model[1].weight)
        wanted = nn.functional.linear(x, model[1].weight, model[1].bias)
        assert torch.equal(model[1](x), wanted)
        assert torch.equal(model.forward(TOKENS.to(device)), model(TOKENS.to(device)))
