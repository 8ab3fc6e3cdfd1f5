"""Results of all systems with more memory, faster links, or a larger batch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from sw_driver.machine import Machine
from sw_driver.simulator.workers import processes
from sw_driver.workload import peak_bytes
from sw_driver.workload.batches import batched
from sw_driver.workload.trace import TraceError

from ..outcome import Outcome
from ..reproduction import Progress
from .comparison import TrainedSteps, capacity_bytes, compare
from .systems import SYSTEMS

__all__ = ["FACTORS", "Variation", "outcomes", "varied"]

FACTORS = (0.5, 1, 2, 4)
"""Factors of the links' rates and of the batch."""

_LINKS = ("pcie", "cxl", "node", "peers")
"""Links of the GPU: to the host and all behind it, a CXL expander, memory-nodes and other GPUs."""

Variation = Mapping[float, Sequence[Outcome | None]]
"""Results of all systems, by the varied value; None for a system that cannot run the step."""


def varied(
    steps: TrainedSteps,
    machine: Machine,
    made: Sequence[Outcome | None],
    progress: Progress,
) -> dict[str, Variation]:
    """Return the results by GPU memory in bytes, and by :data:`FACTORS` of links and batch.

    Batches that are not possible are left out. ``made`` are the results without a change. This
    takes all cores.
    """
    trace = steps.usual
    capacity, peak = capacity_bytes(machine, "gpu"), peak_bytes(trace)
    # Powers of two of its memory: from a 16th of all bytes to all of them.
    sizes = [capacity * 2**n // 2**40 for n in range(80)]
    sizes = [size for size in sizes if peak <= 16 * size < 32 * peak and size != capacity]
    factors = [factor for factor in FACTORS if factor != 1]
    cases: dict[tuple[str, float], tuple[TrainedSteps, Machine]] = {}
    for size in sizes:
        cases["memory", size] = steps, machine.override({"gpu.capacity_bytes": str(size)})
    rates = {
        f"{link.name}.{way}_gb_per_s": figure.value
        for link in machine.links
        if link.name in _LINKS
        for way, figure in (("read", link.read_gb_per_s), ("write", link.write_gb_per_s))
    }
    for factor in factors:
        changes = {key: f"{factor * rate:.9f}" for key, rate in rates.items()}
        cases["links", factor] = steps, machine.override(changes)
    for factor in factors:
        with suppress(TraceError):  # half of one sample, or samples that cannot be told apart
            larger = TrainedSteps(batched(steps.captured, factor), steps.training)
            cases["batch", factor] = larger, machine
    results: dict[str, dict[float, Sequence[Outcome | None]]]
    results = {"memory": {capacity: made}, "links": {1: made}, "batch": {1: made}}
    with processes(min(os.cpu_count() or 1, len(cases)), outcomes) as submit:
        futures = {case: submit(both) for case, both in cases.items()}
        for number, ((kind, value), future) in enumerate(futures.items()):
            progress(f"{trace.name}, other memory, links and batches: {number} of {len(cases)}")
            results[kind][value] = future.result()
    return {kind: dict(sorted(by_value.items())) for kind, by_value in results.items()}


def outcomes(both: tuple[TrainedSteps, Machine]) -> list[Outcome | None]:
    """Return the result of each system for a step on a machine, without its spans."""
    made = [row.outcome for row in compare(*both, SYSTEMS, lambda _: None)]
    return [outcome and replace(outcome, spans=()) for outcome in made]
