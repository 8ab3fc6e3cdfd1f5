"""Training with parameters in a store that is interrupted, and what a program changes by hand."""

from __future__ import annotations

import copy
import itertools
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[torch]'")

from hw_tests.driver.torch.test_optimizer import bits
from hw_tests.driver.torch.test_step import Interrupted, interrupted
from sw_driver.axdimm import Axdimm, BackendOptions
from sw_driver.torch import AdamW
from sw_driver.torch.offloading import Offloading

APART = 53
"""Lines between the moments of interrupts that are tried."""
PARTS = ("torch/offloading/optimizer", "torch/offloading/policy", "torch/offloading/store")
RULES = {"rules": ("adamw",)}


@contextmanager
def training() -> Iterator[tuple[Any, Any, Callable[[], None]]]:
    """A model in a store, its optimizer, and a step; two have been made."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(*(torch.nn.Linear(6, 6) for _ in range(4)))
    inputs = torch.randn(4, 6)
    with (
        Axdimm("golden:tiny", options=BackendOptions(settings=RULES)) as device,
        Offloading(device, AdamW, lr=0.1) as platform,
    ):
        model = platform.take(net)
        optimizer = platform.optimizer()

        def step() -> None:
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()

        step()
        step()
        yield model, optimizer, step


def content(model: Any, optimizer: Any) -> list[bytes]:
    states = optimizer.state_dict()["state"]
    tensors = (value for number in sorted(states) for value in states[number].values())
    return bits([*model.state_dict().values(), *tensors])


def test_what_is_loaded_after_an_interrupt_is_all_there_is() -> None:
    with training() as (model, optimizer, step):
        step()
        wanted = content(model, optimizer)
    orders = itertools.cycle([lambda both: both, reversed])
    for line, order in zip(itertools.count(1, APART), orders, strict=False):
        with training() as (model, optimizer, step):
            saved = copy.deepcopy([each.state_dict() for each in (model, optimizer)])
            try:
                with interrupted(signal.SIGINT, line, PARTS):
                    step()
            except Interrupted:
                for each, state in order(list(zip((model, optimizer), saved, strict=True))):
                    each.load_state_dict(state)
                step()
                assert content(model, optimizer) == wanted
            else:
                break
    assert line > 10 * APART


def test_a_step_that_is_interrupted_says_what_it_has_updated(monkeypatch: Any) -> None:
    with training() as (model, optimizer, step):
        update, count = optimizer._update, itertools.count()

        def interrupting(*args: Any) -> None:
            if next(count) == 3:
                raise Interrupted
            update(*args)

        monkeypatch.setattr(optimizer, "_update", interrupting)
        before = {name: each.detach().clone() for name, each in model.named_parameters()}
        with pytest.raises(Interrupted) as caught:
            step()
        updated = {
            name: not torch.equal(before[name], each) for name, each in model.named_parameters()
        }
        assert [*updated.values()] == 3 * [True] + 5 * [False]
        named = [", ".join(name for name in before if updated[name] == is_in) for is_in in (1, 0)]
        assert caught.value.__notes__ == [f"Updated: {named[0]}", f"not: {named[1]}"]
        step()  # goes on, as PyTorch does


def test_groups_may_be_changed_by_hand() -> None:
    with training() as (model, optimizer, step):
        optimizer.param_groups[0]["params"].pop(1)
        group = {**optimizer.param_groups[0], "params": [model[0].bias], "lr": 0.0}
        optimizer.param_groups.append(group)
        before = model[0].bias.detach().clone(), model[0].weight.detach().clone()
        step()
        assert torch.equal(model[0].bias, before[0])
        assert not torch.equal(model[0].weight, before[1])
