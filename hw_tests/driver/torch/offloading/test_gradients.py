"""Habits with gradients and state on a module: they have the bits of PyTorch."""

from __future__ import annotations

import copy
import io
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[torch]'")

from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, get_total_norm, parameters_to_vector

from sw_driver.axdimm import Axdimm, BackendOptions
from sw_driver.torch import AdamW
from sw_driver.torch.offloading import Offloading

RULES = BackendOptions(settings={"rules": ("adamw",)})


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Axdimm]:
    with Axdimm("golden:tiny", options=RULES) as opened:
        opened.RegisterStorage(tmp_path_factory.mktemp("nvme") / "nvme.img", capacity_bytes=1 << 20)
        yield opened


def new_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))


@contextmanager
def offloaded(device: Axdimm, before: Any = None, **options: Any) -> Iterator[tuple[Any, Any]]:
    options = {"lr": 1e-2, "capacity_bytes": 1024, "budget": 4096, **options}
    with Offloading(device, AdamW, **options) as platform:
        model = new_model()
        if before is not None:
            before(model)
        yield platform.take(model), platform.optimizer()


def loss_of(model: Any, number: int = 1) -> Any:
    return (3 * model(torch.ones(4, 8) * number)).square().mean()


def backward(model: Any, number: int = 1, **options: Any) -> None:
    loss_of(model, number).backward(**options)


Between = Callable[[Any, Any], Any]


def loop(model: Any, optimizer: Any, between: Between) -> list[Any]:
    """Train, with something done between ``backward()`` and ``step()``."""
    values = []
    for number in range(1, 4):
        optimizer.zero_grad()
        backward(model, number)
        values.append(between(model, optimizer))
        optimizer.step()
    return values


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return same(sorted(one.items()), sorted(other.items()))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor | np.ndarray):
        return torch.equal(torch.as_tensor(one), torch.as_tensor(other))
    return one == other


def scaled(model: Any, optimizer: Any) -> None:
    for each in model.parameters():
        each.grad.mul_(0.5)


def added_to(model: Any, optimizer: Any) -> None:
    model[0].weight.grad += 1


def put(model: Any, optimizer: Any) -> None:
    model[0].weight.grad = torch.ones(8, 8)


def unscaled(model: Any, optimizer: Any) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    scaler.scale(torch.ones(()))
    scaler.unscale_(optimizer)


def by_another_optimizer(model: Any, optimizer: Any) -> None:
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def weight_of(act: Callable[[Any], Any]) -> Between:
    return lambda model, _: act(model[0].weight)


def of_all(act: Callable[[Any], Any]) -> Between:
    return lambda model, _: act([*model.parameters()])


READING: dict[str, Between] = {
    "clip_grad_norm_": of_all(lambda these: clip_grad_norm_(these, 1.0)),
    "clip_grad_norm_, foreach": of_all(lambda these: clip_grad_norm_(these, 1.0, foreach=True)),
    "clip_grad_norm_, inf": of_all(lambda these: clip_grad_norm_(these, 1.0, float("inf"))),
    "clip_grad_value_": of_all(lambda these: clip_grad_value_(these, 1.0)),
    "get_total_norm": of_all(lambda these: get_total_norm([each.grad for each in these])),
    "norms of a list": of_all(lambda these: torch._foreach_norm([each.grad for each in these])),
    "parameters_to_vector": of_all(
        lambda these: parameters_to_vector([each.grad for each in these])
    ),
    "norm": weight_of(lambda weight: weight.grad.norm()),
    "linalg norm": weight_of(lambda weight: torch.linalg.vector_norm(weight.grad)),
    "scaled": scaled,
    "added to": added_to,
    "divided out of place": weight_of(lambda weight: weight.grad / 2),
    "noise": weight_of(lambda weight: weight.grad.add_(torch.randn(8, 8))),
    "zeroed": weight_of(lambda weight: weight.grad.zero_()),
    "filled in part": weight_of(lambda weight: weight.grad.__setitem__(0, 0)),
    "a row": weight_of(lambda weight: weight.grad[0]),
    "isfinite": weight_of(lambda weight: bool(weight.grad.isfinite().all())),
    "isnan": weight_of(lambda weight: bool(torch.isnan(weight.grad).any())),
    "its other name": weight_of(lambda weight: weight._grad.mul_(0.5)),
    "data": weight_of(lambda weight: weight.grad.data),
    "detach": weight_of(lambda weight: weight.grad.detach()),
    "clone": weight_of(lambda weight: weight.grad.clone()),
    "numpy": weight_of(lambda weight: weight.grad.numpy()),
    "item": weight_of(lambda weight: weight.grad[0, 0].item()),
    "printed": weight_of(lambda weight: f"{weight.grad}"),
    "tolist": weight_of(lambda weight: weight.grad.tolist()),
    "deep copy": weight_of(lambda weight: copy.deepcopy(weight.grad)),
    "saved": weight_of(lambda weight: torch.save(weight.grad, io.BytesIO())),
    "an operator": weight_of(lambda weight: torch.ops.aten.mul_.Scalar(weight.grad, 0.5)),
    "all-reduced": weight_of(lambda weight: torch.stack([weight.grad, weight.grad])),
    "GradScaler": unscaled,
    "another optimizer": by_another_optimizer,
    "a part's zeros": lambda model, _: model[0].zero_grad(set_to_none=False),
}  # fmt: skip
"""Habits with a gradient."""

