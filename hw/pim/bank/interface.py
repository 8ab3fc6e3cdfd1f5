"""The interface between the pool and a bank."""

from __future__ import annotations

from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.pim.config import PimConfig
from hw.pim.memory.memory_port import memory_request_layout, memory_response_layout
from hw.pim.work.layouts import LANE_BITS, Jobs

__all__ = ["BankSignature"]


class BankSignature(wiring.Signature):
    """What the pool gives to a bank and takes from it; the pool has it as ``Out``.

    No member depends combinationally on one of the other direction. What ``start`` starts goes to
    all banks alike: the ``work`` of :class:`~hw.pim.pool_control.PoolControl`.

    Members
    -------
    start : Out(1)
        Pulse: there are tiles of the work to be done. Not before ``done`` of the last one.
    tile : Out(stream of :attr:`Jobs.tile <hw.pim.work.layouts.Jobs.tile>`)
        What to do, until a tile with ``end``.
    request : In(stream of :func:`~hw.pim.memory.memory_port.memory_request_layout`)
    response : Out(stream of :func:`~hw.pim.memory.memory_port.memory_response_layout`)
        Always taken; in any order.
    done : In(1)
        Pulse: all tiles are done, and all results are in the memory.
    multiplications, additions : In(LANE_BITS + 1)
        How many were done in a cycle; those of a work at the latest with ``done``.
    beats_read, beats_written : In(1)
        The memory has taken a request to read or to write; those of a work at the latest with
        ``done``.
    """

    def __init__(self, config: PimConfig) -> None:
        jobs = Jobs(config)
        super().__init__(
            {
                "start": Out(1),
                "tile": Out(stream.Signature(jobs.tile)),
                "request": In(stream.Signature(memory_request_layout(config))),
                "response": Out(stream.Signature(memory_response_layout())),
                "done": In(1),
                "multiplications": In(LANE_BITS + 1),
                "additions": In(LANE_BITS + 1),
                "beats_read": In(1),
                "beats_written": In(1),
            }
        )
