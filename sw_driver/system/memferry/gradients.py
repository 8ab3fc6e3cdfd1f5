"""Which gradients stay in the GPU's memory: D(i, j) of the paper.

D(i, j) is the most that the backward passes of i layers gain over writing each gradient by DHA, if
those that stay take j bytes at most. Instead of a table of bytes there is a list of choices, those
with most gain for their bytes first, so that the result is exact. A choice is dropped if another
takes no more and gains as much, or if it cannot reach what another reaches for sure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate

from .link import Mode, backward_way
from .profile import ModelProfile

__all__ = ["gradients"]


def gradients(profile: ModelProfile, modes: Sequence[Mode], room_bytes: int) -> tuple[bool, ...]:
    """For each layer, whether its gradient stays in the GPU's memory, where they take
    ``room_bytes`` at most. One that gains nothing is written to the host's."""
    gains = [
        backward_way(layer, mode, False)[0] - backward_way(layer, mode, True)[0]
        for layer, mode in zip(profile.layers, modes, strict=True)
    ]
    sizes = [layer.nbytes for layer in profile.layers]
    order = sorted(
        (i for i, gain in enumerate(gains) if gain > 0),
        key=lambda i: (sizes[i] > 0, -Fraction(gains[i], sizes[i] or 1)),
    )
    taken = list(accumulate((sizes[i] for i in order), initial=0))
    gained = list(accumulate((gains[i] for i in order), initial=0))

    def reach(number: int, nbytes: int, gain: int) -> tuple[int, int]:
        """Gain with those of the rest, in order, that fit whole, and with a part of the next."""
        left = room_bytes - nbytes + taken[number]
        last = bisect_right(taken, left) - 1
        surely = gain + gained[last] - gained[number]
        if last == len(order):
            return surely, surely
        return surely, surely + (left - taken[last]) * gains[order[last]] // sizes[order[last]]

    choices: list[tuple[int, int, tuple]] = [(0, 0, ())]
    """Bytes, gain, and the layer that stays last, with those before it."""
    sure = 0
    for number, i in enumerate(order, 1):
        more = [
            (nbytes + sizes[i], gain + gains[i], (i, before))
            for nbytes, gain, before in choices
            if nbytes + sizes[i] <= room_bytes
        ]
        kept: list[tuple[int, int, tuple]] = []
        for choice in sorted(choices + more, key=lambda each: (each[0], -each[1])):
            surely, at_most = reach(number, *choice[:2])
            sure = max(sure, surely)
            if at_most >= sure and (not kept or choice[1] > kept[-1][1]):
                kept.append(choice)
        choices = kept
    chain = choices[-1][2]
    stays = [False] * len(sizes)
    while chain:
        stays[chain[0]], chain = True, chain[1]
    return tuple(stays)
