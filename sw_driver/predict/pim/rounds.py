"""Lanes of a bank: rounds of products, and of the additions that follow."""

from __future__ import annotations

from collections import deque
from functools import lru_cache

from hw.pim.work.layouts import INTERLEAVE

__all__ = ["BankLanes", "Group", "group_of"]

RING_ROUNDS = 16
"""Rounds of products that wait for the adder, at most."""

# Pipeline latencies, in cycles.
PRODUCTS_READY = 10
"""From a round of products until the adders' sequencer sees them."""
COPIES_READY = 5
"""From a round of copies, without multiplication, until the sequencer sees them."""
ROUND_TO_RESULT = 18
"""From the beginning of a round of results until its store is offered."""
JOB_TO_TREE = 3
"""From a job's beginning until the adders' sequencer looks for its products."""

_LONG_AGO = -(1 << 40)


Group = tuple[tuple[tuple[int, ...], int], ...]
"""Additions of a job for eight results, product by product.

A product has a tuple of the rounds that it makes possible, and the products that are free after the
first of these. A round is the number of cycles before it in which a level is passed over.
"""


@lru_cache(maxsize=1 << 12)
def group_of(length: int, tap: int, taps: int, first_channel: bool) -> Group:
    """Return the group of a job of ``length`` elements, from ``tap`` of a channel of ``taps``."""
    products = []
    tau = tap
    for _ in range(length):
        last = tau == taps - 1
        rounds: list[int] = []
        bits, passed = tau, 0
        while True:
            if bits & 1:
                rounds.append(passed)
                passed = 0
                if (last and bits == 1 and first_channel) or (not last and not bits & 2):
                    break
            elif last and bits:
                passed += 1
            elif last and (not rounds or not first_channel):
                rounds.append(passed)
                break
            else:
                break
            bits >>= 1
        products.append((tuple(rounds), 2 if tau & 1 else 1))
        tau += 1
        if last:
            tau, first_channel = 0, False
    return tuple(products)


class BankLanes:
    """Timing of a work's rounds from ``cycle`` on, one job after the other.

    The ring frees a product's place when the round that uses it begins.
    """

    def __init__(self, cycle: int) -> None:
        self.product = cycle
        """Cycle in which the next round of products may begin."""
        self._tree = self._started = cycle - 64
        self._freed = deque([_LONG_AGO] * RING_ROUNDS)

    @property
    def quiet(self) -> int:
        """Cycle in which all rounds so far are over."""
        return max(self.product, self._started + INTERLEAVE) + 1

    def begin(self, cycle: int) -> None:
        """Take a job in ``cycle``."""
        self.product = max(self.product, cycle + 1)
        self._tree = max(self._tree, cycle + JOB_TO_TREE - 1) + 1

    def group(self, group: Group, ready: int, frame: int | None) -> int:
        """Do a group; return the cycle in which its last round of additions begins.

        Products are available ``ready`` cycles after their round. With ``frame``, the last round
        forms results and waits until that cycle.
        """
        product, tree, started, freed = self.product, self._tree, self._started, self._freed
        for number, (rounds, frees) in enumerate(group, 1):
            product = max(product, freed.popleft() + 1)
            begin = max(tree, product + ready)
            valid, tree = begin + 1, begin + 3
            for place, passed in enumerate(rounds, 1):
                moved = max(valid + passed, started)
                if frame is not None and number == len(group) and place == len(rounds):
                    moved = max(moved, frame)
                started = max(moved + 1, started + INTERLEAVE)
                if place == 1:
                    freed.extend([started] * frees)
                valid, tree = moved + 1, moved + 2
            product += INTERLEAVE
        self.product, self._tree, self._started = product, tree, started
        return started
