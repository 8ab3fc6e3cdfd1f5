"""Rows of several steps and machines, a system in a process each."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from sw_driver.machine import Machine
from sw_driver.simulator.workers import processes

from ..reproduction import Progress
from .comparison import Row, TrainedSteps, compare
from .system import System
from .systems import SYSTEMS

__all__ = ["compared"]

_BY_NAME = {system.name: system for system in SYSTEMS}


def compared(
    wanted: Sequence[tuple[TrainedSteps, Machine, Sequence[System]]],
    progress: Progress,
    *,
    is_long: bool = False,
) -> list[list[Row]]:
    """Return the rows of :func:`~sw_driver.system.compare.comparison.compare` for several steps.

    Processes on all cores run the systems if ``is_long``, or for more than one step.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    # Slow systems are among the last: they begin first.
    works = [
        (number, place, (steps, machine, system.name))
        for number, (steps, machine, systems) in enumerate(wanted)
        for place, system in enumerate(systems)
        if _BY_NAME.get(system.name) is system
    ][::-1]
    jobs = min(cores or 1, len(works)) if is_long or len(wanted) > 1 else 1
    if jobs <= 1:
        return [compare(*one, progress) for one in wanted]
    with processes(jobs, _values) as submit:
        futures = {(number, place): submit(work) for number, place, work in works}
        rows: list[list[Row]] = []
        for number, (steps, machine, systems) in enumerate(wanted):
            rows.append([])
            for place, system in enumerate(systems):
                progress(f"{system.name}, {steps.usual.name}")
                if (number, place) in futures:
                    rows[-1].append(Row(system=system, **futures[number, place].result()))
                else:
                    rows[-1] += compare(steps, machine, [system], progress)
    return rows


def _values(work: tuple[TrainedSteps, Machine, str]) -> dict[str, Any]:
    """Return the fields of a row but its system, which no process can send to another."""
    steps, machine, name = work
    (row,) = compare(steps, machine, [_BY_NAME[name]], lambda _: None)
    return {field.name: getattr(row, field.name) for field in fields(row) if field.name != "system"}
