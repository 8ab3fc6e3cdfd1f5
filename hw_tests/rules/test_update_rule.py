"""What a rule says of itself, and which ones are refused."""

from __future__ import annotations

import gc
import warnings
from dataclasses import replace
from typing import Any

import pytest
from amaranth.hdl import UnusedElaboratable

from hw.dataflow.flow import FlowError, FlowValue
from hw.rules import register, rule
from hw.rules.update_rule import UpdateRule


def test_what_follows_from_a_rule() -> None:
    adam = rule("adam")
    assert adam.bytes_per_parameter == 28
    assert adam.hyperparameters == ("weight_decay", "beta1", "beta2", "t", "eps", "lr")
    assert rule("momentum").bytes_per_parameter == 20
    assert rule("fill").signature == "fill(;value)->y;"
    assert len({rule(name).identifier for name in ("adam", "adamw", "sgd", "fill")}) == 4


def test_constants_are_computed_in_double() -> None:
    values = rule("adagrad").constant_values(
        {"weight_decay": 0, "eps": 1e-10, "lr": 1, "t": 4, "lr_decay": 0.1}
    )
    assert values == {"lam": 0.0, "eps": 1e-10, "lr": 1 / (1 + 3 * 0.1)}


def test_a_flow_may_be_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    # Amaranth is silent until a design was elaborated.
    gc.collect()  # of other tests
    monkeypatch.setattr(UnusedElaboratable, "_MustUse__silence", False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rule("lion").flow()
        gc.collect()
    assert not [each.message for each in caught if each.category is UnusedElaboratable]


def plain(*, p: FlowValue, g: FlowValue, lr: FlowValue) -> dict[str, FlowValue]:
    return {"p": p - lr * g}


GOOD: dict[str, Any] = {
    "name": "good",
    "title": "good",
    "tensors": {"p": "parameters", "g": "gradients"},
    "inputs": ("p", "g"),
    "outputs": ("p",),
    "constants": {"lr": "lr"},
    "formula": plain,
}


ADAMS: dict[str, Any] = {
    "tensors": dict.fromkeys("pgmv", "a tensor"),
    "inputs": ("p", "g", "m", "v"),
    "outputs": ("p", "m", "v"),
    "states": {"m": "signed", "v": "unsigned"},
}
"""What a rule with states has beside :data:`GOOD`."""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "two words"}, "'two words' of rule 'two words' is not an identifier of ASCII"),
        ({"constants": {"\u03bb": "lr"}}, "'\u03bb' of rule 'good' is not an identifier of ASCII"),
        ({"tensors": {"p": "parameters"}}, r"describes \['p'\]"),
        (
            {"tensors": {}, "inputs": (), "outputs": (), "sums": ("p",)},
            "neither inputs nor outputs",
        ),
        ({"outputs": ("p", "p")}, "has 'p' twice among its outputs"),
        ({"constants": {"g": "lr"}}, "has 'g' twice among its inputs"),
        ({"constants": {"lr": "1 -"}}, "constant 'lr' is '1 -', expected a Python expression"),
        ({"constants": {"lr": "max(lr, 1)"}}, "more than numbers, names and arithmetic"),
        ({"constants": {"lr": "lr * 'x'"}}, "more than numbers, names and arithmetic"),
        (
            {"states": {"p": "signed"}},
            r"has states and the inputs \('p', 'g'\): .* have \('p', 'g', 'm', 'v'\)",
        ),
        (ADAMS | {"outputs": ("m", "p", "v")}, r"the outputs \('m', 'p', 'v'\)"),
        (ADAMS | {"sums": ("q",)}, r"the sums \('q',\): rules with states have \(\)"),
        (
            ADAMS | {"states": {"m": "signed", "v": "signed"}},
            "the states .* have .*'v': 'unsigned'.*leave states out",
        ),
    ],
)
def test_refusals(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        UpdateRule(**GOOD | changes)


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        (lambda p, g, lr: {"p": p - 0.1 * g}, "0.1 is not a value of the pipeline"),
        (lambda p, g, lr: {"p": p - g}, "constant 'lr' is not connected"),
        (lambda p, g, lr: {"q": p - lr * g}, "sets the outputs"),
        (lambda p, g, lr: {"p": p if p > g else lr * g}, "no order that Python could ask for"),
    ],
)
def test_a_formula_that_is_no_pipeline(formula: Any, message: str) -> None:
    with pytest.raises(FlowError, match=message):
        UpdateRule(**GOOD | {"formula": formula})


def test_names_are_given_once() -> None:
    with pytest.raises(ValueError, match="another rule called 'adam'"):
        register(replace(rule("adam"), title="another"))
    with pytest.raises(ValueError, match=r"no update rule 'nothing'; known: .*adam"):
        rule("nothing")
