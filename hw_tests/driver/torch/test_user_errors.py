"""Exceptions of user code in a step, generators that are left, and models that call themselves."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn

from hw_tests.driver.torch.small_steps import STEPS, make, policy_of, same, state_of, step
from sw_driver.torch.sentinel import Sentinel


@pytest.mark.usefixtures("guard")
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, KeyError])
def test_what_user_code_raises_ends_the_call(policy_name: str, error: type[BaseException]) -> None:
    def fail(*_: object) -> None:
        raise error

    for kind in "forward", "backward":
        results = []
        for name in "plain", policy_name:
            model, optimizer = make()
            policy, values = policy_of(name, model, optimizer), []
            for number in range(STEPS):
                hook = None
                if number == 3 and kind == "forward":
                    hook = model[2].register_forward_hook(fail)
                elif number == 3:
                    hook = model[2].weight.register_hook(fail)
                try:
                    values.append(step(model, optimizer, number))
                except error:
                    values += state_of(model, optimizer)
                if hook is not None:
                    hook.remove()
                torch.ones(4096)
                if isinstance(policy, Sentinel):
                    state = policy._residency.state
                    assert not policy._residency.takes
                    assert state is None or not state.inside
            if isinstance(policy, Sentinel):
                assert policy.report()["steps"]["profiled"] <= 2 + (kind == "backward")
            if policy is not None:
                policy.close()
            results.append(values + state_of(model, optimizer))
        assert same(*results)


class _Generating(nn.Module):
    """Yields its layers' results; the caller may stop early."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = make()[0]

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
            yield x


@pytest.mark.usefixtures("guard")
def test_generators_that_are_left_early() -> None:
    results = []
    for name in "plain", "sentinel":
        model = _Generating()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        policy, values = policy_of(name, model, optimizer), []
        for number in range(STEPS):
            results_of = model(torch.ones(32, 64))
            taken = [next(results_of) for _ in range(2 + number // 2)]
            if number % 2:
                results_of.close()
            optimizer.zero_grad()
            taken[-1].square().mean().backward()
            optimizer.step()
            values.append(taken[-1].detach())
        if policy is not None:
            policy.close()
        results.append([*values, *model.state_dict().values()])
    assert same(*results)


class _Tree(nn.Module):
    """Calls itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: Any, depth: int = 3) -> Any:
        return self.layer(self(x, depth - 1)) if depth else self.layer(x)


def test_a_model_that_calls_itself_is_planned() -> None:
    model = _Tree()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with policy_of("sentinel", model, optimizer) as policy:
        for number in range(STEPS):
            step(model, optimizer, number)
        assert policy.report()["steps"]["profiled"] == 1
        assert "failed" not in policy.report()["steps"]
