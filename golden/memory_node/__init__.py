"""The memory-node's links, written from docs/memory-node-spec.md alone."""

from .checker import LinkRules, PortChecker, RuleBroken
from .flit import FLIT_BYTES, Flit, crc32c
from .packet import Operation, Packet, Status
from .phits import Phit, PhitReader, phits_of

__all__ = [
    "FLIT_BYTES",
    "Flit",
    "LinkRules",
    "Operation",
    "Packet",
    "Phit",
    "PhitReader",
    "PortChecker",
    "RuleBroken",
    "Status",
    "crc32c",
    "phits_of",
]
