"""Registers of a memory-node by name."""

from __future__ import annotations

from collections.abc import Callable

from hw.csr.register_map import load_registers
from hw.memory_node.registers.node_registers import (
    GROUPS_OFFSET_BYTES,
    LINKS_OFFSET_BYTES,
    MEMORY_NODE_RDL,
    PART_BYTES,
)

from ..device.registers import RegisterWindow
from ..numbers import check_integer

__all__ = ["NodeRegisters"]


class NodeRegisters:
    """Registers of a memory-node, accessed by byte offset through ``read`` and ``write``.

    Unknown names raise ``KeyError``.
    """

    def __init__(self, read: Callable[[int], int], write: Callable[[int, int], object]) -> None:
        self._access = read, write

    def node(self, register: str) -> int:
        """Return all bits of a node register."""
        return self._window("memory_node").read(register)

    def place(self, *, identity: int, date_line: bool) -> None:
        """Set the node's number, and whether the date line of its rings is here."""
        window = self._window("memory_node")
        register = window["node"]
        value = identity << register["identity"].lsb | date_line << register["date_line"].lsb
        window.write("node", value)

    def allocate(self, group: int, *, owner: int, base: int, size: int) -> None:
        """Assign ``size`` bytes of a group's memory from ``base`` on to the device ``owner``."""
        window = self._group(group)
        window.write("base", base)
        window.write("size", size)
        window.write("owner", owner)

    def group(self, group: int, register: str) -> int:
        """Return a register of a group."""
        return self._group(group).read(register)

    def link(self, link: int, register: str) -> int:
        """Return a register of a link."""
        check_integer("link", link, 0)
        base = LINKS_OFFSET_BYTES + PART_BYTES * link
        return self._window("memory_node_link", base).read(register)

    def _group(self, group: int) -> RegisterWindow:
        check_integer("group", group, 0)
        return self._window("memory_node_group", GROUPS_OFFSET_BYTES + PART_BYTES * group)

    def _window(self, name: str, base: int = 0) -> RegisterWindow:
        return RegisterWindow(load_registers(name, MEMORY_NODE_RDL), *self._access, base)
