"""How often the sides of an interface pause in a bench."""

from __future__ import annotations

import random
from collections.abc import Iterator

__all__ = ["STALLS", "pauses"]

STALLS: dict[str, float] = {"none": 0.0, "random": 0.4, "heavy": 0.85}
"""Named probabilities that a side pauses in a cycle."""


def pauses(share: float, seed: object) -> Iterator[bool]:
    """For each cycle, without end, whether a side pauses in it."""
    rng = random.Random(str(seed))
    while True:
        yield rng.random() < share
