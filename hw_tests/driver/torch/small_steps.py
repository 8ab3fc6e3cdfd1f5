"""Steps of a small model under a policy, beside plain training."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from sw_driver.torch.memferry import MemFerry
from sw_driver.torch.sentinel import Sentinel

__all__ = ["STEPS", "make", "policy_of", "same", "state_of", "step"]

STEPS = 6
PLAN = {"modes": {"0": "GFGB", "1": "DHA", "2": "DFGB", "3": "GFGB"}, "gradients_on_gpu": ["0"]}


def make() -> tuple[nn.Sequential, Any]:
    torch.manual_seed(0)
    layers = nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Linear(64, 64), nn.Linear(64, 64)
    model = nn.Sequential(*layers)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)


def policy_of(name: str, model: Any, optimizer: Any, budget: int | str = "60%") -> Any:
    if name == "plain":
        return None
    if name == "memferry":
        return MemFerry(model, optimizer, plan=PLAN)
    return Sentinel(model, optimizer, budget=budget, least_bytes=1 << 10)


def step(model: Any, optimizer: Any, number: int) -> Any:
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(number))
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def state_of(model: Any, optimizer: Any) -> list[Any]:
    """Return copies of parameters, buffers, gradients and states."""
    gradients = [one.grad for one in model.parameters() if one.grad is not None]
    states = [value for state in optimizer.state.values() for value in state.values()]
    return [one.detach().clone() for one in (*model.state_dict().values(), *gradients, *states)]


def same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))