STATES: dict[str, Between] = {
    "read": lambda model, optimizer: copy.deepcopy(optimizer.state[model[0].weight].get("exp_avg")),
    "asked for": lambda model, optimizer: model[0].weight in optimizer.state,
    "got": lambda model, optimizer: copy.deepcopy(optimizer.state.get(model[0].weight)),
    "scaled": lambda _, optimizer: [
        each["exp_avg"].mul_(0.5).sum() for each in optimizer.state.values()
    ],
    "set": lambda _, optimizer: [
        each.update(exp_avg_sq=torch.ones_like(each["exp_avg"]))
        for each in optimizer.state.values()
    ],
    "written": lambda model, optimizer: optimizer.state.update({model[0].weight: {}}),
    "forgotten": lambda model, optimizer: bool(optimizer.state.pop(model[0].weight, None)),
    "cleared": lambda _, optimizer: optimizer.state.clear(),
    "another": lambda _, optimizer: setattr(optimizer, "state", defaultdict(dict)),
    "gone through": lambda _, optimizer: [
        copy.deepcopy(each) for _, each in optimizer.state.items()
    ],
    "counted": lambda _, optimizer: len(optimizer.state),
    "copied": lambda _, optimizer: [*map(copy.deepcopy, dict(optimizer.state).values())],
}
"""Habits with an optimizer's state."""


@pytest.mark.parametrize("habit", READING)
def test_what_reads_or_writes_a_gradient_has_the_bits_of_torch(habit: str, device: Axdimm) -> None:
    check_bits(device, READING[habit])


@pytest.mark.parametrize("habit", READING)
def test_gradients_after_their_update_are_those_of_torch(habit: str, device: Axdimm) -> None:
    def stepped(model: Any, optimizer: Any) -> Any:
        optimizer.step()
        found = READING[habit](model, optimizer)
        backward(model)  # adds to them
        return found

    check_bits(device, stepped)


@pytest.mark.parametrize("habit", STATES)
def test_use_of_the_optimizers_state_has_the_result_of_torch(habit: str, device: Axdimm) -> None:
    check_bits(device, STATES[habit])


def check_bits(device: Axdimm, between: Between, **options: Any) -> None:
    """Assert that training has the bits of the same optimizer on the module, without a policy."""
    plain = new_model()
    with AdamW(plain.parameters(), lr=1e-2, device=device) as optimizer:
        wanted = loop(plain, optimizer, between)
    with offloaded(device, **options) as (model, optimizer):
        assert same(loop(model, optimizer, between), wanted)
        assert same([*model.state_dict().values()], [*plain.state_dict().values()])


def dropped(model: Any, optimizer: Any) -> None:
    model[0].weight.grad = None
    del model[2].bias.grad


def all_dropped(model: Any, optimizer: Any) -> None:
    for each in model.parameters():
        each.grad = None


def accumulated(model: Any, optimizer: Any) -> None:
    backward(model, 2)
    backward(model, 3)


def two_losses(model: Any, optimizer: Any) -> None:
    loss = loss_of(model)
    (2 * loss).backward(retain_graph=True)
    loss.backward()


def by_autograd(model: Any, optimizer: Any) -> Any:
    return [*torch.autograd.grad(loss_of(model, 2), [*model.parameters()])]


