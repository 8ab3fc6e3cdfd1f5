"""Names of the rules' tensors and constants, rounding of the constants, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from golden.rules import CANONICAL_NAN, reference
from hw.rules import RULES
from hw_tests.rules.hyperparameters import USUAL, hyperparameters

ADAM = reference("adam")


@pytest.mark.parametrize("name", RULES)
def test_the_model_has_what_the_rule_has(name: str) -> None:
    model, rule = reference(name), RULES[name]
    assert (model.inputs, model.outputs, model.sums) == (rule.inputs, rule.outputs, rule.sums)
    rng = np.random.default_rng(1)
    for t in (1, 2, 1000):
        given = hyperparameters(name, t, **{each: rng.random() for each in USUAL})
        wanted = rule.constant_values(given)
        found = model.constants(**given)
        assert found == {each: np.float32(value) for each, value in wanted.items()}
        assert all(value.dtype == np.float32 for value in found.values())


def test_constants_are_rounded_once() -> None:
    constants = ADAM.constants(**hyperparameters("adam", 3, beta2=0.999))
    assert constants["one_minus_beta2"] == np.float32(1 - 0.999)
    assert constants["one_minus_beta2"] != np.float32(1) - np.float32(0.999)
    assert constants["inv_bc2"] == np.float32(1 / (1 - 0.999**3))


def test_a_beta_may_be_zero() -> None:
    constants = ADAM.constants(**hyperparameters("adam", 1, beta1=0))
    assert (constants["beta1"], constants["one_minus_beta1"], constants["inv_bc1"]) == (0, 1, 1)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("adam", {"beta1": 1.0}, "beta1 is 1.0, expected 0 <= beta1 < 1"),
        ("lion", {"beta2": -0.1}, "beta2 is -0.1"),
        ("adamw", {"beta2": float("nan")}, "beta2 is nan"),
        ("momentum", {"t": 0}, "t is 0.0, expected 1 or more"),
        ("sgd", {"lr": 1e39}, "lr is 1e\\+39, expected a number that is finite in FP32"),
        ("rmsprop", {"eps": float("nan")}, "eps is nan"),
        ("fill", {"value": float("inf")}, "value is inf"),
        ("fill", {"value": "much"}, "value is 'much', expected a number"),
        ("adagrad", {"t": 3, "lr_decay": -0.5}, "'lr_decay': -0.5.* infinite"),
    ],
)
def test_hyperparameters_are_refused(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        reference(name).constants(**hyperparameters(name, **{"t": 1, **changes}))


def test_a_missing_hyperparameter_is_named() -> None:
    with pytest.raises(ValueError, match="weight_decay"):
        reference("sgd").constants(lr=1.0)


def test_unknown_rules_are_refused() -> None:
    with pytest.raises(ValueError, match=r"rule 'madam': write .*adam, .*sum_squares"):
        reference("madam")


def test_tensors_of_other_types_or_shapes_are_refused() -> None:
    narrow, constants = np.zeros(3, np.float32), ADAM.constants(**hyperparameters("adam", 1))
    tensors = dict.fromkeys("pgmv", narrow)
    with pytest.raises(TypeError, match="g is of type float64"):
        ADAM.step({**tensors, "g": np.zeros(3)}, constants)
    with pytest.raises(TypeError, match="eps is of type float64"):
        ADAM.step(tensors, {**constants, "eps": np.float64(1)})  # pyright: ignore
    with pytest.raises(ValueError, match=r"the shapes .*'m': \(4,\)"):
        ADAM.step({**tensors, "m": np.zeros(4, np.float32)}, constants)


def test_nan_is_canonical_and_arguments_stay() -> None:
    odd_nan = np.array([0xFFC12345], np.uint32).view(np.float32)
    tensors = {**dict.fromkeys("pmv", np.ones(1, np.float32)), "g": odd_nan}
    results = ADAM.step(tensors, ADAM.constants(**hyperparameters("adam", 1)))
    assert [int(array.view(np.uint32)[0]) for array in results.values()] == [CANONICAL_NAN] * 3
    assert int(odd_nan.view(np.uint32)[0]) == 0xFFC12345


def test_a_copy_is_an_array_of_its_own() -> None:
    source = np.zeros(3, np.float32)
    assert not np.shares_memory(reference("copy").step({"x": source}, {})["y"], source)
