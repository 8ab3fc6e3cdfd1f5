"""The lanes of a bank: rounds of products, and of the additions that follow."""

from __future__ import annotations

from functools import lru_cache

from hw.pim.work.layouts import INTERLEAVE

__all__ = ["Group", "Lanes", "group_of"]

RING_ROUNDS = 16
"""Rounds of products that wait for the adder at most."""

# Pipeline latencies, in cycles.
PRODUCTS_READY = 10
"""From a round of products until the adders' sequencer sees them."""
COPIES_READY = 5
"""The same without multiplication."""
ROUND_TO_RESULT = 18
"""From the beginning of a round of results until its store is offered."""
JOB_TO_TREE = 3
"""From a job's beginning until the adders' sequencer looks for its products."""

_LONG_AGO = -(1 << 40)


Group = tuple[tuple[tuple[int, ...], int], ...]
"""What is added up of eight results in a job. For each product the rounds that it makes possible,
each as the cycles before it in which a level is passed over; and the products that are free after
the first one."""


@lru_cache(maxsize=1 << 12)
def group_of(length: int, tap: int, taps: int, first_channel: bool) -> Group:
    """The group of a job of ``length`` elements from tap ``tap`` of a channel of ``taps`` on."""
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


@lru_cache(maxsize=1 << 16)
def _advance(
    group: Group, ready: int, tree: int, started: int, ring: tuple[int, ...], held: bool
) -> tuple[int, int, int, tuple[int, ...]]:
    """Does a group, ``held`` before its last round of additions: the product side's, the
    sequencer's and the adders' time, and when products were freed; all counted from 0, the next
    round of products."""
    product = 0
    freed = list(ring)
    at = 0
    last = len(group) - 1
    for number, (rounds, frees) in enumerate(group):
        if freed[at] >= product:
            product = freed[at] + 1
        at += 1
        begin = max(tree, product + ready)
        valid = begin + 1
        count = len(rounds)
        for place, passed in enumerate(rounds):
            valid += passed
            if held and number == last and place == count - 1:
                return product + 8, valid, started, tuple(freed[at:])
            moved = max(valid, started)
            started = max(moved + 1, started + 8)
            if place == 0:
                freed += [started] * frees
            valid = moved + 1
            tree = moved + 2
        if not rounds:
            tree = begin + 3
        product += 8
    return product, tree, started, tuple(freed[at:])


class Lanes:
    """Times of rounds, one job after the other.

    The ring frees a product's place when the round begins that uses it.
    """

    def __init__(self) -> None:
        self.reset(0)

    def reset(self, cycle: int) -> None:
        """Begins a work."""
        self.product = cycle
        """When the next round of products may begin."""
        self._tree = self._started = cycle - 64
        self._freed: list[int] = [_LONG_AGO] * RING_ROUNDS

    @property
    def quiet(self) -> int:
        """When all rounds so far are over."""
        return max(self.product, self._started + INTERLEAVE) + 1

    def begin(self, cycle: int) -> None:
        """A job is taken in ``cycle``."""
        self.product = max(self.product, cycle + 1)
        self._tree = max(self._tree, cycle + JOB_TO_TREE - 1) + 1

    def group(self, group: Group, ready: int, frame: int | None) -> int:
        """Does a group; returns when its last round of additions begins. With ``frame`` this is of
        results and waits until then."""
        origin = self.product
        ring = tuple(max(-1, freed - origin) for freed in self._freed)
        product, tree, started, freed = _advance(
            group,
            ready,
            max(self._tree - origin, -64),
            max(self._started - origin, -64),
            ring,
            frame is not None,
        )
        self.product = origin + product
        if frame is None:
            self._tree, self._started = origin + tree, origin + started
            self._freed = [origin + each for each in freed]
            return self._started
        rounds, frees = group[-1]
        if len(rounds) > 1:
            frees = 0
        moved = max(origin + tree, origin + started, frame)
        self._started = max(moved + 1, origin + started + 8)
        self._tree = moved + 2
        self._freed = [*(origin + each for each in freed), *[self._started] * frees]
        return self._started
