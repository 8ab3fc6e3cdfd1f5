"""The rules against the formulas of their papers in double, and against PyTorch's optimizers."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from golden.rules import reference
from hw.rules import RULES
from hw_tests.rules.hyperparameters import USUAL, hyperparameters

Arrays = dict[str, Any]
STEPS = 20
BOUND = 1e-5
"""Of the difference after some steps: each rounds a dozen operations on numbers up to about 10,
2**-24 of them each, and later steps forget it or shrink it by the learning rate."""


def adam(s: Any, h: Any, g: Any) -> Arrays:
    m = h.beta1 * s.m + (1 - h.beta1) * g
    v = h.beta2 * s.v + (1 - h.beta2) * g**2
    return {"m": m, "v": v, "m_hat": m / (1 - h.beta1**h.t), "v_hat": v / (1 - h.beta2**h.t)}


def adam_l2(s: Any, h: Any) -> Arrays:
    n = adam(s, h, s.g + h.weight_decay * s.p)
    return {**n, "p": s.p - h.lr * n["m_hat"] / (np.sqrt(n["v_hat"]) + h.eps)}


def adamw(s: Any, h: Any) -> Arrays:
    n = adam(s, h, s.g)
    update = n["m_hat"] / (np.sqrt(n["v_hat"]) + h.eps) + h.weight_decay * s.p
    return {**n, "p": s.p - h.lr * update}


def amsgrad(s: Any, h: Any) -> Arrays:
    n = adam(s, h, s.g + h.weight_decay * s.p)
    x = np.maximum(s.x, n["v"])
    v_hat = x / (1 - h.beta2**h.t)
    return {**n, "x": x, "p": s.p - h.lr * n["m_hat"] / (np.sqrt(v_hat) + h.eps)}


def sgd(s: Any, h: Any) -> Arrays:
    return {"p": s.p - h.lr * (s.g + h.weight_decay * s.p)}


def momentum(s: Any, h: Any) -> Arrays:
    g = s.g + h.weight_decay * s.p
    m = g if h.t == 1 else h.momentum * s.m + (1 - h.dampening) * g
    return {"m": m, "p": s.p - h.lr * m}


def nesterov(s: Any, h: Any) -> Arrays:
    g = s.g + h.weight_decay * s.p
    m = h.momentum * s.m + g
    return {"m": m, "p": s.p - h.lr * (g + h.momentum * m)}


def adagrad(s: Any, h: Any) -> Arrays:
    g = s.g + h.weight_decay * s.p
    total = s.s + g**2
    lr = h.lr / (1 + (h.t - 1) * h.lr_decay)
    return {"s": total, "p": s.p - lr * g / (np.sqrt(total) + h.eps)}


def rmsprop(s: Any, h: Any) -> Arrays:
    g = s.g + h.weight_decay * s.p
    v = h.alpha * s.v + (1 - h.alpha) * g**2
    return {"v": v, "p": s.p - h.lr * g / (np.sqrt(v) + h.eps)}


def lion(s: Any, h: Any) -> Arrays:
    direction = np.sign(h.beta1 * s.m + (1 - h.beta1) * s.g)
    m = h.beta2 * s.m + (1 - h.beta2) * s.g
    return {"m": m, "p": s.p - h.lr * (direction + h.weight_decay * s.p)}


TEXTBOOK: dict[str, Callable[[Any, Any], Arrays]] = {
    "accumulate": lambda s, h: {"a": s.a + h.scale * s.g},
    "adagrad": adagrad,
    "adam": adam_l2,
    "adamw": adamw,
    "amsgrad": amsgrad,
    "copy": lambda s, h: {"y": s.x},
    "fill": lambda s, h: {"y": np.full_like(s.y, h.value)},
    "lion": lion,
    "momentum": momentum,
    "nesterov": nesterov,
    "rmsprop": rmsprop,
    "scale_add": lambda s, h: {"z": s.x + h.scale * s.y},
    "sgd": sgd,
    "sum_squares": lambda s, h: {"squares": math.fsum((s.g**2).tolist())},
}


def start(name: str) -> Arrays:
    """Parameters and the like are random, the state of an optimizer is zero."""
    rng = np.random.default_rng(1)
    tensors = {each: rng.standard_normal(1000).astype(np.float32) for each in RULES[name].tensors}
    return {
        each: np.zeros_like(values) if each in "msvxa" and each in RULES[name].outputs else values
        for each, values in tensors.items()
    }


@pytest.mark.parametrize("name", RULES)
def test_steps_follow_the_textbook(name: str) -> None:
    if name not in TEXTBOOK:
        pytest.skip(f"TEXTBOOK has no formula for {name}, of the paper that it is from")
    model = reference(name)
    rng = np.random.default_rng(2)
    state = start(name)
    exact = {each: values.astype(np.float64) for each, values in state.items()}
    for t in range(1, STEPS + 1):
        if "g" in state:
            state["g"] = rng.standard_normal(1000).astype(np.float32)
            exact["g"] = state["g"].astype(np.float64)
        given = hyperparameters(name, t)
        results = model.step(state, model.constants(**given))
        state |= {each: results[each] for each in model.outputs}
        exact |= TEXTBOOK[name](SimpleNamespace(**exact), SimpleNamespace(**given))
        for each, values in results.items():
            np.testing.assert_allclose(values, exact[each], rtol=BOUND, atol=BOUND, err_msg=each)


def optimizers(optim: Any) -> dict[str, Callable[[Any], Any]]:
    """Those of ``torch.optim``, from the parameters to be optimized."""
    h = SimpleNamespace(**USUAL)
    betas, decay = (h.beta1, h.beta2), {"weight_decay": h.weight_decay}
    return {
        "adam": lambda p: optim.Adam(p, h.lr, betas, h.eps, **decay),
        "adamw": lambda p: optim.AdamW(p, h.lr, betas, h.eps, **decay),
        "amsgrad": lambda p: optim.Adam(p, h.lr, betas, h.eps, amsgrad=True, **decay),
        "sgd": lambda p: optim.SGD(p, h.lr, **decay),
        "momentum": lambda p: optim.SGD(p, h.lr, h.momentum, h.dampening, **decay),
        "nesterov": lambda p: optim.SGD(p, h.lr, h.momentum, nesterov=True, **decay),
        "adagrad": lambda p: optim.Adagrad(p, h.lr, h.lr_decay, eps=h.eps, **decay),
        "rmsprop": lambda p: optim.RMSprop(p, h.lr, h.alpha, h.eps, **decay),
    }


@pytest.mark.parametrize(
    "name",
    ["adagrad", "adam", "adamw", "amsgrad", "momentum", "nesterov", "rmsprop", "sgd"],
)
def test_steps_follow_pytorch(name: str) -> None:
    torch: Any = pytest.importorskip("torch", reason="torch, an optional extra, is not installed")
    model = reference(name)
    rng = np.random.default_rng(3)
    state = start(name)
    parameter = torch.nn.Parameter(torch.tensor(state["p"], dtype=torch.float64))
    optimizer = optimizers(torch.optim)[name]([parameter])
    for t in range(1, STEPS + 1):
        state["g"] = rng.standard_normal(1000).astype(np.float32)
        parameter.grad = torch.tensor(state["g"], dtype=torch.float64)
        optimizer.step()
        state |= model.step(state, model.constants(**hyperparameters(name, t)))
        np.testing.assert_allclose(state["p"], parameter.detach(), rtol=BOUND, atol=BOUND)
