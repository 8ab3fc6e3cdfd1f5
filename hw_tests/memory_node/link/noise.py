"""Wires that lose and corrupt phits."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass

from hw_tests.memory_node.link.phits import Phit

__all__ = ["NOISES", "Noise", "NoisyWire"]


@dataclass(frozen=True, kw_only=True)
class Noise:
    """For each cycle the chance of each kind of harm."""

    flip: float = 0.0
    """One bit of the data is wrong, or several beside each other."""
    lose: float = 0.0
    """A phit is not seen."""
    first: float = 0.0
    """``first`` is wrong."""
    appear: float = 0.0
    """There is a phit where none was sent: the last one again, or anything."""
    burst: float = 0.0
    """For up to 40 cycles, any signal may be wrong."""


NOISES = {
    "none": Noise(),
    "random": Noise(flip=0.004, lose=0.002, first=0.002, appear=0.002, burst=0.0002),
    "heavy": Noise(flip=0.02, lose=0.01, first=0.01, appear=0.05, burst=0.002),
}


class NoisyWire:
    """Carries what is given to it in a cycle to ``delay`` cycles later, 1 or more.

    While ``cut``, nothing arrives.
    """

    def __init__(self, noise: str | Noise, phit_bytes: int, *, delay: int, seed: object) -> None:
        self.harmed = 0
        """Cycles in which something was wrong."""
        self.cut = False
        self._noise = noise if isinstance(noise, Noise) else NOISES[noise]
        self._bits = 8 * phit_bytes
        self._chance = random.Random(f"{self._noise} {seed}")
        self._under_way: deque[Phit | None] = deque([None] * (delay - 1))
        self._last = Phit(False, bytes(phit_bytes))
        self._burst = 0

    def carry(self, phit: Phit | None) -> Phit | None:
        """What goes in and what comes out, in one cycle."""
        self._under_way.append(self._harm(phit))
        came = self._under_way.popleft()
        return None if self.cut else came

    def calm(self) -> None:
        """Nothing is wrong any more."""
        self._noise = NOISES["none"]

    def _harm(self, phit: Phit | None) -> Phit | None:
        noise, chance = self._noise, self._chance.random
        if noise == NOISES["none"]:
            return phit
        given = phit
        if self._burst:
            self._burst -= 1
        elif chance() < noise.burst:
            self._burst = self._chance.randint(2, 40)
        weight = 20 if self._burst else 1
        if phit is None:
            if chance() < weight * noise.appear:
                anything = self._chance.getrandbits(self._bits).to_bytes(self._bits // 8, "little")
                data = self._last.data if chance() < 0.5 else anything
                phit = Phit(chance() < 0.5, data)
        else:
            self._last = phit
            if chance() < weight * noise.first:
                phit = Phit(not phit.first, phit.data)
            if chance() < weight * noise.flip:
                wrong = self._chance.getrandbits(self._chance.choice((1, 2, 8, 40))) | 1
                wrong <<= self._chance.randrange(self._bits)
                wrong &= (1 << self._bits) - 1
                data = int.from_bytes(phit.data, "little") ^ wrong
                phit = Phit(phit.first, data.to_bytes(len(phit.data), "little"))
            if chance() < weight * noise.lose:
                phit = None
        self.harmed += phit != given
        return phit
