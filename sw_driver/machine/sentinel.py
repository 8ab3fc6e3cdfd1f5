"""The machine of Sentinel's Table 2: a socket with memory of its own, and the other socket's.

The paper's 24 threads are as many as "physical cores in a socket", which has 12: they are taken to
be two on each of these.
"""

from __future__ import annotations

from dataclasses import replace

from .machine import Machine
from .parts import Memory, assumed, given, link
from .processors import XEON_E5_2670_V3

__all__ = ["SENTINEL"]

_TABLE_2 = "paper, Table 2"
_ENOUGH = assumed(64 << 30, "more than any of the paper's networks takes; experiments set it")
_FAST = given(34, f"{_TABLE_2}: bandwidth of fast memory")

SENTINEL = Machine(
    name="sentinel",
    memories=(
        Memory(name="fast", capacity_bytes=_ENOUGH, total_gb_per_s=_FAST),
        Memory(
            name="slow",
            capacity_bytes=_ENOUGH,
            total_gb_per_s=given(19, f"{_TABLE_2}: bandwidth of slow memory"),
        ),
    ),
    devices=(
        replace(
            XEON_E5_2670_V3,
            memory="fast",
            gb_per_s=_FAST,
            launch_ns=given(87, f"{_TABLE_2}: latency of fast memory"),
        ),
    ),
    links=(
        link(
            "cross",
            "fast",
            "slow",
            given(19, f"{_TABLE_2}: bandwidth across sockets"),
            given(96, f"{_TABLE_2}: slow memory's 182.7 ns less fast memory's 87"),
        ),
    ),
)
"""What runs on both memories shares their rates."""
