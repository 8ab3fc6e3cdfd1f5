"""Steps in functions that ``torch.compile`` compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[torch]'")

from torch.nn import Parameter

from hw_tests.driver.torch.test_optimizer import bits
from sw_driver.axdimm import Axdimm
from sw_driver.torch import SGD, Adam
from sw_driver.torch.offloading import Offloading


def compiled(function: Any, **how: Any) -> Any:
    torch.compiler.reset()
    return torch.compile(function, backend="eager", **how)


def all_in_one(optimizer: Any, compile_it: Any) -> Callable[[], Any]:
    given = optimizer.param_groups[0]["params"]

    def train() -> None:
        optimizer.zero_grad()
        sum(index * each.square().sum() for index, each in enumerate(given, 1)).backward()
        optimizer.clip_grad_norm(3.0)
        optimizer.step()
        state = optimizer.state[given[1]]
        for key in state:
            if key != "step":
                state[key].mul_(0.5)
        optimizer.load_state_dict(optimizer.state_dict())

    return compile_it(train)


WAYS: dict[str, Callable[[Any, Any], Callable[[], Any]]] = {
    "within": lambda optimizer, compile_it: compile_it(lambda: optimizer.step()),
    "itself": lambda optimizer, compile_it: compile_it(optimizer.step),
    "beside": lambda optimizer, compile_it: compile_it(lambda: optimizer.step_async().wait()),
    "closure": lambda optimizer, compile_it: compile_it(lambda: optimizer.step(lambda: 3)),
    "all": all_in_one,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("kind", "options"), [(Adam, {}), (SGD, {"lr": 0.1, "momentum": 0.9})])
def test_a_compiled_step_is_a_step(golden: Axdimm, kind: Any, options: Any, way: str) -> None:
    found = []
    for compile_it in (compiled, lambda function: function):
        given = [Parameter(torch.linspace(-1, 1, count)) for count in (3, 40)]
        with kind(given, device=golden, **options) as optimizer:
            step = WAYS[way](optimizer, compile_it)
            for number in range(4):
                for each in given:
                    each.grad = torch.full_like(each, number - len(each))
                step()
            states = optimizer.state_dict()["state"].values()
            found.append(bits([*given, *(value for state in states for value in state.values())]))
    assert found[0] == found[1]


@pytest.mark.parametrize("way", sorted(WAYS.keys() - {"all"}))
def test_a_step_in_one_graph_is_refused(golden: Axdimm, way: str) -> None:
    given = Parameter(torch.ones(3))
    given.grad = torch.ones(3)
    with Adam([given], device=golden) as optimizer:
        step = WAYS[way](optimizer, lambda function: compiled(function, fullgraph=True))
        with pytest.raises(Exception, match="the module has the step: compile the model alone"):
            step()
        assert optimizer.last_step is None
    assert bits([given]) == bits([torch.ones(3)])


@pytest.mark.parametrize("compiles", ["model", "step"])
def test_compiled_training_with_parameters_in_a_store(golden: Axdimm, compiles: str) -> None:
    found = []
    for compile_it in (compiled, lambda function: function):
        torch.manual_seed(0)
        net = torch.nn.Sequential(*(torch.nn.Linear(6, 6) for _ in range(4)))
        inputs = torch.randn(4, 6)
        with Offloading(golden, Adam, lr=0.1, capacity_bytes=1 << 16) as platform:
            model = platform.take(net)
            optimizer = platform.optimizer()
            forward = compile_it(model) if compiles == "model" else model

            def train(
                forward: Any = forward, inputs: Any = inputs, optimizer: Any = optimizer
            ) -> Any:
                optimizer.zero_grad()
                loss = forward(inputs).square().mean()
                loss.backward()
                optimizer.step()
                return loss

            step = compile_it(train) if compiles == "step" else train
            losses = [step().detach() for _ in range(4)]
        found.append(bits([*losses, *net.parameters()]))
    assert found[0] == found[1]
