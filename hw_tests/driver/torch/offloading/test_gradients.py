"""Habits with gradients and state under a store: PyTorch's bits, or a refusal by name."""

from __future__ import annotations

import copy
import io
import re
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
from sw_driver.torch.offloading import Offloading, TensorStore

RULES = BackendOptions(settings={"rules": ("adamw", "sum_squares", "fill", "accumulate")})


@pytest.fixture(scope="module")
def device() -> Iterator[Axdimm]:
    with Axdimm("golden:tiny", options=RULES) as opened:
        yield opened


def new_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))


@contextmanager
def offloaded(device: Axdimm, before: Any = None, **options: Any) -> Iterator[tuple[Any, Any]]:
    with TensorStore(device) as store, Offloading(store, AdamW, lr=1e-2, **options) as platform:
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


READING: dict[str, tuple[Between, str]] = {
    "clip_grad_norm_": (of_all(lambda these: clip_grad_norm_(these, 1.0)), "clip_grad_norm_"),
    "clip_grad_norm_, foreach": (
        of_all(lambda these: clip_grad_norm_(these, 1.0, foreach=True)), "clip_grad_norm_",
    ),
    "clip_grad_norm_, inf": (
        of_all(lambda these: clip_grad_norm_(these, 1.0, float("inf"))), "clip_grad_norm_",
    ),
    "clip_grad_value_": (of_all(lambda these: clip_grad_value_(these, 1.0)), "clip_grad_value_"),
    "get_total_norm": (
        of_all(lambda these: get_total_norm([each.grad for each in these])), "device",
    ),
    "norms of a list": (
        of_all(lambda these: torch._foreach_norm([each.grad for each in these])), "_foreach_norm",
    ),
    "parameters_to_vector": (
        of_all(lambda these: parameters_to_vector([each.grad for each in these])),
        "parameters_to_vector",
    ),
    "norm": (weight_of(lambda weight: weight.grad.norm()), "norm"),
    "linalg norm": (
        weight_of(lambda weight: torch.linalg.vector_norm(weight.grad)), "linalg_vector_norm",
    ),
    "scaled": (scaled, "mul_"),
    "added to": (added_to, "__iadd__|add_"),
    "divided out of place": (weight_of(lambda weight: weight.grad / 2), "div|truediv"),
    "noise": (weight_of(lambda weight: weight.grad.add_(torch.randn(8, 8))), "add_"),
    "zeroed": (weight_of(lambda weight: weight.grad.zero_()), "zero_"),
    "filled in part": (weight_of(lambda weight: weight.grad.__setitem__(0, 0)), "setitem"),
    "a row": (weight_of(lambda weight: weight.grad[0]), "getitem"),
    "isfinite": (weight_of(lambda weight: bool(weight.grad.isfinite().all())), "isfinite"),
    "isnan": (weight_of(lambda weight: bool(torch.isnan(weight.grad).any())), "isnan"),
    "its other name": (weight_of(lambda weight: weight._grad.mul_(0.5)), "mul_"),
    "data": (weight_of(lambda weight: weight.grad.data), "data"),
    "detach": (weight_of(lambda weight: weight.grad.detach()), "detach"),
    "clone": (weight_of(lambda weight: weight.grad.clone()), "clone"),
    "numpy": (weight_of(lambda weight: weight.grad.numpy()), "numpy"),
    "item": (weight_of(lambda weight: weight.grad[0, 0].item()), "getitem"),
    "printed": (weight_of(lambda weight: f"{weight.grad}"), "__format__|__repr__"),
    "tolist": (weight_of(lambda weight: weight.grad.tolist()), "tolist"),
    "deep copy": (weight_of(lambda weight: copy.deepcopy(weight.grad)), "deepcopy"),
    "saved": (weight_of(lambda weight: torch.save(weight.grad, io.BytesIO())), "save"),
    "an operator": (
        weight_of(lambda weight: torch.ops.aten.mul_.Scalar(weight.grad, 0.5)), r"mul_\.Scalar",
    ),
    "all-reduced": (weight_of(lambda weight: torch.stack([weight.grad, weight.grad])), "stack"),
    "GradScaler": (unscaled, "unscale_"),
    "another optimizer": (by_another_optimizer, "step"),
    "a part's zeros": (lambda model, _: model[0].zero_grad(set_to_none=False), "zero_grad"),
}  # fmt: skip
"""Habits with a gradient between ``backward()`` and ``step()``, and their names in refusals."""

STATES: dict[str, Between] = {
    "read": lambda model, optimizer: optimizer.state[model[0].weight].get("exp_avg"),
    "asked for": lambda model, optimizer: model[0].weight in optimizer.state,
    "got": lambda model, optimizer: optimizer.state.get(model[0].weight),
    "written": lambda model, optimizer: optimizer.state.update({model[0].weight: {}}),
    "forgotten": lambda model, optimizer: optimizer.state.pop(model[0].weight, None),
    "cleared": lambda _, optimizer: optimizer.state.clear(),
    "gone through": lambda _, optimizer: [*optimizer.state.items()],
    "counted": lambda _, optimizer: len(optimizer.state),
    "copied": lambda _, optimizer: dict(optimizer.state),
}
"""Habits with an optimizer's state."""


@pytest.mark.parametrize("habit", READING)
def test_what_reads_or_writes_a_gradient_has_the_bits_of_torch(habit: str, device: Axdimm) -> None:
    between, _ = READING[habit]
    for early in (True, False):
        check_bits(device, between, early_updates=early)


