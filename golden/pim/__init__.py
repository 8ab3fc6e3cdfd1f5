"""Reference model of the heterogeneous PIM's fixed-function pools, from ``docs/pim-spec.md``.

It models a work's results bit for bit, and which works are accepted, wait and are visible to
others. It has no timing.
"""

from .arithmetic import compute, tree
from .descriptor import Cause, Descriptor, Opcode, Room, StridedTensor, TilingPlan, check
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
    "Pool",
    "Ring",
    "Rings",
    "Room",
    "StackMap",
    "StridedTensor",
    "TilingPlan",
    "WorkRefusedError",
    "account",
    "check",
    "compute",
    "tree",
]