def penalized(model: Any, optimizer: Any) -> None:
    gradients = torch.autograd.grad(loss_of(model), [*model.parameters()], create_graph=True)
    sum(each.square().sum() for each in gradients).backward()


def averaged(model: Any, optimizer: Any) -> list[Any]:
    return [each.detach().clone().lerp(torch.ones(()), 0.1) for each in model.parameters()]


def toggled(model: Any, optimizer: Any) -> None:
    model[0].weight.requires_grad_(False)
    backward(model, 2)
    model[0].weight.requires_grad_(True)
    backward(model, 3)


def written(model: Any, optimizer: Any) -> None:
    with torch.no_grad():
        model[0].weight.mul_(0.9)


def differentiated(model: Any, optimizer: Any) -> None:
    optimizer.zero_grad()
    backward(model)
    backward(model, create_graph=True)
    (loss_of(model) + sum(each.grad.norm() for each in model.parameters())).backward()


def zeros_and_nothing(model: Any, optimizer: Any) -> None:
    optimizer.zero_grad(set_to_none=False)
    assert not model[0].weight.grad.any()
    backward(model, inputs=[model[2].weight])


def accumulated_and_read(model: Any, optimizer: Any) -> Any:
    read = [model[0].weight.grad.clone()]
    backward(model, 2)
    read.append(model[0].weight.grad.clone())
    backward(model, 3)
    return [*read, model[0].weight.grad]


def dropped_and_made_again(model: Any, optimizer: Any) -> None:
    dropped(model, optimizer)
    backward(model)


OTHERS: dict[str, Between] = {
    "nothing": lambda *_: None,
    "put": put,
    "differentiated": differentiated,
    "zeros": lambda _, optimizer: optimizer.zero_grad(set_to_none=False),
    "zeros and some": zeros_and_nothing,
    "the model's zeros": lambda model, _: model.zero_grad(set_to_none=False),
    "accumulated and read": accumulated_and_read,
    "dropped and made again": dropped_and_made_again,
    "is there one": lambda model, _: [each.grad is None for each in model.parameters()],
    "dropped": dropped,
    "all dropped": all_dropped,
    "zero_grad": lambda _, optimizer: optimizer.zero_grad(),
    "the model's zero_grad": lambda model, _: model.zero_grad(),
    "a part's zero_grad": lambda model, _: model[0].zero_grad(),
    "zero_grad by a module around": lambda model, _: nn.ModuleList([model]).zero_grad(),
    "accumulated": accumulated,
    "two losses": two_losses,
    "autograd.grad": by_autograd,
    "gradient penalty": penalized,
    "of some": lambda model, _: backward(model, inputs=[model[0].weight]),
    "graph of the gradients": lambda model, _: backward(model, create_graph=True),
    "averaged": averaged,
    "requires_grad": toggled,
    "parameters written": written,
    "rates": lambda _, optimizer: optimizer.param_groups[0].update(lr=0.5),
}
"""Habits between ``backward()`` and ``step()`` that have PyTorch's result."""


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
@pytest.mark.parametrize("habit", OTHERS)
def test_other_habits_have_the_bits_of_torch(habit: str, device: Axdimm) -> None:
    check_bits(device, OTHERS[habit])


def halved(gradient: Any) -> Any:
    return gradient / 2


def halve(parameter: Any) -> None:
    parameter.grad.mul_(0.5)


def replace(parameter: Any) -> None:
    parameter.grad = parameter.grad.clamp(-0.1, 0.1)


def drop(parameter: Any) -> None:
    parameter.grad = None


HOOKS: dict[str, Callable[[Any], Any]] = {
    "hook": lambda model: model[0].weight.register_hook(halved),
    "hook after accumulation": lambda model: [
        model[0].weight.register_post_accumulate_grad_hook(hook) for hook in (halve, replace)
    ],
    "hook that drops": lambda model: model[2].bias.register_post_accumulate_grad_hook(drop),
    "hook of a module": lambda model: model[2].register_full_backward_hook(
        lambda _, given, came: (given[0] / 2,)
    ),
}


