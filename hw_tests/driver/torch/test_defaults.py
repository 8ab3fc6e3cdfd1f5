"""PyTorch's defaults of the program, its dtype and device, change nothing here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[torch]'")

import sw_driver
import sw_driver.torch
from hw_tests.driver.torch.side_by_side import CASES
from sw_driver.axdimm import Axdimm
from sw_driver.torch.offloading import Offloading

FP32: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}
DEFAULTS = [torch.float16, torch.bfloat16, torch.float64, "meta"]
MAKERS = {
    "arange", "as_tensor", "asarray", "empty", "empty_strided", "eye", "full", "linspace",
    "logspace", "ones", "rand", "randint", "randn", "randperm", "scalar_tensor", "tensor", "zeros",
}  # fmt: skip


@contextmanager
def default(value: Any) -> Iterator[None]:
    if value == "meta":
        with torch.device("meta"):
            yield
    else:
        before = torch.get_default_dtype()
        torch.set_default_dtype(value)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


def described(value: Any) -> Any:
    return (
        (value.dtype, value.device, value.numpy().tobytes()) if hasattr(value, "dtype") else value
    )


def trained(device: Axdimm, kind: str, options: dict[str, Any], later: Any) -> list[Any]:
    """Bits of all that two optimizers have, one going on from the other's state; the default is
    ``later`` from the second step on."""
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(40, **FP32))
    gradients = torch.randn(6, 40, **FP32)
    found: list[Any] = []

    def steps(optimizer: Any, numbers: range) -> None:
        for number in numbers:
            weight.grad = gradients[number].clone()
            found.append(described(optimizer.clip_grad_norm(3.0)))
            optimizer.step()

    with getattr(sw_driver.torch, kind)([weight], device=device, **options) as optimizer:
        steps(optimizer, range(1))
        with default(later):
            optimizer.state[weight].update(step=torch.tensor(300.0, **FP32))
            if kind in ("SGD", "Lion"):
                del optimizer.state[weight]["step"]
            steps(optimizer, range(1, 3))
            saved = optimizer.state_dict()
    with default(later), getattr(sw_driver.torch, kind)(
        [weight], device=device, **options
    ) as other:  # fmt: skip
        found.append({key: described(each) for key, each in other.state[weight].items()})
        other.load_state_dict(saved)
        steps(other, range(3, 6))
        state = other.state_dict()["state"][0]
    if kind not in ("SGD", "Lion"):
        assert state["step"] == 305
    return [*found, {key: described(each) for key, each in state.items()}, described(weight.data)]


@pytest.mark.parametrize("later", DEFAULTS, ids=str)
@pytest.mark.parametrize("rule", [*CASES, "lion"])
def test_a_step_under_other_defaults(golden: Axdimm, rule: str, later: Any) -> None:
    kind, options = CASES.get(rule, ("Lion", {}))
    wanted = trained(golden, kind, options, torch.float32)
    assert trained(golden, kind, options, later) == wanted


@pytest.mark.parametrize("later", DEFAULTS, ids=str)
def test_offloading_under_other_defaults(golden: Axdimm, later: Any) -> None:
    def run(value: Any) -> list[Any]:
        torch.manual_seed(0)
        net = torch.nn.Sequential(*(torch.nn.Linear(6, 6, **FP32) for _ in range(3)))
        inputs = torch.randn(4, 6, **FP32)
        with (
            default(value),
            Offloading(golden, sw_driver.torch.AdamW, lr=0.1, capacity_bytes=1 << 16) as platform,
        ):
            optimizer = (platform.take(net), platform.optimizer())[1]
            norms = []
            for step in range(3):
                optimizer.zero_grad()
                net(inputs).square().mean().backward()
                norms.append(described(optimizer.clip_grad_norm(0.5)))
                optimizer.step()
                if step == 1:
                    saved = optimizer.state_dict()
                    del saved["state"][0]
                    optimizer.load_state_dict(saved)
            states = optimizer.state_dict()["state"].values()
            found = [{key: described(each) for key, each in state.items()} for state in states]
        return [*norms, *found, *(described(each.data) for each in net.parameters())]

    assert run(later) == run(torch.float32)


def test_every_tensor_that_is_made_says_dtype_and_device() -> None:
    root = Path(sw_driver.__file__).parent
    lacking = [
        f"{file.name}:{call.lineno} {call.func.attr}"
        for folder in ("torch", "device")
        for file in (root / folder).rglob("*.py")
        for call in ast.walk(ast.parse(file.read_text()))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in MAKERS
        and ast.unparse(call.func.value) in ("torch", "self._torch")
        and not {"dtype", "device"} <= {each.arg for each in call.keywords}
    ]
    assert lacking == []
