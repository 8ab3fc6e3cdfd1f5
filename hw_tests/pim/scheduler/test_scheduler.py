"""The scheduler: slots, ids, conflicts, banks, order of starts, tiles, counts."""

from __future__ import annotations

from hw.pim.config import PIM_PRESETS
from hw.pim.scheduler.scheduler import Scheduler
from hw_tests.bench import run_bench


def test_scheduler() -> None:
    run_bench(
        Scheduler(PIM_PRESETS["tiny"]),
        top="scheduler",
        module="hw_tests.pim.scheduler.scheduler_bench",
        parameters={"options": {}},
    )
