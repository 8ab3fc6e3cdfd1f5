"""The constants that the driver programs, against the golden model's and by their bits."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path
from typing import Any

import numpy as np

import sw_driver
from golden.rules.adam import adam_constants
from sw_driver.axdimm.hyperparameters import LAST_STEP, AdamHyperparameters
from sw_driver.axdimm.registers import kernel_registers
from sw_driver.transport import Transport

LARGEST = float(np.finfo(np.float32).max)
SMALLEST = float(np.finfo(np.float32).smallest_subnormal)
BELOW_ONE = float(np.nextafter(1.0, 0.0))
MAGNITUDES = (0.0, 5e-324, SMALLEST / 2, 0.75 * SMALLEST, SMALLEST, 1e-8, 1.0, LARGEST)
"""Of what is rounded and nothing else: ties, subnormal numbers and the ends of FP32."""
BETAS = (0.0, 5e-324, 2.0**-53, 0.5, 0.9, 0.999, 1 - 2.0**-25, 1 - 2.0**-26, BELOW_ONE)
STEPS = (1, 2, 3, 1000, 10**9, LAST_STEP - 1, LAST_STEP)

# "Golden" may be asked where the device is the golden model, where results are compared with it,
# and for the address map by which the backdoor finds a byte: nowhere that programs a device.
GOLDEN_USERS = {
    "axdimm/backends/cycles.py",
    "axdimm/backends/golden.py",
    "axdimm/backends/rtl.py",
    "experiments/adamjob.py",
    "experiments/baseline/check.py",
    "experiments/baseline/frameworks.py",
    "experiments/baseline/measure.py",
    "experiments/training/trainer.py",
    "pim/backends/cycles.py",
    "pim/backends/golden.py",
    "pim/validation.py",
}


def assert_same_constants(**hyperparameters: Any) -> None:
    found = AdamHyperparameters(**hyperparameters).constants()
    wanted = adam_constants(**hyperparameters)._asdict()
    assert list(found) == list(wanted)
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
    constants = AdamHyperparameters(
        lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.5, t=1
    ).constants()
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
    constants = AdamHyperparameters(lr=1, beta1=0, beta2=0, eps=0, weight_decay=0, t=1).constants()
    for name in constants:
        assert registers[name].name == name


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
                users.add(path.relative_to(root).as_posix())
    assert users == GOLDEN_USERS
