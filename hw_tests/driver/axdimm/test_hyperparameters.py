"""The constants that the driver programs, against the golden model's and by their bits."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sw_driver
from golden.rules import reference
from hw.rules import RULES, rule
from sw_driver.axdimm.hyperparameters import LAST_STEP, checked_hyperparameters, rule_constants
from sw_driver.axdimm.registers import kernel_registers
from sw_driver.axdimm.transport import Transport
from sw_driver.device.errors import InvalidArgumentError

LARGEST = float(np.finfo(np.float32).max)
SMALLEST = float(np.finfo(np.float32).smallest_subnormal)
BELOW_ONE = float(np.nextafter(1.0, 0.0))
MAGNITUDES = (0.0, 5e-324, SMALLEST / 2, 0.75 * SMALLEST, SMALLEST, 1e-8, 1.0, LARGEST)
"""Of what is rounded and nothing else: ties, subnormal numbers and the ends of FP32."""
BETAS = (0.0, 5e-324, 2.0**-53, 0.5, 0.9, 0.999, 1 - 2.0**-25, 1 - 2.0**-26, BELOW_ONE)
STEPS = (1, 2, 3, 1000, 10**9, LAST_STEP - 1, LAST_STEP)

# "Golden" may be asked where the device is the golden model, where results are compared with it,
# where cycles are predicted, for the address map by which the backdoor finds a byte, and where a
# state dict changes its format: nowhere that programs a device.
GOLDEN_USERS = {
    "axdimm/backends/golden.py",
    "experiments/faults.py",
    "experiments/settings.py",
    "experiments/pim/training.py",
    "experiments/pim/validation.py",
    "axdimm/rulejob.py",
    "experiments/training/gpt.py",
    "experiments/training/precision.py",
    "experiments/training/trainer.py",
    "fpga/vectors.py",
    "memory_node/backends/golden.py",
    "pim/backends/cycles.py",
    "pim/backends/golden.py",
    "predict",
    "torch/formats.py",
}


def constants_of(name: str, **hyperparameters: Any) -> dict[str, np.float32]:
    return rule_constants(rule(name), checked_hyperparameters(rule(name), hyperparameters))


def assert_same_constants(name: str = "adam", **hyperparameters: Any) -> None:
    found = constants_of(name, **hyperparameters)
    wanted = reference(name).constants(**hyperparameters)
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        assert isinstance(value, np.float32), name
        assert value.view(np.uint32) == wanted[name].view(np.uint32), (name, hyperparameters)


def test_random_constants_are_the_golden_models() -> None:
    rng = np.random.default_rng(5)
    for _ in range(3000):
        lr, eps, weight_decay = (10 ** rng.uniform(-48, 38, 3)).tolist()
        beta1, beta2 = (1 - 10 ** rng.uniform(-16, 0, 2)).clip(0, BELOW_ONE).tolist()
        t = int(2 ** rng.uniform(0, 53))
        assert_same_constants(
            lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay, t=t
        )


def test_extreme_constants_are_the_golden_models() -> None:
    for beta1, beta2, t in itertools.product(BETAS, BETAS, STEPS):
        assert_same_constants(lr=1e-3, beta1=beta1, beta2=beta2, eps=1e-8, weight_decay=0.0, t=t)
    for lr, eps, weight_decay in itertools.product(MAGNITUDES, repeat=3):
        assert_same_constants(
            lr=lr, beta1=0.9, beta2=0.999, eps=eps, weight_decay=weight_decay, t=1
        )


def test_usual_constants_by_their_bits() -> None:
    constants = constants_of(
        "adam", lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.5, t=1
    )
    assert {name: hex(value.view(np.uint32)) for name, value in constants.items()} == {
        "lam": "0x3f000000",
        "beta1": "0x3f666666",
        "one_minus_beta1": "0x3dcccccd",
        "beta2": "0x3f7fbe77",
        "one_minus_beta2": "0x3a83126f",
        "inv_bc1": "0x41200000",
        "inv_bc2": "0x447a0000",
        "eps": "0x322bcc77",
        "lr": "0x3a83126f",
    }


def test_every_constant_has_its_register(backend: Transport) -> None:
    registers = kernel_registers(backend, 0)
    for name in rule("adam").constants:
        assert registers[name].name == name


@pytest.mark.parametrize("name", RULES)
def test_constants_of_every_rule_are_the_golden_models(name: str) -> None:
    rng = np.random.default_rng(6)
    for _ in range(200):
        values = {each: 10 ** rng.uniform(-9, 3) for each in rule(name).hyperparameters}
        drawn = {"beta1": rng.random(), "beta2": rng.random(), "t": int(2 ** rng.uniform(0, 20))}
        assert_same_constants(name, **values | {n: drawn[n] for n in drawn if n in values})


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("lr", -1e-9, "a number from 0 on"),
        ("weight_decay", 1e39, "a number from 0 on that FP32 can hold"),
        ("momentum", -0.5, "a number from 0 on"),
        ("momentum", float("inf"), "a number from 0 on that FP32 can hold"),
        ("dampening", float("nan"), "a number that FP32 can hold"),
        ("dampening", "much", "a number"),
        ("t", 0, "an integer from 1"),
        ("t", 1.5, "an integer from 1"),
    ],
)
def test_what_is_out_of_its_range_is_refused(name: str, value: Any, expected: str) -> None:
    good = {"lr": 1.0, "momentum": 1.0, "weight_decay": 0.0, "dampening": 1.0, "t": 2}
    constants_of("momentum", **good)
    with pytest.raises(InvalidArgumentError, match=f"{name} is .*: expected {expected}"):
        constants_of("momentum", **good | {name: value})


def test_a_constant_beyond_fp32_is_refused() -> None:
    large = {"lr": 2.0**64, "weight_decay": 2.0**65, "beta1": 0.9, "beta2": 0.99}
    with pytest.raises(InvalidArgumentError, match=r"weight_decay is -6.8.*e[+]38 with .* of lion"):
        constants_of("lion", **large)


def test_names_that_are_not_the_rules_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="'lr' is missing: sgd takes weight_decay, lr"):
        constants_of("sgd", weight_decay=0)
    with pytest.raises(InvalidArgumentError, match="'beta1' was given: sgd takes weight_decay, lr"):
        constants_of("sgd", weight_decay=0, lr=1, beta1=0)
    with pytest.raises(InvalidArgumentError, match="'lr' was given: copy takes none"):
        constants_of("copy", lr=1)


def test_what_programs_a_device_does_not_ask_the_golden_model() -> None:
    root = Path(next(iter(sw_driver.__path__)))
    users = set()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                modules = [node.module or ""]
            if any(module.split(".")[0] == "golden" for module in modules):
                file = path.relative_to(root).as_posix()
                users.add("predict" if file.startswith("predict/") else file)
    assert users == GOLDEN_USERS
