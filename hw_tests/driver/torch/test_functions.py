"""Functions of torch.func under a policy, between steps and within one, have the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn
from torch.func import functional_call, grad, hessian, jacrev, jvp, vjp, vmap

from hw_tests.driver.torch.small_steps import policy_of, same

X = torch.randn(8, 64, generator=torch.Generator().manual_seed(5))


def loss_of(model: Any, parameters: Any, x: Any = X) -> Any:
    return functional_call(model, parameters, x).square().mean()


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "functional_call": lambda model, own: functional_call(model, own, X),
    "grad": lambda model, own: grad(lambda given: loss_of(model, given))(own),
    "per_sample": lambda model, own: vmap(
        grad(lambda given, x: loss_of(model, given, x)), in_dims=(None, 0)
    )(own, X[:4]),
    "vmap": lambda model, _: vmap(model, chunk_size=4)(X),
    "jvp": lambda model, _: jvp(model, (X,), (X,)),
    "jvp_parameters": lambda model, own: jvp(lambda given: loss_of(model, given), (own,), (own,)),
    "vjp": lambda model, _: vjp(model, X)[1](X),
    "jacrev": lambda model, _: jacrev(lambda x: model(x).sum(0))(X[:2]),
    "hessian": lambda model, _: hessian(lambda x: model(x).square().sum())(X[0]),
}


@pytest.mark.usefixtures("guard")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@pytest.mark.parametrize("inside", [False, True], ids=["between", "within"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_functions_of_torch_func(call: Any, inside: bool) -> None:
    results = []
    for name in "plain", "sentinel", "memferry":
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        policy = policy_of(
            name, model, optimizer, 210_000
        )  # two thirds of the parameters and states
        values: list[Any] = []
        for _ in range(6):
            optimizer.zero_grad()
            loss = model(X).square().mean()
            for part in range(2):
                if part != inside:
                    loss.backward()
                    optimizer.step()
                else:
                    own = {key: one.detach() for key, one in model.named_parameters()}
                    leaves = torch.utils._pytree.tree_leaves(call(model, own))
                    values += [one.detach().clone() for one in leaves]
        if policy is not None:
            policy.close()
        results.append([*values, *model.state_dict().values()])
    assert same(results[0], results[1])
    assert same(results[0], results[2])
