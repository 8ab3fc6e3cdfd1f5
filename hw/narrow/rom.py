"""Constant tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Module, unsigned
from amaranth.lib.memory import Memory

from hw.float.parts import Bits

__all__ = ["lookup"]


def lookup(
    m: Module, name: str, words: Sequence[int], width: int, address: Bits, *, block: bool = False
) -> Bits:
    """Return the word of ``width`` bits at ``address``.

    Lookup tables give it in the same cycle, a block RAM (``block``) in the next.
    """
    memory = Memory(
        shape=unsigned(width),
        depth=len(words),
        init=words,
        attrs={"rom_style": "block"} if block else {},
    )
    m.submodules[name] = memory
    port: Any = memory.read_port(domain="sync" if block else "comb")
    m.d.comb += port.addr.eq(address)
    return port.data
