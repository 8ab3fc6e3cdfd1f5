"""The paper's six system designs, each as the machine that one device-node sees.

All device-nodes do the same at the same time, so one stands for all. Its links are in ports: those
to one store, and those of rings only. A port of memory-nodes carries the bytes of collectives and
the moves to its store.

Rings are those of Figures 5, 7(b) and 7(c), with device-nodes ``D0`` to ``D7`` and memory-nodes
``M0`` to ``M7``. Where the text leaves a link open, its place satisfies the text's hops of each
ring, links of each node and links to memory-nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import cycle, islice, pairwise

from sw_driver.machine import Figure, Link, Machine, MachineError, Memory
from sw_driver.machine.mc_dla import MC_DLA
from sw_driver.numbers import check_fields, check_integer

from ..collectives import RingLane
from ..reproduction import Changes

__all__ = [
    "DC",
    "DESIGNS",
    "DEVICES",
    "HC",
    "LINKS",
    "ORACLE",
    "TOPOLOGIES",
    "B",
    "Design",
    "L",
    "Port",
    "S",
    "catalogue",
    "gaps",
    "lanes",
    "machine_of",
]


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
    """Return the rings of Figure 7(b).

    On two rings, every second step between devices passes memory-nodes: one on the first, three on
    the second. A device-node has a link to a memory-node on each of them.
    """
    order = _CUBE_MESH[1]
    short: list[str] = []
    long: list[str] = []
    for number in range(0, DEVICES, 2):
        one, other = order[number], order[number + 1]
        short += [f"D{one}", f"M{one}", f"D{other}"]
        # Every other memory-node is missing on the short ring, and is twice on the long one.
        after, middle = order[(number + 2) % DEVICES], order[(number + 3) % DEVICES]
        long += [f"D{other}", f"M{other}", f"M{middle}", f"M{after}", f"D{after}"]
    return _PLAIN, tuple(short), tuple(long)


def _ring() -> tuple[Ring, ...]:
    """Return the rings of Figure 7(c), on which devices and memory-nodes alternate."""
    one = [name for number in range(DEVICES) for name in (f"D{number}", f"M{number}")]
    return (tuple(one),) * (LINKS // 2)


TOPOLOGIES = {"5": (_PLAIN, _OTHER, _LAST), "7(b)": _folded(), "7(c)": _ring()}
"""Rings of collectives, by the figure of the paper."""


DEVICES_OF_A_SWITCH = 2
"""Devices behind a PCIe switch with one x16 link to its socket, as in NVIDIA's DGX-1."""


@dataclass(frozen=True, kw_only=True)
class Port:
    """Links of a device-node that are used alike."""

    name: str
    links: float
    rings: bool = True
    """True if rings use them."""
    store: str = ""
    """Memory behind them that tensors can move to, if any."""

    def __post_init__(self) -> None:
        check_fields(self, "links")


@dataclass(frozen=True, kw_only=True)
class Design:
    """Use of a device-node's links."""

    name: str
    topology: str
    """Rings of its collectives, one of :data:`TOPOLOGIES`."""
    ports: tuple[Port, ...]
    stores: tuple[str, ...] = ()
    """Memories that tensors move to, in equal parts at the same time."""

    @property
    def on_host(self) -> bool:
        """True if the stores are the host's memory."""
        return self.stores == (_PCIE.store,)

    @property
    def ring_links(self) -> float:
        """Links that rings use."""
        return sum(port.links for port in self.ports if port.rings)


_BOTH = (Port(name="left", links=3, store="m_left"), Port(name="right", links=3, store="m_right"))
_RINGS = Port(name="rings", links=6)
_PCIE = Port(name="pcie", links=0, rings=False, store="host")

DESIGNS = {
    design.name: design
    for design in (
        Design(name="DC-DLA", topology="5", ports=(_RINGS, _PCIE), stores=("host",)),
        Design(
            name="HC-DLA",
            topology="5",
            ports=(
                Port(name="rings", links=3),
                Port(name="cpu", links=3, rings=False, store="host"),
            ),
            stores=("host",),
        ),
        Design(
            name="MC-DLA(S)",
            topology="7(b)",
            ports=(Port(name="rings", links=4), Port(name="star", links=2, store="m_own")),
            stores=("m_own",),
        ),
        Design(name="MC-DLA(L)", topology="7(c)", ports=_BOTH, stores=("m_left",)),
        Design(name="MC-DLA(B)", topology="7(c)", ports=_BOTH, stores=("m_left", "m_right")),
        Design(name="DC-DLA(O)", topology="5", ports=(_RINGS,)),
    )
}
"""Designs by the paper's names, in its order."""

