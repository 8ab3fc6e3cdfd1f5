"""What changes when a machine has more memory or faster links, or a step a larger batch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress

from sw_driver.machine import Machine
from sw_driver.simulator.workers import processes
from sw_driver.workload import Trace, peak_bytes
from sw_driver.workload.batches import batched
from sw_driver.workload.trace import TraceError

from ..outcome import Outcome
from ..reproduction import Progress
from .comparison import capacity_bytes, compare
from .systems import SYSTEMS

__all__ = ["FACTORS", "Variation", "outcomes", "varied"]

FACTORS = (0.5, 1, 2, 4)
"""As fast as the links are, and as large as the batch is."""

_LINKS = ("pcie", "cxl", "node")
"""The GPU's own: to the host, with all behind it, to a CXL expander and to memory-nodes."""

Variation = Mapping[float, Sequence[Outcome | None]]
"""By what is varied, what each of the systems makes of a step; None if it cannot run it."""


def varied(
    trace: Trace, machine: Machine, made: Sequence[Outcome | None], progress: Progress
) -> dict[str, Variation]:
    """By the memory of the GPU in bytes, and by :data:`FACTORS`, links and batch, where there can
    be such a batch. ``made`` is of the machine and the step as they are. Takes all cores."""
    capacity, peak = capacity_bytes(machine, "gpu"), peak_bytes(trace)
    # Powers of two of its memory: from a 16th of all bytes to all of them.
    sizes = [capacity * 2**n // 2**40 for n in range(80)]
    sizes = [each for each in sizes if peak <= 16 * each < 32 * peak and each != capacity]
    factors = [each for each in FACTORS if each != 1]
    cases: dict[tuple[str, float], tuple[Trace, Machine]] = {}
    for each in sizes:
        cases["memory", each] = trace, machine.override({"gpu.capacity_bytes": str(each)})
    rates = {
        f"{link.name}.{way}_gb_per_s": figure.value
        for link in machine.links
        if link.name in _LINKS
        for way, figure in (("read", link.read_gb_per_s), ("write", link.write_gb_per_s))
    }
    for each in factors:
        changes = {key: f"{each * rate:.9f}" for key, rate in rates.items()}
        cases["links", each] = trace, machine.override(changes)
    for each in factors:
        with suppress(TraceError):  # half of one sample, or samples that are not told apart
            cases["batch", each] = batched(trace, each), machine
    found: dict[str, dict[float, Sequence[Outcome | None]]]
    found = {"memory": {capacity: made}, "links": {1: made}, "batch": {1: made}}
    with processes(min(os.cpu_count() or 1, len(cases)), outcomes) as submit:
        futures = {case: submit(both) for case, both in cases.items()}
        for number, ((what, place), future) in enumerate(futures.items()):
            progress(f"{trace.name}, other memory, links and batches: {number} of {len(cases)}")
            found[what][place] = future.result()
    return {what: dict(sorted(of.items())) for what, of in found.items()}


def outcomes(both: tuple[Trace, Machine]) -> list[Outcome | None]:
    """What each of the systems makes of a step on a machine."""
    return [row.outcome for row in compare(*both, SYSTEMS, lambda _: None)]
