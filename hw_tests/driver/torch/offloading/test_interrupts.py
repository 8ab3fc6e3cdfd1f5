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
from sw_driver.torch.offloading import Offloading, TensorStore

APART = 53
"""Lines between the moments of interrupts that are tried."""
PARTS = ("torch/offloading/optimizer", "torch/offloading/channel", "torch/offloading/store")
RULES = {"rules": ("adamw", "sgd", "sum_squares", "fill", "accumulate")}


@contextmanager
def training() -> Iterator[tuple[Any, Any, Callable[[], None]]]:
    """A model in a store, its optimizer, and a step; two have been made."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(*(torch.nn.Linear(6, 6) for _ in range(4)))
    inputs = torch.randn(4, 6)
    with (
        Axdimm("golden:tiny", options=BackendOptions(settings=RULES)) as device,
        TensorStore(device) as store,
        Offloading(store, AdamW, lr=0.1) as platform,
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
        optimizer._early, update, count = False, optimizer._update, itertools.count()

        def interrupting(*args: Any) -> None:
            if next(count) == 3:
                raise Interrupted
            update(*args)

        monkeypatch.setattr(optimizer, "_update", interrupting)
        before = dict(model.named_parameters())
        before = {name: each.detach().clone() for name, each in before.items()}
        with pytest.raises(Interrupted) as caught:
            step()
        updated = ", ".join(list(before)[:3])
        left = ", ".join(list(before)[3:])
        assert caught.value.__notes__ == [f"Updated: {updated}", f"not: {left}"]
        with pytest.raises(RuntimeError, match=r"failed in an earlier step .Interrupted"):
            optimizer.step()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda optimizer, _: setattr(optimizer, "state", {}), "use load_state_dict"),
        (lambda optimizer, _: optimizer.param_groups[0]["params"].pop(1), "0.bias was taken out"),
        (
            lambda optimizer, given: optimizer.param_groups.append(
                {**optimizer.param_groups[0], "params": [given]}
            ),
            "0.weight was taken out of group 0: use add_param_group",
        ),
    ],
)
def test_what_is_changed_by_hand_is_refused(change: Any, words: str) -> None:
    with training() as (model, optimizer, step):
        change(optimizer, model[0].weight)
        with pytest.raises(RuntimeError, match=words):
            step()
