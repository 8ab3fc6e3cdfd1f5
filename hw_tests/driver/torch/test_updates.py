"""What a step computes: the golden rules bit for bit, and PyTorch's optimizers but for rounding."""

from __future__ import annotations

import copy
import sys
import warnings
from types import ModuleType
from typing import Any
from unittest import TestCase

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[torch]'")

import sw_driver.torch
from golden.rules import reference
from hw_tests.driver.torch.side_by_side import CASES, FEW_ULP, train
from sw_driver.axdimm import Axdimm

LION = {"lion": ("Lion", {"lr": 1e-2, "weight_decay": 0.1})}
SHAPES = [(3, 5), (), (17,), (1,), (0,), (40, 20), (16,)]


def parameters(seed: int) -> list[Any]:
    torch.manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES]


def hyperparameters(group: dict[str, Any], t: int) -> dict[str, Any]:
    beta1, beta2 = group.get("betas", (0, 0))
    return {**group, "beta1": beta1, "beta2": beta2, "t": t}


@pytest.mark.parametrize("rule", [*CASES, *LION])
@pytest.mark.parametrize("maximize", [False, True])
def test_steps_are_the_golden_rules_steps(module: Axdimm, rule: str, maximize: bool) -> None:
    name, options = (CASES | LION)[rule]
    given = parameters(1)
    with getattr(sw_driver.torch, name)(
        [{"params": given[:4]}, {"params": given[4:], "lr": 0.05}],
        device=module, maximize=maximize, **options,
    ) as optimizer:  # fmt: skip
        golden = reference(rule)
        states = {
            each: {key: np.zeros(each.shape, np.float32) for key in optimizer.state_keys}
            for each in given
        }
        names = hyperparameters(optimizer.param_groups[0], 1)
        taken = dict.fromkeys(given, 0)
        wanted = {each: each.detach().numpy().copy() for each in given}
        for step in range(4):
            for group in optimizer.param_groups:
                group["lr"] *= 0.9  # as a scheduler does
            for index, each in enumerate(given):
                skipped = index in (2, 5) and step == 1
                each.grad = None if skipped else torch.randn(each.shape)
            optimizer.step()
            for group in optimizer.param_groups:
                for each in group["params"]:
                    if each.grad is None:
                        continue
                    taken[each] += 1
                    names = hyperparameters(group, taken[each])
                    known = {k: names[k] for k in golden_names(rule)}
                    constants = golden.constants(**known)
                    gradient = -each.grad.numpy() if maximize else each.grad.numpy()
                    tensors = {"p": wanted[each], "g": gradient, **states[each]}
                    result = golden.step({k: tensors[k] for k in golden.inputs}, constants)
                    wanted[each] = result["p"]
                    states[each] |= {k: result[k] for k in result if k != "p"}
            for each in given:
                assert same_bits(each.detach().numpy(), wanted[each])
        for index, saved in optimizer.state_dict()["state"].items():
            assert saved.get("step", taken[given[index]]) == taken[given[index]]
            for key, called in optimizer.state_keys.items():
                if key in golden.inputs:
                    assert same_bits(saved[called].numpy(), states[given[index]][key])


def golden_names(rule: str) -> tuple[str, ...]:
    from hw.rules import rule as hardware_rule

    return hardware_rule(rule).hyperparameters


def same_bits(one: Any, other: Any) -> bool:
    return np.array_equal(np.asarray(one).view(np.uint32), np.asarray(other).view(np.uint32))


@pytest.mark.parametrize("rule", CASES)
def test_training_beside_pytorch(golden: Axdimm, rule: str) -> None:
    found = train(rule, 40, golden, every=2)
    assert found.single_worst_of_largest <= FEW_ULP
    assert found.single_share > 0.99
    assert found.parted_absolute < 1e-5
    assert abs(found.correct[0] - found.correct[1]) < 0.01
    assert found.correct[0] > 0.3


# PyTorch's own cases.


@pytest.fixture(scope="module")
def cases() -> dict[str, Any]:
    """What PyTorch tests its optimizers with, by their names."""
    if "expecttest" not in sys.modules:  # PyTorch's tests need it, these cases do not
        stand_in: Any = ModuleType("expecttest")
        stand_in.TestCase = TestCase
        sys.modules["expecttest"] = stand_in
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_optimizers import (  # pyright: ignore[reportMissingImports]
            optim_db,
        )
    return {info.optim_cls.__name__: info for info in optim_db}


REFUSED: dict[str, list[str]] = {
    "Adam": [],
    "AdamW": ["amsgrad"],
    "SGD": [],
    "Adagrad": [],
    "RMSprop": ["centered", "momentum", "maximize, centered, weight_decay, w/ momentum"],
}
"""What PyTorch calls those of its cases that no rule computes."""


@pytest.mark.parametrize("name", REFUSED)
def test_pytorchs_own_cases(cases: dict[str, Any], golden: Axdimm, name: str) -> None:
    kind, theirs_kind = getattr(sw_driver.torch, name), getattr(torch.optim, name)
    every = cases[name].optim_inputs_func("cpu", torch.float32)
    assert len(every) >= 5
    for case in every:
        options = {"lr": 1e-2, **case.kwargs}
        ours, theirs = parameters(2), parameters(2)
        if case.desc in REFUSED[name]:
            with pytest.raises(ValueError, match=r"no (update )?rule"):
                kind(ours, device=golden, **options)
            continue
        their_optimizer = theirs_kind(theirs, **copy.deepcopy(options))
        with kind(ours, device=golden, **options) as optimizer:
            for _ in range(5):
                for one, other in zip(ours, theirs, strict=True):
                    one.grad = other.grad = torch.randn(one.shape)
                optimizer.step()
                their_optimizer.step()
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", REFUSED)
def test_pytorchs_own_errors(cases: dict[str, Any], golden: Axdimm, name: str) -> None:
    for case in cases[name].optim_error_inputs_func("cpu", torch.float32):
        given = case.optimizer_error_input
        with pytest.raises(case.error_type, match=case.error_regex):
            getattr(sw_driver.torch, name)(given.params, device=golden, **given.kwargs)
