"""A small model trained with PyTorch's loop, on the module, and with PyTorch's fused optimizer:
how far each of the last two parts from the first.

``python -m hw_tests.driver.torch.side_by_side 1000`` prints a table of all rules.
"""

from __future__ import annotations

import copy
import inspect
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray
from sklearn.datasets import load_digits

import sw_driver.torch
from sw_driver.axdimm import Axdimm

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "adam": ("Adam", {}),
    "amsgrad": ("Adam", {"amsgrad": True, "weight_decay": 0.01}),
    "adamw": ("AdamW", {}),
    "sgd": ("SGD", {"lr": 0.1}),
    "momentum": ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.1}),
    "nesterov": ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-4}),
    "adagrad": ("Adagrad", {"lr_decay": 1e-3, "weight_decay": 1e-4}),
    "rmsprop": ("RMSprop", {"lr": 1e-3}),
}
"""For each rule that PyTorch has: the class, and arguments that use it."""

FEW_ULP = 4

torch.set_num_threads(1)  # so that sums are the same on every machine


@dataclass(frozen=True, kw_only=True)
class Distance:
    """Between parameters here and PyTorch's, in units in the last place (ulp)."""

    single_worst: int
    """After one step from equal state."""
    single_share: float
    """Of at most four."""
    single_worst_of_largest: float
    """In ulp of the model's largest parameter: where a small one is the difference of larger
    numbers, their rounding is many ulp of its own."""
    parted_worst: int
    """After all steps, each in its own state."""
    parted_share: float
    parted_absolute: float
    fused_worst: int | None
    """After all steps, between PyTorch's fused optimizer and PyTorch's loop; None if this optimizer
    has none."""
    fused_share: float | None
    correct: tuple[float, float]
    """Share of the digits that are recognised, here and by PyTorch's."""


def train(rule: str, steps: int, device: Axdimm | str, every: int = 10) -> Distance:
    """Trains on the same batches; compares a single step in ``every``."""
    name, options = CASES[rule]
    images, labels = load_digits(return_X_y=True)
    inputs = torch.tensor(images / 16, dtype=torch.float32)
    targets = torch.tensor(labels)
    torch.manual_seed(0)
    layers = torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)
    theirs = torch.nn.Sequential(*layers)
    ours, stepped, fused = (copy.deepcopy(theirs) for _ in range(3))
    ours_kind, theirs_kind = getattr(sw_driver.torch, name), getattr(torch.optim, name)
    single, absolute = [], []
    with (
        ours_kind(ours.parameters(), device=device, **options) as our_optimizer,
        ours_kind(stepped.parameters(), device=device, **options) as stepper,
    ):
        their_optimizer = theirs_kind(theirs.parameters(), foreach=False, **options)
        has_fused = "fused" in inspect.signature(theirs_kind).parameters
        fused_options = {"fused": True, **options} if has_fused else options
        fused_optimizer = theirs_kind(fused.parameters(), **fused_options)
        batches = torch.Generator().manual_seed(1)
        for step in range(steps):
            batch = torch.randint(0, len(inputs), (32,), generator=batches)
            for model in (ours, theirs, fused):
                model.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(inputs[batch]), targets[batch])
                loss.backward()
            if step % every == 0:
                stepper.load_state_dict(copy.deepcopy(their_optimizer.state_dict()))
                stepped.load_state_dict(theirs.state_dict())
                for one, other in zip(stepped.parameters(), theirs.parameters(), strict=True):
                    one.grad = other.grad
                stepper.step()
            their_optimizer.step()
            our_optimizer.step()
            fused_optimizer.step()
            if step % every == 0:
                one, other = flat(stepped), flat(theirs)
                single.append(ulps(one, other))
                absolute.append(np.abs(one - other).max() / np.spacing(np.abs(other).max()))
    with torch.no_grad():
        correct = [
            (model(inputs).argmax(1) == targets).float().mean().item() for model in (ours, theirs)
        ]
    one, other = flat(ours), flat(theirs)
    between_theirs = ulps(flat(fused), other)
    return Distance(
        single_worst=int(np.max(single)),
        single_share=float(np.mean(np.array(single) <= FEW_ULP)),
        single_worst_of_largest=float(np.max(absolute)),
        parted_worst=int(ulps(one, other).max()),
        parted_share=float(np.mean(ulps(one, other) <= FEW_ULP)),
        parted_absolute=float(np.abs(one - other).max()),
        fused_worst=int(between_theirs.max()) if has_fused else None,
        fused_share=float(np.mean(between_theirs <= FEW_ULP)) if has_fused else None,
        correct=(correct[0], correct[1]),
    )


def flat(model: torch.nn.Module) -> NDArray[np.float32]:
    """A copy of all parameters of a model."""
    return np.concatenate([each.detach().numpy().ravel() for each in model.parameters()])


def ulps(one: NDArray[np.float32], other: NDArray[np.float32]) -> NDArray[np.int64]:
    """How many FP32 numbers lie between."""

    def ordered(values: NDArray[np.float32]) -> NDArray[np.int64]:
        bits = values.view(np.int32).astype(np.int64)
        return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)

    return np.abs(ordered(one) - ordered(other))


if __name__ == "__main__":
    steps = int(sys.argv[1])
    for rule in CASES:
        found = train(rule, steps, "golden", every=1)
        fused = "— | —"
        if found.fused_share is not None:
            fused = f"{found.fused_worst} | {found.fused_share:.1%}"
        print(
            f"| `{rule}` | {found.single_worst} | {found.single_share:.3%} | "
            f"{found.single_worst_of_largest:.1f} | {found.parted_worst} | "
            f"{found.parted_share:.1%} | {fused} | "
            f"{found.parted_absolute:.1e} | {found.correct[0]:.2%}, {found.correct[1]:.2%} |"
        )
