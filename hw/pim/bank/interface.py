"""Interface between the pool and a bank."""

from __future__ import annotations

from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.pim.config import PimConfig
from hw.pim.memory.memory_port import memory_request_layout, memory_response_layout
from hw.pim.work.layouts import LANE_BITS, Jobs

__all__ = ["BankSignature"]


class BankSignature(wiring.Signature):
    """Interface between the pool and a bank, as the pool sees it.

    No member depends combinationally on one of the other direction. The work itself comes beside
    it, for all banks alike: ``work`` of :class:`~hw.pim.pool_control.PoolControl`.

    Members
    -------
    start : Out(1)
        Pulse: begin the work. Not before ``done`` of the previous one.
    tile : Out(stream of :attr:`Jobs.tile <hw.pim.work.layouts.Jobs.tile>`)
        Tiles to compute, up to one with ``end``.
    request : In(stream of :func:`~hw.pim.memory.memory_port.memory_request_layout`)
    response : Out(stream of :func:`~hw.pim.memory.memory_port.memory_response_layout`)
        Always taken; in any order.
    done : In(1)
        Pulse: all tiles are done, and all results are in the memory.
    multiplications, additions : In(LANE_BITS + 1)
        Operations of this cycle. Those of a work come no later than ``done``.
    beats_read, beats_written : In(1)
        Pulse: the memory has taken a read or a write. Those of a work come no later than ``done``.
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
