"""Cost of a pass that the cycle model would simulate for hours, extrapolated from shorter sums.

A tile with long sums, such as a filter's gradient over a batch, repeats the same work from chunk to
chunk. So two runs simulate a part of each tile's chunks. The difference between the two runs gives
the cost of each further product.
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
"""Cycles of a work that the model simulates in some minutes."""

_MOST_FOLLOWED_CYCLES = 10_000_000
"""Cycles of a work to simulate, at most, if several layers run."""

TILE_CYCLES = 12_000
"""Cycles of a tile in the shorter run, about."""

_TIMES = 1, 3
"""Length of a tile in the shorter and in the longer run, in multiples of :data:`TILE_CYCLES`."""

_WORTH = 1.2
"""Minimum ratio of the whole run's cycles to those of both shortened runs."""


def worth_shortening(transport: PimTransport, jobs: Sequence[Job]) -> bool:
    """Return True if ``jobs`` is a single long job that :func:`run_shortened` makes much faster.

    Raise :class:`~sw_driver.device.errors.InvalidArgumentError` if one of several jobs would take
    the cycle model hours.
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
                f"{job.name} {job.pass_name}: its sums are too long for the cycle model beside "
                "another layer: run it alone, or with fewer --images or --most-products"
            )
    return False


def _followed_cycles(model: CyclesPim, job: Job) -> int:
    """Return about how many cycles of the job's longest work a model simulates one by one."""
    return max(map(model.followed_cycles, job.program.works))


def _shortened(config: PimConfig, times: int) -> CyclesPim:
    return CyclesPim(config, computes=False, shortened=(TILE_CYCLES, times))


def run_shortened(
    config: PimConfig, job: Job, *, completed: Callable[[], object] | None = None
) -> Run:
    """Estimate the run of ``job`` alone in the cycle model, from two runs with shorter sums.

    The result is that of :func:`~sw_driver.experiments.pim.measure.run_jobs`, with extrapolated
    costs. Bytes written do not depend on the length of sums. Simulated cycles and seconds are the
    sums of both runs. ``completed`` is called after every work of both.
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

    by_work = {low.work: low for low in shorter.records}
    at = sum(fewer), sum(more), sum(wanted)
    return Run(
        records=[record(by_work[high.work], high) for high in longer.records],
        begins=longer.begins,
        ends=[_line(*costs, *at) for costs in zip(shorter.ends, longer.ends, strict=True)],
        busy_cycles=[
            _line(*costs, *at)
            for costs in zip(shorter.busy_cycles or (), longer.busy_cycles or (), strict=True)
        ],
        shortened=True,
        simulated_cycles=shorter.simulated_cycles + longer.simulated_cycles,
        host_seconds=shorter.host_seconds + longer.host_seconds,
    )


def _line(low: int, high: int, fewer: int, more: int, wanted: int) -> int:
    """Return the cost of ``wanted`` products, on a line through two measured costs.

    ``fewer`` products cost ``low``, and ``more`` products cost ``high``.
    """
    if fewer == more:  # no tile was shortened
        return high
    return low + round((high - low) * (wanted - fewer) / (more - fewer))
