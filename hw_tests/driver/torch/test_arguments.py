"""Arguments of policies and optimizers that are none: a line says which, and what is wanted."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip(
    "torch", reason="PyTorch is not installed: pip install -e '.[torch]'"
)

from torch import nn

from hw_tests.driver.torch.policies import RULES
from sw_driver.axdimm import Axdimm
from sw_driver.device.errors import InvalidArgumentError
from sw_driver.memory_node import DeviceNode
from sw_driver.memory_node.backends.golden import GoldenNetwork
from sw_driver.torch import SGD, AdamW
from sw_driver.torch.memferry import MemFerry
from sw_driver.torch.offloading import DeviceMemory, Offloading
from sw_driver.torch.overlay import MemoryOverlay
from sw_driver.torch.sentinel import Sentinel
from sw_driver.torch.training import train_in

PLAN = {"modes": {"0": "GFGB", "1": "DHA"}, "gradients_on_gpu": []}
NAN = float("nan")
NUMBERS = (-1, 1.5, NAN, True, "x", None)
"""What is no size."""
OTHERS = (None, 0, True, "x", object)
"""What is nothing that has a class of its own."""


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))


def sgd(of: nn.Module) -> Any:
    return torch.optim.SGD(of.parameters(), lr=0.1)


def sentinel(**options: Any) -> Any:
    given = model()
    return Sentinel(**{"model": given, "optimizer": sgd(given), "budget": "50%", **options})


def memferry(**options: Any) -> Any:
    given = model()
    return MemFerry(**{"model": given, "optimizer": sgd(given), "plan": PLAN, **options})


def trained(**options: Any) -> Any:
    given = model()
    return train_in(**{"model": given, "optimizer": sgd(given), "budget": "50%", **options})


def overlay(**options: Any) -> Any:
    network = GoldenNetwork(devices=2, local_bytes=1 << 20, share_bytes=1 << 20)
    return MemoryOverlay(**{"model": model(), "device": DeviceNode(network, 0), **options})


def offloading(**options: Any) -> Any:
    with Axdimm("golden:tiny", options=RULES) as device:
        settings = {"device": device, "kind": AdamW, "capacity_bytes": 1 << 12}
        return Offloading(**{**settings, **options}).close()


def optimizer(kind: Any, **options: Any) -> Any:
    with Axdimm("golden:tiny", options=RULES) as device:
        return kind(model().parameters(), **{"lr": 0.1, "device": device, **options})


def clipping(norm: Any) -> Any:
    with Axdimm("golden:tiny", options=RULES) as device:
        SGD(model().parameters(), lr=0.1, device=device).clip_grad_norm(norm)


def loading(state: Any) -> Any:
    optimizer(SGD).load_state_dict(state)


def in_platform(call: Callable[[Any], Any]) -> Any:
    with (
        Axdimm("golden:tiny", options=RULES) as device,
        Offloading(device, AdamW) as platform,
    ):
        return call(platform)


def no_none(*values: Any) -> tuple[Any, ...]:
    return tuple(each for each in values if each is not None)


SIZES = no_none(*NUMBERS)
CASES: dict[str, tuple[Callable[[Any], Any], tuple[Any, ...]]] = {
    "Sentinel model": (lambda x: sentinel(model=x), OTHERS),
    "Sentinel optimizer": (lambda x: sentinel(optimizer=x), OTHERS),
    "Sentinel budget": (lambda x: sentinel(budget=x), (*NUMBERS, "0%", "101%", "nan%")),
    "Sentinel slow": (lambda x: sentinel(slow=x), (None, 0, True, object, "", "no/such")),
    "Sentinel least_bytes": (lambda x: sentinel(least_bytes=x), NUMBERS),
    "MemFerry model": (lambda x: memferry(model=x), OTHERS),
    "MemFerry optimizer": (lambda x: memferry(optimizer=x), OTHERS),
    "MemFerry plan": (lambda x: memferry(plan=x), (0, 1.5, [], {}, {"modes": 1})),
    "MemFerry device": (lambda x: memferry(device=x), (1.5, NAN, "x", object)),
    "MemFerry budget": (lambda x: memferry(budget=x), SIZES),
    "train_in model": (lambda x: trained(model=x), OTHERS),
    "train_in optimizer": (lambda x: trained(optimizer=x), OTHERS),
    "train_in budget": (lambda x: trained(budget=x), (*NUMBERS, "0%", "12 potatoes")),
    "train_in policy": (lambda x: trained(policy=x), (*OTHERS, "sentinels")),
    "train_in slow": (lambda x: trained(slow=x), (None, 0, True, object, "", "no/such")),
    "train_in memferry": (lambda x: trained(policy="memferry", budget=x), (*SIZES, "25%")),
    "MemoryOverlay model": (lambda x: overlay(model=x), OTHERS),
    "MemoryOverlay device": (lambda x: overlay(device=x), OTHERS),
    "MemoryOverlay prefetched": (lambda x: overlay(prefetched=x), NUMBERS),
    "MemoryOverlay least_bytes": (lambda x: overlay(least_bytes=x), NUMBERS),
    "MemoryOverlay compressed": (lambda x: overlay(compressed=x), (None, 1, "x")),
    "MemoryOverlay recomputed": (lambda x: overlay(recomputed=x), (None, 1, "x", (nn.Linear,))),
    "DeviceMemory budget": (DeviceMemory, (0, *SIZES)),
    "DeviceMemory kind": (lambda x: DeviceMemory(kind=x), OTHERS),
    "Offloading capacity_bytes": (lambda x: offloading(capacity_bytes=x), (0, *SIZES)),
    "Offloading placement": (lambda x: offloading(placement=x), OTHERS),
    "Offloading storage": (lambda x: offloading(storage=x), (0, 1.5, True)),
    "Offloading storage_bytes": (lambda x: offloading(storage_bytes=x), (0, 4096, *SIZES)),
    "Offloading kind": (lambda x: offloading(kind=x), (*OTHERS, torch.optim.AdamW)),
    "Offloading budget": (lambda x: offloading(budget=x), (0, *SIZES)),
    "Offloading prefetch": (lambda x: offloading(prefetch=x), NUMBERS),
    "Offloading model_device": (lambda x: offloading(model_device=x), OTHERS),
    "Offloading device": (lambda x: offloading(device=x), OTHERS),
    "Offloading lr": (lambda x: offloading(lr=x), (None, -1, NAN, math.inf, True, "x", [])),
    "build": (lambda x: in_platform(lambda platform: platform.build(x)), (None, 0, "x")),
    "take": (lambda x: in_platform(lambda platform: platform.take(x)), OTHERS),
    "SGD lr": (lambda x: optimizer(SGD, lr=x), (None, -1, NAN, math.inf, True, "x", [])),
    "SGD nesterov": (lambda x: optimizer(SGD, nesterov=x, momentum=0.9), (None, 1, "x")),
    "AdamW maximize": (lambda x: optimizer(AdamW, maximize=x), (None, 1, "x")),
    "SGD momentum": (lambda x: optimizer(SGD, momentum=x), (None, -1, NAN, True, "x")),
    "AdamW weight_decay": (lambda x: optimizer(AdamW, weight_decay=x), (None, -1, NAN, True, "x")),
    "AdamW betas": (lambda x: optimizer(AdamW, betas=x), (None, 0.9, (0.9,), "x", (2.0, 0.9))),
    "AdamW seed": (lambda x: optimizer(AdamW, seed=x), NUMBERS),
    "AdamW device": (lambda x: optimizer(AdamW, device=x), (None, 0, True, "x")),
    "clip_grad_norm": (clipping, (None, -1, NAN, True, "x", [], torch.ones(2))),
    "load_state_dict": (loading, (None, 0, [], {}, {"state": {}})),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_arguments_that_are_none_are_named_in_a_line(name: str) -> None:
    make, values = CASES[name]
    for value in (*values, sgd(model())):  # the last one is shown in many lines by itself
        with pytest.raises((ValueError, TypeError)) as raised:
            make(value)
        text = str(raised.value)
        assert "\n" not in text, text
        assert ":" in text, text  # what is wrong, and what was expected
        own = re.compile(r"not iterable|no attribute|not supported|not subscriptable|unhashable")
        assert not own.search(text), (value, text)


@pytest.mark.parametrize("make", [sentinel, memferry])
def test_optimizers_of_other_models(make: Callable[..., Any]) -> None:
    given, other = model(), model()
    some = torch.optim.SGD([*given[0].parameters(), *other[0].parameters()], lr=0.1)
    for optimizer, words in ((sgd(other), "4 of the .* 4"), (some, "2 of the .* 4")):
        with pytest.raises(ValueError, match=f"{words} parameters are not the model's"):
            make(model=given, optimizer=optimizer)
    part = torch.optim.SGD(given[0].parameters(), lr=0.1)
    made = make(model=given, optimizer=part)
    if isinstance(made, Sentinel):
        made.close()


def test_sentinel_takes_any_number_of_least_bytes() -> None:
    sentinel(least_bytes=1 << 100).close()


def test_a_second_policy_on_a_full_device() -> None:
    with (
        Axdimm("golden:tiny", options=RULES) as device,
        Offloading(device, AdamW),
        pytest.raises(InvalidArgumentError, match="no memory left: close the policy"),
    ):
        Offloading(device, AdamW)
