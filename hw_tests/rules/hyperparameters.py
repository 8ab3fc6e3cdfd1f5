"""Hyper-parameters for the rules, each by its name."""

from __future__ import annotations

from typing import Any

from hw.rules import rule

__all__ = ["USUAL", "hyperparameters"]

USUAL: dict[str, float] = {
    "lr": 1e-2, "beta1": 0.9, "beta2": 0.99, "alpha": 0.95, "eps": 1e-8, "weight_decay": 0.01,
    "momentum": 0.9, "dampening": 0.1, "lr_decay": 0.05, "scale": 0.3, "value": 2.5,
}  # fmt: skip


def hyperparameters(name: str, t: int, **changes: Any) -> dict[str, Any]:
    """What the constants of the rule are made of, usual ones but for the changes; 1 where there is
    nothing usual."""
    given = {**USUAL, "t": t, **changes}
    return {each: given.get(each, 1) for each in rule(name).hyperparameters}
