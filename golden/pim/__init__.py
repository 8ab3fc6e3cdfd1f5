"""Reference model of the heterogeneous PIM's fixed-function pools, from ``docs/pim-spec.md``.

Bit for bit what a work computes, and which works are accepted, wait, and are visible to others; no
timing.
"""

from .arithmetic import compute, tree
from .descriptor import Cause, Descriptor, Opcode, Plan, Room, Tensor, check
from .pool import FullError, NoSuchWorkError, Pool, WorkRefusedError
from .rings import Ring, Rings
from .stack import StackMap
from .work import Account, account

__all__ = [
    "Account",
    "Cause",
    "Descriptor",
    "FullError",
    "NoSuchWorkError",
    "Opcode",
    "Plan",
    "Pool",
    "Ring",
    "Rings",
    "Room",
    "StackMap",
    "Tensor",
    "WorkRefusedError",
    "account",
    "check",
    "compute",
    "tree",
]
