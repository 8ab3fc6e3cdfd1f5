"""Ctrl-C in a step: tensors are as in plain training, and the next step works."""

from __future__ import annotations

import copy
import random
import signal
import sys
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

from hw_tests.driver.torch.small_steps import STEPS, make, policy_of, same, state_of, step

OPERATORS = "modules/linear.py", "nn/functional.py", "modules/batchnorm.py", "optim/adam.py"
MODES = ("_python_dispatch.py",)
STEP_ENDS = "residency.py:seen", "sentinel.py:diverged"


class Interrupt:
    """Raises a real SIGINT at a numbered call in these functions, or in any."""

    def __init__(self, at: int, places: tuple[str, ...]) -> None:
        self.at, self.places, self.calls = at, places, 0

    def __call__(self, frame: Any, event: str, called: Any) -> None:
        if called is sys.setprofile or (self.places and event != "c_call"):
            return
        code = frame.f_code
        place = f"{code.co_filename}:{code.co_name}"
        if not self.places or any(part in place for part in self.places):
            self.calls += 1
            if self.calls == self.at:
                signal.raise_signal(signal.SIGINT)

    def during(self, model: Any, optimizer: Any, number: int) -> bool:
        """Make a step; return whether it was interrupted."""
        try:
            try:
                sys.setprofile(self)
                step(model, optimizer, number)
            finally:
                sys.setprofile(None)
        except KeyboardInterrupt:
            return True
        return False


def interrupted(policy_name: str, at: int) -> tuple[list[Any], int]:
    """Return all values of a training with an interrupt, and the places for one."""
    model, optimizer = make()
    policy, interrupt, values = (
        policy_of(policy_name, model, optimizer),
        Interrupt(at, OPERATORS),
        [],
    )
    for number in range(STEPS):
        if number == 3:
            interrupt.during(model, optimizer, number)
            values += state_of(model, optimizer)
        else:
            values.append(step(model, optimizer, number))
    if policy is not None:
        policy.close()
    return values + state_of(model, optimizer), interrupt.calls


@pytest.mark.usefixtures("guard")
def test_an_interrupt_at_an_operator_is_as_in_plain_training(policy_name: str) -> None:
    plain, places = interrupted("plain", 0)
    assert places > 60
    forward = range(1, 8)  # all layers, then drawn places of the update
    for at in (*forward, *random.Random(1).sample(range(8, places + 1), 8)):
        plain, _ = interrupted("plain", at)
        assert same(interrupted(policy_name, at)[0], plain), at


@pytest.mark.usefixtures("guard")
@pytest.mark.parametrize("places", [(), MODES, STEP_ENDS], ids=["anywhere", "modes", "ends"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_model_trains_on_after_an_interrupt(policy_name: str, places: tuple[str, ...]) -> None:
    lot = random.Random(2)
    for _ in range(10):
        model, optimizer = make()
        policy, interrupt = policy_of(policy_name, model, optimizer), Interrupt(0, places)
        for number in range(3):
            step(model, optimizer, number)
        interrupt.during(model, optimizer, 3)  # without one
        if not interrupt.calls:
            policy.close()
            break
        interrupt.at = interrupt.calls + lot.randrange(1, interrupt.calls)
        was_interrupted = interrupt.during(model, optimizer, 4)
        torch.set_grad_enabled(True)  # PyTorch's no_grad() may be interrupted, too
        other, its_optimizer = make()
        state_of(model, optimizer)  # operators outside steps
        other.load_state_dict(copy.deepcopy(model.state_dict()))
        its_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        for number in 5, 6:
            losses = [step(*pair, number) for pair in ((model, optimizer), (other, its_optimizer))]
            assert torch.equal(*losses), was_interrupted
        report = policy.report()
        assert report["peak_bytes"] <= report["budget_bytes"]
        policy.close()
        assert same(state_of(model, optimizer), state_of(other, its_optimizer))


def test_with_ends_after_an_interrupt_inside_a_layer(policy_name: str) -> None:
    plain, optimizer = make()
    step(plain, optimizer, 0)
    model, optimizer = make()
    policy = policy_of(policy_name, model, optimizer)
    step(model, optimizer, 0)
    model[0].forward = lambda _: signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), policy:
        model.eval()(torch.ones(32, 64))
    assert same([*plain.state_dict().values()], [*model.state_dict().values()])
