"""Two link ports in one simulation, with the wires between them left to the bench."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import wiring

from hw.memory_node.link.config import LinkConfig
from hw.memory_node.link.port import LinkPort

__all__ = ["LinkPair"]


class LinkPair(wiring.Component):
    """Members ``a`` and ``b`` are those of a :class:`~hw.memory_node.link.port.LinkPort` each."""

    def __init__(self, config: LinkConfig) -> None:
        self._ports = [LinkPort(config) for _ in range(2)]
        super().__init__(
            {
                f"{name}_{member}": of
                for name, port in zip("ab", self._ports, strict=True)
                for member, of in port.signature.members.items()
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        for name, port in zip("ab", self._ports, strict=True):
            m.submodules[name] = port
            for member in port.signature.members:
                outside = getattr(self, f"{name}_{member}")
                _join(m, port.signature.members[member], getattr(port, member), outside)
        return m


def _join(m: Any, member: wiring.Member, inside: Any, outside: Any) -> None:
    if member.dimensions:
        for one, other in zip(inside, outside, strict=True):
            wiring.connect(m, one, wiring.flipped(other))
    elif member.is_signature:
        wiring.connect(m, inside, wiring.flipped(outside))
    elif member.flow is wiring.Out:
        m.d.comb += outside.eq(inside)
