"""The six system designs that the paper evaluates, each as the machine that one device-node sees.

All device-nodes do the same at the same time, so one stands for all. Its links are in ports: those
that lead to the same store, and those of rings only. A port of memory-nodes carries what
collectives send as well as what is moved to the store behind it.

Rings are those of Figures 5, 7(b) and 7(c), of device-nodes ``D0`` to ``D7`` and memory-nodes
``M0`` to ``M7``. Where the text leaves a link open, it is placed so that the hops of each ring, the
links of each node and the links to memory-nodes are as the text has them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import cycle, islice, pairwise

from sw_driver.machine import Figure, Link, Machine, MachineError, Memory
from sw_driver.machine.mc_dla import MC_DLA
from sw_driver.numbers import check_fields, check_integer

from ..collectives import Lane
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


DEVICES_OF_A_SWITCH = 2
"""NVIDIA's DGX-1: each PCIe switch has two GPUs, and one x16 link to its socket."""


@dataclass(frozen=True, kw_only=True)
class Port:
    """Links of a device-node that are alike."""

    name: str
    links: float
    rings: bool = True
    """Whether rings lead over them."""
    store: str = ""
    """What is behind them, if anything can be moved there."""

    def __post_init__(self) -> None:
        check_fields(self, "links")


@dataclass(frozen=True, kw_only=True)
class Design:
    """How a device-node's links are used."""

    name: str
    topology: str
    """Of :data:`~sw_driver.system.mc_dla.designs.TOPOLOGIES`: the rings of its collectives."""
    ports: tuple[Port, ...]
    stores: tuple[str, ...] = ()
    """Where what is moved out goes, in equal parts at the same time; nowhere if there are none."""

    @property
    def on_host(self) -> bool:
        """Whether the stores are the host's memory."""
        return self.stores == (_PCIE.store,)

    @property
    def ring_links(self) -> float:
        return sum(port.links for port in self.ports if port.rings)


_BOTH = (Port(name="left", links=3, store="m_left"), Port(name="right", links=3, store="m_right"))
_RINGS = Port(name="rings", links=6)
_PCIE = Port(name="pcie", links=0, rings=False, store="host")

DESIGNS = {
    each.name: each
    for each in (
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
"""By the paper's names, in its order."""

DC, HC, S, L, B, ORACLE = DESIGNS


def catalogue(changes: Changes | None = None) -> Machine:
    """Return the paper's parts with changes.

    Raises :class:`~sw_driver.machine.parts.MachineError` for changes that cannot be made, or that
    nothing here depends on.
    """
    if "node.accesses" in (changes or {}):
        raise MachineError(
            "the key is 'node.accesses', on which nothing depends: a node computes on its own "
            "memory alone"
        )
    return MC_DLA.override(changes or {})


def machine_of(design: Design, parts: Machine, devices: int = DEVICES) -> Machine:
    """What one of so many device-nodes has in a design."""
    check_integer("devices", devices)
    link, dimms, pcie = (parts.link(name) for name in ("link", "dimms", "pcie"))
    host = parts.memory("host")
    memories, links, ends = [parts.memory("node")], [], []
    if not design.stores:
        # The oracle's has no end.
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
        # As the paper: a socket's memory is fast enough for all of its devices.
        end = store.name if store and design.on_host else port.name
        one = replace(link, name=port.name, b=end)
        links.append(_times(one, port.links, f"{port.links:g} links"))
        if end == port.name:
            ends.append(end)
        if store and not design.on_host:
            # Each memory-node serves two device-nodes, and each of those has half of two, or of
            # one if it has one of its own, whose other half idles.
            half = replace(dimms, name=f"{port.name}_dimms", a=port.name, b=store.name)
            links.append(_times(half, 1 / 2, "half of a memory-node"))
    return Machine(
        name=design.name,
        memories=tuple(memories),
        devices=parts.devices,
        links=tuple(links),
        junctions=tuple(ends),
    )


def lanes(design: Design, parts: Machine, devices: int = DEVICES) -> tuple[Lane, ...]:
    """The rings, in both directions, that collectives are spread over. More device-nodes than the
    topology has, or fewer, are as far from each other as its own."""
    check_integer("devices", devices)
    link = parts.link("link")
    # Of each ring link that the topology has, how much there is here.
    share = design.ring_links / LINKS
    return tuple(
        Lane(
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
