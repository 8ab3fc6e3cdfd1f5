"""What a pass costs that the cycle model would follow for hours: from the same with shorter sums.

A tile with long sums, such as of a filter's gradient over a batch, goes on in the same way from
chunk to chunk. So the pass is run twice with a part of each tile's chunks, and each product more is
taken to cost what those do that the longer run has more than the shorter one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...device.errors import InvalidArgumentError
from ...pim.backends.cycles import CyclesPim
from ...pim.device import Pim
from .measure import Job, Run, WorkRecord, run_jobs

if TYPE_CHECKING:
    from hw.pim.config import PimConfig

    from ...pim.transport import PimTransport

__all__ = ["TILE_CYCLES", "run_shortened", "worth_shortening"]

LONG_CYCLES = 1_000_000
"""Cycles of a work that are followed in some minutes."""

_MOST_FOLLOWED_CYCLES = 10_000_000
"""Cycles of a work that are followed at most where several layers run."""

TILE_CYCLES = 12_000
"""Cycles, about, of a tile in the shorter run."""

_TIMES = 1, 3
"""Length of a tile in the shorter and in the longer run, in multiples of :data:`TILE_CYCLES`."""

_WORTH = 1.2
"""How many times as long as both shortened runs the whole has to be for them to be worth it."""


def worth_shortening(transport: PimTransport, jobs: Sequence[Job]) -> bool:
    """Whether :func:`run_shortened` is for ``jobs``: one alone that takes the cycle model many
    minutes, and many fewer with shorter sums.

    Raises :class:`~sw_driver.device.errors.InvalidArgumentError` for one of several that would take
    it hours.
    """
    if not isinstance(transport, CyclesPim):
        return False
    if len(jobs) == 1:
        followed = _followed_cycles(transport, jobs[0])
        models = (_shortened(transport.config, times) for times in _TIMES)
        short = sum(_followed_cycles(model, jobs[0]) for model in models)
        return followed > LONG_CYCLES and _WORTH * short < followed
    for job in jobs:
        if _followed_cycles(transport, job) > _MOST_FOLLOWED_CYCLES:
            raise InvalidArgumentError(
                f"{job.name} {job.pass_name}: its sums are too long for the cycle model to follow "
                "beside another layer: take it alone, fewer --images or --most-products"
            )
    return False


def _followed_cycles(model: CyclesPim, job: Job) -> int:
    """About how many cycles of the job's longest work a model follows one by one."""
    return max(map(model.followed_cycles, job.program.works))


def _shortened(config: PimConfig, times: int) -> CyclesPim:
    return CyclesPim(config, computes=False, shortened=(TILE_CYCLES, times))


def run_shortened(
    config: PimConfig, job: Job, *, completed: Callable[[], object] | None = None
) -> Run:
    """What :func:`~sw_driver.experiments.pim.measure.run_jobs` would return for ``job`` alone in
    the cycle model, with the sums of long tiles shortened twice and its costs extrapolated.

    What is written does not depend on the length of sums. Cycles of the simulation and seconds are
    those of both runs. ``completed`` is called after every work of both.
    """

    def run(times: int) -> tuple[Run, list[int]]:
        transport = _shortened(config, times)
        with Pim(transport) as device:
            done = run_jobs(device, [job], inputs=False, completed=completed)
        return done, list(map(transport.products, job.program.works))

    (shorter, fewer), (longer, more) = map(run, _TIMES)
    wanted = list(map(CyclesPim(config, computes=False).products, job.program.works))

    def record(low: WorkRecord, high: WorkRecord) -> WorkRecord:
        at = fewer[high.work], more[high.work], wanted[high.work]
        return replace(
            high,
            cycles=_line(low.cycles or 0, high.cycles or 0, *at),
            bytes_read=_line(low.bytes_read, high.bytes_read, *at),
        )

    by_work = {each.work: each for each in shorter.records}
    at = sum(fewer), sum(more), sum(wanted)
    return Run(
        records=[record(by_work[each.work], each) for each in longer.records],
        begins=longer.begins,
        ends=[_line(*each, *at) for each in zip(shorter.ends, longer.ends, strict=True)],
        busy_cycles=[
            _line(*each, *at)
            for each in zip(shorter.busy_cycles or (), longer.busy_cycles or (), strict=True)
        ],
        shortened=True,
        simulated_cycles=shorter.simulated_cycles + longer.simulated_cycles,
        host_seconds=shorter.host_seconds + longer.host_seconds,
    )


def _line(low: int, high: int, fewer: int, more: int, wanted: int) -> int:
    """The cost of ``wanted`` products, if ``fewer`` cost ``low`` and ``more`` cost ``high``."""
    if fewer == more:  # Not shortened.
        return high
    return low + round((high - low) * (wanted - fewer) / (more - fewer))
