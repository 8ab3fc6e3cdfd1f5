"""What a pass costs that the cycle model would follow for hours: from the same with shorter sums.

A tile with long sums, such as of a filter's gradient over a batch, goes on in the same way from
chunk to chunk. So the pass is run twice with a part of each tile's chunks, and each product more is
taken to cost what those do that the longer run has more than the shorter one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from .backends.cycles import CyclesPim
from .device import Pim
from .measure import Job, Run, WorkRecord, run_jobs

if TYPE_CHECKING:
    from hw.pim.config import PimConfig

__all__ = ["MOST_FOLLOWED_CYCLES", "TILE_CYCLES", "is_long", "run_shortened"]

MOST_FOLLOWED_CYCLES = 2_000_000
"""Of a work in the cycle model, which takes some minutes for them."""

TILE_CYCLES = 12_000
"""About how long a tile is in the shorter run."""

_TIMES = 3
"""As long in the longer one."""


def is_long(config: PimConfig, job: Job) -> bool:
    """Whether the cycle model would follow more of a work than :data:`MOST_FOLLOWED_CYCLES`."""
    model = CyclesPim(config, computes=False)
    return any(model.followed_cycles(work) > MOST_FOLLOWED_CYCLES for work in job.program.works)


def run_shortened(
    config: PimConfig, job: Job, *, completed: Callable[[], None] | None = None
) -> Run:
    """What :func:`~sw_driver.pim.measure.run_jobs` would return for ``job`` alone in the cycle
    model, with the sums of long tiles shortened twice and its costs extrapolated.

    What is written does not depend on the length of sums. Cycles of the simulation and seconds are
    those of both runs. ``completed`` is called after every work of both.
    """

    def run(times: int) -> tuple[Run, int]:
        transport = CyclesPim(config, computes=False, shortened=(TILE_CYCLES, times))
        with Pim(transport) as device:
            done = run_jobs(device, [job], inputs=False, completed=completed)
        return done, sum(map(transport.products, job.program.works))

    (shorter, fewer), (longer, more) = map(run, (1, _TIMES))
    whole = CyclesPim(config, computes=False)
    wanted = sum(map(whole.products, job.program.works))

    def line(low: int, high: int) -> int:
        if fewer == more:  # No shorter than some chunks, or not too long at all.
            return round(high * wanted / more)
        return low + round((high - low) * (wanted - fewer) / (more - fewer))

    def record(low: WorkRecord, high: WorkRecord) -> WorkRecord:
        return replace(
            high,
            cycles=line(low.cycles or 0, high.cycles or 0),
            bytes_read=line(low.bytes_read, high.bytes_read),
        )

    by_work = {each.work: each for each in shorter.records}
    return Run(
        records=[record(by_work[each.work], each) for each in longer.records],
        begins=longer.begins,
        ends=[line(*each) for each in zip(shorter.ends, longer.ends, strict=True)],
        shortened=True,
        simulated_cycles=shorter.simulated_cycles + longer.simulated_cycles,
        host_seconds=shorter.host_seconds + longer.host_seconds,
    )
