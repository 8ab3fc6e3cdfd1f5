"""The registers of a memory-node by their names."""

from __future__ import annotations

from collections.abc import Callable

from hw.csr.register_map import load_registers
from hw.memory_node.registers.node_registers import (
    GROUPS_OFFSET_BYTES,
    LINKS_OFFSET_BYTES,
    MEMORY_NODE_RDL,
    PART_BYTES,
)

__all__ = ["NodeRegisters"]


class NodeRegisters:
    """The registers behind ``read`` and ``write``, which take byte offsets; ``KeyError`` for names
    that the map does not have."""

    def __init__(self, read: Callable[[int], int], write: Callable[[int, int], object]) -> None:
        self._read = read
        self._write = write
        self._node, self._group, self._link = (
            load_registers(name, MEMORY_NODE_RDL)
            for name in ("memory_node", "memory_node_group", "memory_node_link")
        )

    def node(self, register: str) -> int:
        """A register of the node, all its bits."""
        return self._read(self._node[register].offset_bytes)

    def place(self, *, identity: int, date_line: bool) -> None:
        """Tells the node its number, and whether the date line of its rings is here."""
        register = self._node["node"]
        value = identity << register["identity"].lsb | date_line << register["date_line"].lsb
        self._write(register.offset_bytes, value)

    def allocate(self, group: int, *, owner: int, base: int, size: int) -> None:
        """Gives the memory of a group from ``base`` on to the device ``owner``."""
        start = GROUPS_OFFSET_BYTES + PART_BYTES * group
        for name, value in (("base", base), ("size", size), ("owner", owner)):
            self._write(start + self._group[name].offset_bytes, value)

    def group(self, group: int, register: str) -> int:
        """A register of a group."""
        start = GROUPS_OFFSET_BYTES + PART_BYTES * group
        return self._read(start + self._group[register].offset_bytes)

    def link(self, link: int, register: str) -> int:
        """A register of a link."""
        start = LINKS_OFFSET_BYTES + PART_BYTES * link
        return self._read(start + self._link[register].offset_bytes)