DC, HC, S, L, B, ORACLE = DESIGNS


def catalogue(changes: Changes | None = None) -> Machine:
    """Return the paper's parts with changes.

    Raises :class:`~sw_driver.machine.parts.MachineError` for changes that are not possible, or that
    nothing here depends on.
    """
    if "node.accesses" in (changes or {}):
        raise MachineError(
            "the key is 'node.accesses', on which nothing depends: a node computes on its own "
            "memory alone"
        )
    return MC_DLA.override(changes or {})


def machine_of(design: Design, parts: Machine, devices: int = DEVICES) -> Machine:
    """Return the machine of one of ``devices`` device-nodes in a design."""
    check_integer("devices", devices)
    link, dimms, pcie = (parts.link(name) for name in ("link", "dimms", "pcie"))
    host = parts.memory("host")
    memories, links, ends = [parts.memory("node")], [], []
    if not design.stores:
        # The oracle's memory has no limit.
        endless = Figure(value=1 << 60, source="paper: infinite", mark="given")
        memories = [replace(memories[0], capacity_bytes=endless)]
    for port in design.ports:
        store = _store(parts, port, design)
        memories += [store] if store else []
        if port is _PCIE:
            share = min(devices, DEVICES_OF_A_SWITCH)
            links.append(
                _times(replace(pcie, a="node", b=host.name), 1 / share, "a switch's share")
            )
            continue
        # As in the paper, a socket's memory is fast enough for all of its devices.
        end = store.name if store and design.on_host else port.name
        one = replace(link, name=port.name, b=end)
        links.append(_times(one, port.links, f"{port.links:g} links"))
        if end == port.name:
            ends.append(end)
        if store and not design.on_host:
            # A memory-node serves two device-nodes. A device-node has half of two memory-nodes. It
            # has half of one in a star, where the other half is idle.
            half = replace(dimms, name=f"{port.name}_dimms", a=port.name, b=store.name)
            links.append(_times(half, 1 / 2, "half of a memory-node"))
    return Machine(
        name=design.name,
        memories=tuple(memories),
        devices=parts.devices,
        links=tuple(links),
        junctions=tuple(ends),
    )


def lanes(design: Design, parts: Machine, devices: int = DEVICES) -> tuple[RingLane, ...]:
    """Return the rings, in both directions, that collectives are spread over.

    Any number of device-nodes have the distances of the topology's eight.
    """
    check_integer("devices", devices)
    link = parts.link("link")
    # Share of each of the topology's ring links that the design has.
    share = design.ring_links / LINKS
    return tuple(
        RingLane(
            gaps=tuple(islice(cycle(gaps(ring)[::way]), devices)),
            gb_per_s=share * rate.value,
            hop_ns=int(link.latency_ns.value),
        )
        for ring in TOPOLOGIES[design.topology]
        for way, rate in ((1, link.write_gb_per_s), (-1, link.read_gb_per_s))
    )


def _store(parts: Machine, port: Port, design: Design) -> Memory | None:
    if not port.store:
        return None
    if design.on_host:
        return parts.memory("host")
    memory = parts.memory("memory_node")
    half = replace(memory.capacity_bytes, value=max(1, memory.capacity_bytes.value // 2))
    setting = f"{memory.name}.capacity_bytes"
    return replace(memory, name=port.store, capacity_bytes=half, setting=setting)


def _times(link: Link, count: float, why: str) -> Link:
    def scaled(figure: Figure) -> Figure:
        source = f"{figure.source}; {why}"
        return Figure(value=figure.value * count, source=source, mark=figure.mark)

    return replace(
        link, read_gb_per_s=scaled(link.read_gb_per_s), write_gb_per_s=scaled(link.write_gb_per_s)
    )
