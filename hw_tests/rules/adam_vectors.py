"""Parameters, gradients and moments for the Adam unit, and constants at the extremes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from golden.rules.adam import AdamConstants, adam_constants
from hw_tests.float.vectors import SPECIAL, uniform_bits

__all__ = ["hyper_parameters", "operands"]

Floats = NDArray[np.float32]

_NEXT_TO_ONE = 1 - 2**-53


def hyper_parameters() -> dict[str, AdamConstants]:
    """Constants by what is special about them."""
    arguments = {
        # lr, beta1, beta2, eps, weight decay, t
        "first step": (1e-3, 0.9, 0.999, 1e-8, 0.0, 1),
        "large t": (1e-3, 0.9, 0.999, 1e-8, 0.0, 10**9),
        "weight decay": (3e-4, 0.9, 0.98, 1e-9, 0.1, 7),
        "no memory": (1.0, 0.0, 0.0, 0.0, 0.0, 3),
        "betas next to one": (1e-2, _NEXT_TO_ONE, _NEXT_TO_ONE, 1e-8, 1e-4, 1),
        "long memory": (1e-2, 0.9999, 0.9999999, 1e-8, 1e-2, 2),
        "subnormal constants": (1e-40, 1e-41, 1e-39, 1e-44, 3e-42, 2),
        "huge constants": (3e38, 0.5, 0.5, 3e38, 3e38, 1),
    }
    return {name: adam_constants(*each) for name, each in arguments.items()}


def operands(seed: int, count: int) -> tuple[Floats, Floats, Floats, Floats]:
    """``count`` sets of p, g, m, v: training-like, tiny (subnormal v), special, and any bits."""
    rng = np.random.default_rng([seed, 0xADA])
    share = count // 4 + 1
    groups = []

    def normal(scale: float) -> Floats:
        return (rng.standard_normal(share) * scale).astype(np.float32)

    def wide(low: float, high: float) -> Floats:
        return (rng.choice([-1.0, 1.0], share) * 10 ** rng.uniform(low, high, share)).astype(
            np.float32
        )

    groups.append((normal(0.1), normal(0.01), normal(0.01), np.abs(normal(1e-4))))
    # Gradients of which the square is subnormal or vanishes, second moments likewise.
    groups.append((wide(-3, 1), wide(-30, -17), wide(-30, -17), np.abs(wide(-46, -36))))
    signed = np.concatenate([SPECIAL, SPECIAL | np.uint32(1 << 31)])

    def sometimes(values: Floats) -> Floats:
        special = rng.choice(signed, share).view(np.float32)
        return np.where(rng.random(share) < 0.4, special, values).astype(np.float32)

    groups.append(
        (
            sometimes(normal(0.1)),
            sometimes(normal(0.01)),
            sometimes(normal(0.01)),
            sometimes(np.abs(normal(1e-4))),
        )
    )
    groups.append(tuple(uniform_bits(rng, share).view(np.float32) for _ in range(4)))
    order = rng.permutation(4 * share)[:count]
    p, g, m, v = (np.concatenate(column)[order] for column in zip(*groups, strict=True))
    return p, g, m, v
