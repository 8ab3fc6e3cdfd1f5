"""The device-side interconnects of the paper's Figures 5 and 7, as graphs and their rings.

A node is named as in the paper: device-nodes ``D0`` to ``D7``, memory-nodes ``M0`` to ``M7``. Each
has six links. The figures are not in words; where those leave a link open it is placed so that
everything they do say is so: hops of each ring, links of each node, and how many reach a
memory-node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["LINKS", "TOPOLOGIES", "Topology"]

LINKS = 6
"""Of each node."""
DEVICES = 8

Ring = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Rings are closed walks: the nodes in order, each step over a link of its own."""

    name: str
    rings: tuple[Ring, ...]
    """Those that collectives use."""
    unused: tuple[Ring, ...] = ()
    """Links that no collective uses, and no device-node has."""

    @property
    def links(self) -> Counter[frozenset[str]]:
        """How many links there are between each two nodes."""
        steps = [step for ring in (*self.rings, *self.unused) for step in _steps(ring)]
        return Counter(frozenset(step) for step in steps)

    @property
    def hops(self) -> tuple[int, ...]:
        """Of each ring."""
        return tuple(len(ring) for ring in self.rings)

    def gaps(self, ring: Ring) -> tuple[int, ...]:
        """Hops from each device-node of a ring to the next."""
        places = [number for number, node in enumerate(ring) if node.startswith("D")]
        return tuple(after - here for here, after in pairwise([*places, places[0] + len(ring)]))

    def to_memory(self, device: str) -> dict[str, int]:
        """Links of a device-node by the memory-node that they reach."""
        found: dict[str, int] = {}
        for ends, count in self.links.items():
            (other,) = ends - {device} if device in ends else ("",)
            if other.startswith("M"):
                found[other] = count
        return found


def _steps(ring: Ring) -> Sequence[tuple[str, str]]:
    return list(pairwise([*ring, ring[0]]))


# Three Hamiltonian cycles of NVIDIA's hybrid cube-mesh, in which some pairs have two links.
_CUBE_MESH = (
    (0, 1, 2, 3, 7, 5, 6, 4),
    (0, 2, 6, 7, 4, 5, 1, 3),
    (0, 3, 2, 1, 5, 6, 7, 4),
)


_PLAIN, _OTHER, _LAST = (tuple(f"D{number}" for number in order) for order in _CUBE_MESH)
_OF_MEMORIES = tuple(f"M{number}" for number in _CUBE_MESH[0])


def _star() -> Topology:
    """Figure 7(a): each memory-node hangs from its device-node, and the third ring passes it on
    the way in and on the way out."""
    long = [each for number in _CUBE_MESH[2] for each in (f"M{number}", f"D{number}", f"M{number}")]
    return Topology(name="7(a)", rings=(_PLAIN, _OTHER, tuple(long)), unused=(_OF_MEMORIES,))


def _folded() -> Topology:
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
    rings = (_PLAIN, tuple(short), tuple(long))
    return Topology(name="7(b)", rings=rings, unused=(_OF_MEMORIES,))


def _ring() -> Topology:
    """Figure 7(c): on each ring devices and memory-nodes take turns."""
    one = [each for number in range(DEVICES) for each in (f"D{number}", f"M{number}")]
    return Topology(name="7(c)", rings=(tuple(one),) * (LINKS // 2))


TOPOLOGIES = {
    each.name: each
    for each in (
        Topology(name="5", rings=(_PLAIN, _OTHER, _LAST)),
        _star(),
        _folded(),
        _ring(),
    )
}
"""By the figure of the paper."""