@pytest.mark.parametrize("habit", READING)
def test_what_uses_a_gradient_after_its_update_is_refused(habit: str, device: Axdimm) -> None:
    between, name = READING[habit]
    by_name = rf"^\.?_*({name})_*(\(\))? uses the gradient of [02]\.(weight|bias), which"
    with offloaded(device) as (model, optimizer):
        for reason in ("step() has used", "was updated when its gradient came"):
            backward(model)
            if reason.startswith("step"):
                optimizer.step()
            with pytest.raises(RuntimeError, match=f"{by_name} {re.escape(reason)}"):
                between(model, optimizer)
            if not reason.startswith("step"):
                optimizer.step()  # nothing was lost
            optimizer.zero_grad()
        backward(model)
        between(model, optimizer)  # no update runs early any more
        optimizer.step()


@pytest.mark.parametrize("habit", STATES)
def test_use_of_the_optimizers_state_is_refused(habit: str, device: Axdimm) -> None:
    with offloaded(device) as (model, optimizer):
        loop(model, optimizer, lambda *_: None)
        with pytest.raises(RuntimeError, match=r"optimizer\.state is empty.*\.state_dict\(\)"):
            STATES[habit](model, optimizer)
        wanted = optimizer.state_dict()
        optimizer.load_state_dict(wanted)
        for number, state in optimizer.state_dict()["state"].items():
            assert same([*state.values()], [*wanted["state"][number].values()])


def check_bits(device: Axdimm, between: Between, **options: Any) -> None:
    """Assert that training has the bits of the same optimizer on the module, without a store."""
    plain = new_model()
    wanted = loop(plain, AdamW(plain.parameters(), lr=1e-2, device=device), between)
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
    check_bits(device, OTHERS[habit], early_updates=False)


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
    results = []
    for early in (True, False):
        with offloaded(device, HOOKS[habit] if first else None, early_updates=early) as both:
            if not first:
                HOOKS[habit](both[0])
            loop(*both, lambda *_: None)
            results.append([*both[0].state_dict().values()])
    plain = new_model()
    HOOKS[habit](plain)
    loop(plain, AdamW(plain.parameters(), lr=1e-2, device=device), lambda *_: None)
    assert same(results, 2 * [[*plain.state_dict().values()]])


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


def test_a_hook_that_returns_something_is_refused_by_name(device: Axdimm) -> None:
    def before(model: Any) -> None:
        model[0].bias.register_post_accumulate_grad_hook(lambda each: each.grad.clamp_(-1, 1))

    with (
        offloaded(device, before) as (model, _),
        pytest.raises(RuntimeError, match=r"hook\(\) returned a value"),
    ):
        backward(model)


def test_parameters_that_are_swapped_are_refused_by_name(device: Axdimm) -> None:
    with offloaded(device) as (model, optimizer):
        torch.utils.swap_tensors(model[0].weight, nn.Parameter(torch.ones(8, 8)))
        backward(model)
        with pytest.raises(RuntimeError, match=r"0\.weight was given other memory"):
            optimizer.step()
    assert type(model[0].weight) is nn.Parameter


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


def test_steps_without_zero_grad_are_refused(device: Axdimm) -> None:
    with offloaded(device) as (model, optimizer):
        backward(model)
        optimizer.step()
        for use in (optimizer.step, lambda: backward(model)):
            with pytest.raises(RuntimeError, match=r"weight|bias.*zero_grad\(\) after each step"):
                use()
        saved = optimizer.state_dict()
        optimizer.load_state_dict(saved)
        with pytest.raises(RuntimeError, match=r"zero_grad\(\) after each step"):
            backward(model)
        optimizer.zero_grad()
        assert model[0].weight.grad is None
        backward(model)
        optimizer.step()
        for each in model.parameters():
            each.grad = None
        backward(model)
        with pytest.raises(
            RuntimeError, match=r"0\.weight\.grad = \.\.\. after 0\.weight was updated"
        ):
            model[0].weight.grad = None
        optimizer.step()


def test_options_that_change_between_backward_and_step(device: Axdimm) -> None:
    with offloaded(device, early_updates=False) as (model, optimizer):
        backward(model)
        optimizer.param_groups[0]["maximize"] = True
        with pytest.raises(RuntimeError, match=r"maximize of 0\.weight was changed between"):
            optimizer.step()


@pytest.mark.parametrize("call", ["step", "state_dict"])
def test_state_that_is_set(call: str, device: Axdimm) -> None:
    with offloaded(device) as (model, optimizer):
        assert len(optimizer.state) == 0
        assert dict(optimizer.state) == {}
        backward(model)
        optimizer.step()
        optimizer.state = defaultdict(dict)  # as programs forget momenta
        with pytest.raises(RuntimeError, match=r"optimizer\.state was set"):
            getattr(optimizer, call)()
        optimizer.load_state_dict({"state": {}, "param_groups": [
            {**optimizer.param_groups[0], "params": [0, 1, 2, 3]}
        ]})  # fmt: skip
        assert optimizer.state_dict()["state"] == {}


def test_what_is_left_behind(device: Axdimm) -> None:
    with offloaded(device) as (model, optimizer):
        loop(model, optimizer, lambda *_: None)
        kinds = {type(each) for each in copy.deepcopy([*model.parameters()])}
        assert kinds == {nn.Parameter}
    assert {type(each) for each in model.parameters()} == {nn.Parameter}
    backward(model)
    assert all(each.grad is not None for each in model.parameters())
