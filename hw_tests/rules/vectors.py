"""Operands for the functional units, and constants at the extremes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from golden.rules import reference
from hw_tests.float.vectors import SPECIAL, uniform_bits
from hw_tests.rules.hyperparameters import hyperparameters

__all__ = ["SETS", "constants_of", "operands"]

Floats = NDArray[np.float32]

_NEXT_TO_ONE = 1 - 2**-53
_FAST = {"beta1": 0.5, "beta2": 0.5, "t": 1}
SETS: dict[str, dict[str, float]] = {
    "first step": {"t": 1},
    "large t": {"t": 10**9},
    "weight decay": {"lr": 3e-4, "beta2": 0.98, "eps": 1e-9, "weight_decay": 0.1, "t": 7},
    "no memory": {
        **dict.fromkeys(("beta1", "beta2", "eps", "momentum", "dampening", "alpha"), 0.0),
        "lr": 1.0,
        "t": 3,
    },
    "next to one": {
        **dict.fromkeys(("beta1", "beta2", "momentum", "dampening", "alpha"), _NEXT_TO_ONE),
        "weight_decay": 1e-4,
    },
    "long memory": {"beta1": 0.9999, "beta2": 0.9999999, "alpha": 0.9999999, "weight_decay": 1e-2},
    "subnormal constants": {
        "lr": 1e-40,
        "beta1": 1e-41,
        "beta2": 1e-39,
        "eps": 1e-44,
        "weight_decay": 3e-42,
        "momentum": 1e-40,
        "alpha": 1e-41,
        "scale": -1e-41,
    },
    "huge rate": {**_FAST, "lr": 3e38, "eps": 3e38, "weight_decay": 1.0, "scale": 3e38},
    "huge decay": {**_FAST, "lr": 1.0, "weight_decay": 3e38, "scale": -3e38},
}
"""Hyper-parameters by what is special about them; the others are as usual."""


def constants_of(name: str, label: str) -> dict[str, np.float32]:
    """The constants of a rule for one of :data:`SETS`."""
    return reference(name).constants(**hyperparameters(name, **{"t": 2} | SETS[label]))


def operands(seed: int, names: Sequence[str], count: int) -> list[Floats]:
    """``count`` sets of tensors: training-like, tiny (subnormal squares), special, and any bits."""
    rng = np.random.default_rng([seed, 0xADA])
    share = count // 4 + 1

    def normal(scale: float) -> Floats:
        return (rng.standard_normal(share) * scale).astype(np.float32)

    def wide(low: float, high: float) -> Floats:
        return (rng.choice([-1.0, 1.0], share) * 10 ** rng.uniform(low, high, share)).astype(
            np.float32
        )

    def training(name: str) -> Floats:
        if name in "vxs":
            return np.abs(normal(1e-4))
        return normal(0.1 if name in "py" else 0.01)

    def tiny(name: str) -> Floats:
        # Gradients of which the square is subnormal or vanishes, second moments likewise.
        if name in "vxs":
            return np.abs(wide(-46, -36))
        return wide(-3, 1) if name in "py" else wide(-30, -17)

    signed = np.concatenate([SPECIAL, SPECIAL | np.uint32(1 << 31)])

    def sometimes(name: str) -> Floats:
        special = rng.choice(signed, share).view(np.float32)
        return np.where(rng.random(share) < 0.4, special, training(name)).astype(np.float32)

    def any_bits(_: str) -> Floats:
        return uniform_bits(rng, share).view(np.float32)

    order = rng.permutation(4 * share)[:count]
    groups = (training, tiny, sometimes, any_bits)
    return [np.concatenate([group(name) for group in groups])[order] for name in names]