@pytest.mark.parametrize("first", [True, False], ids=["before take", "after optimizer"])
@pytest.mark.parametrize("habit", HOOKS)
def test_hooks_change_gradients_as_they_come(habit: str, first: bool, device: Axdimm) -> None:
    with offloaded(device, HOOKS[habit] if first else None) as both:
        if not first:
            HOOKS[habit](both[0])
        loop(*both, lambda *_: None)
        found = [*both[0].state_dict().values()]
    plain = new_model()
    HOOKS[habit](plain)
    loop(plain, AdamW(plain.parameters(), lr=1e-2, device=device), lambda *_: None)
    assert same(found, [*plain.state_dict().values()])


@pytest.mark.parametrize("first", [True, False], ids=["before take", "after optimizer"])
def test_hooks_see_the_sum_of_gradients(first: bool, device: Axdimm) -> None:
    habit, plain = HOOKS["hook after accumulation"], new_model()
    habit(plain)
    loop(plain, AdamW(plain.parameters(), lr=1e-2, device=device), accumulated)
    with offloaded(device, habit if first else None) as (model, optimizer):
        if not first:
            habit(model)
        loop(model, optimizer, accumulated)
        assert same([*model.state_dict().values()], [*plain.state_dict().values()])


def test_hooks_that_come_late_see_gradients_before_their_update(device: Axdimm) -> None:
    def train(model: Any, optimizer: Any) -> list[Any]:
        loop(model, optimizer, lambda *_: None)
        HOOKS["hook after accumulation"](model)
        loop(model, optimizer, lambda *_: None)
        return [*model.state_dict().values()]

    plain = new_model()
    wanted = train(plain, AdamW(plain.parameters(), lr=1e-2, device=device))
    with offloaded(device) as both:
        assert same(train(*both), wanted)


def test_gradients_that_are_to_be_maximized_come_back_as_they_were(device: Axdimm) -> None:
    plain = new_model()
    theirs = AdamW(plain.parameters(), lr=1e-2, maximize=True, device=device)
    wanted = loop(plain, theirs, lambda model, _: model[0].weight.grad.mul_(0.5).sum())
    with offloaded(device, maximize=True) as (model, optimizer):
        found = loop(model, optimizer, lambda model, _: model[0].weight.grad.mul_(0.5).sum())
        assert same(found, wanted)
        assert same([*model.state_dict().values()], [*plain.state_dict().values()])


def test_hooks_of_modules_read_gradients_of_parameters(device: Axdimm) -> None:
    norms: list[Any] = []
    with offloaded(device) as (model, optimizer):
        read = model[1].register_full_backward_hook(
            lambda *_: norms.append(model[2].weight.grad.norm())
        )
        loop(model, optimizer, lambda model, _: norms.append(model[2].weight.grad.norm()))
        read.remove()
    assert norms[::2] == norms[1::2]
    assert len({*map(float, norms)}) == 3


def test_steps_with_gradients_that_are_not_finite_are_skipped(device: Axdimm) -> None:
    with offloaded(device, skip_not_finite=True) as (model, optimizer):
        before = [each.detach().clone() for each in model.parameters()]
        backward(model)
        model[0].weight.grad[0] = float("nan")
        optimizer.step()
        assert same([*map(torch.clone, model.parameters())], before)
        assert not optimizer.state


def test_a_state_dict_is_a_copy_under_names_of_torch(device: Axdimm) -> None:
    with offloaded(device) as (model, optimizer):
        loop(model, optimizer, lambda *_: None)
        saved, kept = optimizer.state_dict(), copy.deepcopy(model.state_dict())
        theirs = torch.optim.AdamW(new_model().parameters())
        theirs.load_state_dict(copy.deepcopy(saved))
        loop(model, optimizer, lambda *_: None)
        assert not same([*model.state_dict().values()], [*kept.values()])
        model.load_state_dict(kept)
        optimizer.load_state_dict(saved)
        for number, state in optimizer.state_dict()["state"].items():
            assert same([*state.values()], [*theirs.state_dict()["state"][number].values()])


def test_what_is_left_behind(device: Axdimm) -> None:
    with offloaded(device) as (model, optimizer):
        loop(model, optimizer, lambda *_: None)
        kinds = {type(each) for each in copy.deepcopy([*model.parameters()])}
        assert kinds == {nn.Parameter}
    before = [each.grad.clone() for each in model.parameters()]
    backward(model)
    assert not any(map(torch.equal, before, (each.grad for each in model.parameters())))
