"""How often the sides of an interface pause in a bench."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["STALLS", "pause_channels", "pauses"]

STALLS: dict[str, float] = {"none": 0.0, "random": 0.4, "heavy": 0.85}
"""Named probabilities that a side pauses in a cycle."""


def pauses(share: float, seed: object) -> Iterator[bool]:
    """For each cycle, without end, whether a side pauses in it."""
    rng = random.Random(str(seed))
    while True:
        yield rng.random() < share


def pause_channels(interface: Any, shares: float | Mapping[str, float], seed: object) -> None:
    """Has each channel of a manager or subordinate of cocotbext-axi pause at random.

    ``shares`` are those of the channels (``ar r aw w b``), or one for all.
    """
    for part in (interface.write_if, interface.read_if):
        for name in ("aw", "w", "b", "ar", "r"):
            channel = getattr(part, f"{name}_channel", None)
            share = shares.get(name, 0.0) if isinstance(shares, Mapping) else shares
            # A generator overrules whoever sets `pause`.
            if channel is not None and share > 0:
                channel.set_pause_generator(pauses(share, f"{seed} {name}"))
