"""The rings of the device-side interconnects in the paper's Figures 5, 7(b) and 7(c).

A node is named as in the paper: device-nodes ``D0`` to ``D7``, memory-nodes ``M0`` to ``M7``. Each
has six links. Where the text leaves a link open, it is placed so that the hops of each ring, the
links of each node and the links to memory-nodes are as the text has them.
"""

from __future__ import annotations

from itertools import pairwise

__all__ = ["LINKS", "TOPOLOGIES", "gaps"]

LINKS = 6
"""Links of each node."""
DEVICES = 8

Ring = tuple[str, ...]
"""A closed walk: the nodes in order, each step over a link of its own."""


def gaps(ring: Ring) -> tuple[int, ...]:
    """Return the hops from each device-node of a ring to the next."""
    places = [number for number, node in enumerate(ring) if node.startswith("D")]
    return tuple(after - here for here, after in pairwise([*places, places[0] + len(ring)]))


# Three Hamiltonian cycles of NVIDIA's hybrid cube-mesh, in which some pairs have two links.
_CUBE_MESH = (
    (0, 1, 2, 3, 7, 5, 6, 4),
    (0, 2, 6, 7, 4, 5, 1, 3),
    (0, 3, 2, 1, 5, 6, 7, 4),
)

_PLAIN, _OTHER, _LAST = (tuple(f"D{number}" for number in order) for order in _CUBE_MESH)


def _folded() -> tuple[Ring, ...]:
    """Figure 7(b): of two rings every second step from device to device leads over memory-nodes:
    over one, or over three. A device-node has a link to a memory-node on each."""
    order = _CUBE_MESH[1]
    short: list[str] = []
    long: list[str] = []
    for number in range(0, DEVICES, 2):
        one, other = order[number], order[number + 1]
        short += [f"D{one}", f"M{one}", f"D{other}"]
        # Every other memory-node has not been on the short ring, and is twice on the long one.
        after, middle = order[(number + 2) % DEVICES], order[(number + 3) % DEVICES]
        long += [f"D{other}", f"M{other}", f"M{middle}", f"M{after}", f"D{after}"]
    return _PLAIN, tuple(short), tuple(long)


def _ring() -> tuple[Ring, ...]:
    """Figure 7(c): on each ring devices and memory-nodes take turns."""
    one = [each for number in range(DEVICES) for each in (f"D{number}", f"M{number}")]
    return (tuple(one),) * (LINKS // 2)


TOPOLOGIES = {"5": (_PLAIN, _OTHER, _LAST), "7(b)": _folded(), "7(c)": _ring()}
"""Rings that collectives use, by the figure of the paper."""
