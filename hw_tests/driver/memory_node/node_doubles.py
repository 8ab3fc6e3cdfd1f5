"""Golden memory-nodes that keep what they were asked, change it, and hold back their answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sw_driver.device.clock import Domain, Steps
from sw_driver.memory_node.backends.golden import GoldenNetwork
from sw_driver.memory_node.network import Piece

__all__ = ["LOCAL_BYTES", "SHARE_BYTES", "Recorded"]

LOCAL_BYTES = 1 << 16
SHARE_BYTES = 1 << 17


class Recorded(GoldenNetwork):
    """Copies pieces as ``change`` makes them; their ends come ``held_cycles`` later."""

    def __init__(
        self, *, held_cycles: int = 0, change: Callable[[Piece], Piece] = lambda piece: piece
    ) -> None:
        super().__init__(local_bytes=LOCAL_BYTES, share_bytes=SHARE_BYTES)
        self.timed = True
        self.domain = Domain(question_cycles=1)
        self.started: list[tuple[int, Piece]] = []
        self.held_cycles = held_cycles
        self._change = change
        self._now = 0
        self._held: list[tuple[int, Any]] = []

    def copy_steps(
        self, device: int, pieces: Sequence[Piece], reach: Callable[[int], None]
    ) -> Steps:
        changed = [self._change(piece) for piece in pieces]
        self.started += [(device, piece) for piece in changed]
        return (yield from super().copy_steps(device, changed, reach))

    def _over(self, *answer: Any) -> None:
        self._held.append((self._now + self.held_cycles, answer))
        self.advance(0)

    def advance(self, cycles: int) -> None:
        self._now += cycles
        due = [each for each in self._held if each[0] <= self._now]
        self._held = [each for each in self._held if each[0] > self._now]
        for _, answer in due:
            super()._over(*answer)

    def cycles(self) -> int:
        return self._now
