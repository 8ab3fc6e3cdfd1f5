"""Runs of layers' passes on a PIM, and their costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hw.pim.config import BEAT_BYTES, PimConfig
from sw_driver.device.errors import OutOfMemoryError

from ...pim.backends import SIMULATED_BANK_BYTES, open_pim
from ...pim.descriptor import Opcode, Work
from ...pim.device import Pim
from ...pim.layers import Layer
from ...pim.lowering import Program, lower
from ...pim.placing import StackMemory

__all__ = [
    "Job",
    "Run",
    "WorkRecord",
    "check_bits",
    "figures",
    "place_jobs",
    "run_jobs",
]


@dataclass(frozen=True, kw_only=True)
class Job:
    """A pass of a layer to run."""

    name: str
    pass_name: str
    layer: Layer
    published: Layer
    """Layer before scaling."""
    program: Program

    @classmethod
    def of(
        cls,
        name: str,
        pass_name: str,
        layer: Layer,
        config: PimConfig,
        *,
        published: Layer | None = None,
        memory: StackMemory | None = None,
    ) -> Job:
        """Lower the pass; errors are those of :func:`~sw_driver.pim.lowering.lower`."""
        return cls(
            name=name,
            pass_name=pass_name,
            layer=layer,
            published=published or layer,
            program=lower(layer, pass_name, config, memory=memory),
        )


def place_jobs(
    layers: Sequence[tuple[str, Layer, Layer]], pass_name: str, config: PimConfig
) -> tuple[PimConfig, list[Job]]:
    """Place a pass of layers side by side; return the stack and the jobs.

    The stack has small banks for simulation if all jobs fit, else those of ``config``. ``layers``
    have a name, the layer to run, and the layer before scaling.
    """

    def placed(stack: PimConfig) -> tuple[PimConfig, list[Job]]:
        memory = StackMemory(stack)
        return stack, [
            Job.of(name, pass_name, layer, stack, published=published, memory=memory)
            for name, layer, published in layers
        ]

    if config.bank_bytes > SIMULATED_BANK_BYTES:
        with suppress(OutOfMemoryError):
            return placed(replace(config, bank_bytes=SIMULATED_BANK_BYTES))
    return placed(config)


@dataclass(frozen=True, kw_only=True)
class WorkRecord:
    """Counters of a completed work, from the registers."""

    id: int
    job: int
    work: int
    """Index of the work in the job's program."""
    opcode: str
    multiplications: int
    additions: int
    banks: list[int]
    offer_cycle: int
    """Cycle before the work's first write, counted like ``seen_cycle`` by the transport."""
    seen_cycle: int
    """Cycle in which the host saw the completion."""
    cycles: int | None
    bytes_read: int
    bytes_written: int


@dataclass(kw_only=True)
class Run:
    """Records and times of :func:`run_jobs`, in cycles of the pool."""

    records: list[WorkRecord] = field(default_factory=list)
    begins: list[int]
    """Cycle in which the first work was offered, by job."""
    ends: list[int]
    """Cycle in which the host saw the last work complete, by job."""
    simulated_cycles: int = 0
    """Cycles from the first offer to the end of the run."""
    host_seconds: float = 0.0
    """Host time of the simulation, in seconds."""
    busy_cycles: list[int] | None = None
    """Cycles with a work, by bank; None without a clock."""
    shortened: bool = False
    """True if costs are extrapolated, see :mod:`sw_driver.experiments.pim.shortening`."""
    together: tuple[int, int] | None = None
    """Cycles and operations until the first of several jobs ended; else None."""
    busy_together: list[int] | None = None
    """Cycles with a work until the first of several jobs ended, by bank."""

    def cycles(self, jobs: Sequence[int]) -> int:
        """Return the cycles from the first offer of ``jobs`` to their last completion."""
        records = [record for record in self.records if record.job in jobs]
        if len(records) == 1:
            return records[0].cycles or 0  # without the host's polling
        return max(self.ends[job] for job in jobs) - min(self.begins[job] for job in jobs)


def _inputs(job: Job, number: int, seed: int) -> dict[str, NDArray[np.float32]]:
    """Return random values for a job's tensors, always the same for a seed."""
    rng = np.random.default_rng([seed, number])
    program = job.program
    values = {}
    if program.zeroed:
        values[program.result] = np.zeros(program.tensors[program.result].shape, np.float32)
    for name in program.inputs:
        values[name] = rng.standard_normal(program.tensors[name].shape, np.float32)
    return values


def run_jobs(
    device: Pim,
    jobs: Sequence[Job],
    *,
    seed: int = 1,
    inputs: bool = True,
    completed: Callable[[], object] | None = None,
) -> Run:
    """Run the works of all ``jobs``, with as many in flight as the pool takes.

    Input values are random. Without ``inputs``, or if the backend does not compute, the memory
    stays as it is. Tensors of the jobs must not overlap. ``completed`` is called after every work.
    """
    for number, job in enumerate(jobs if inputs and device.transport.computes else ()):
        for name, values in _inputs(job, number, seed).items():
            device.write_tensor(job.program.tensors[name], values)
    run = Run(begins=[0] * len(jobs), ends=[0] * len(jobs))
    # Reading the counters takes cycles, and before the first offer they are 0.
    busy_before = device.busy_cycles() if device.has_offered else [0] * device.config.banks

    def busy_cycles() -> list[int]:
        busy = zip(device.busy_cycles(), busy_before, strict=True)
        return [after - before for after, before in busy]

    running: dict[int, tuple[int, int, Work, int]] = {}
    left = [len(job.program.works) for job in jobs]

    def finish(work_ids: Sequence[int]) -> None:
        seen = device.transport.cycles()
        for work_id in work_ids:
            number, place, work, offer = running.pop(work_id)
            counters = device.counters(work_id)
            run.records.append(
                WorkRecord(
                    id=work_id,
                    job=number,
                    work=place,
                    opcode=Opcode(work.opcode).name,
                    multiplications=counters.multiplications_done,
                    additions=counters.additions_done,
                    banks=device.work_info(work_id)[0],
                    offer_cycle=offer,
                    seen_cycle=seen,
                    cycles=counters.cycles,
                    bytes_read=counters.bytes_read,
                    bytes_written=counters.bytes_written,
                )
            )
            run.ends[number] = device.transport.cycles()
            left[number] -= 1
            # Offers take cycles, so the jobs after the first begin above 0 once they have begun.
            if left[number] == 0 and left.count(0) == 1 < len(jobs) and all(run.begins[1:]):
                operations = sum(done.multiplications + done.additions for done in run.records)
                for counters in map(device.counters, running):
                    operations += counters.multiplications_done + counters.additions_done
                run.together = device.transport.cycles() - run.begins[0], operations
                if device.transport.timed:
                    run.busy_together = busy_cycles()
            if completed is not None:
                completed()

    begin_cycles, begin_s = device.transport.cycles(), perf_counter()
    for number, job in enumerate(jobs):
        for place, work in enumerate(job.program.works):
            finish([work_id for work_id in running if device.work_query(work_id)])
            if len(running) == device.config.works:
                finish(device.wait_any(list(running)))
            offer = device.transport.cycles()
            if place == 0:
                run.begins[number] = offer
            offered = device.pim_fix(None, work, work.result, work.units)
            running[offered] = number, place, work, offer
    while running:
        finish(device.wait_any(list(running)))
    run.simulated_cycles = device.transport.cycles() - begin_cycles
    run.host_seconds = perf_counter() - begin_s
    if device.transport.timed:
        run.busy_cycles = busy_cycles()
    return run


def check_bits(device: Pim, jobs: Sequence[Job], *, seed: int = 1) -> int:
    """Count the results of finished ``jobs`` on ``device`` that differ from the golden model's."""
    wrong = 0
    with Pim(open_pim("golden", device.config)) as golden:
        run_jobs(golden, jobs, seed=seed)
        for job in jobs:
            place = job.program.tensors[job.program.result]
            got, expected = device.read_tensor(place), golden.read_tensor(place)
            wrong += int((got.view(np.uint32) != expected.view(np.uint32)).sum())
    return wrong


def figures(device: Pim, jobs: Sequence[Job], run: Run) -> dict[str, Any]:
    """Return the costs of a run, ready for JSON.

    Figures that need a clock are None on a backend without one. The simulation speed is also None
    if the backend does not compute. docs/pim-spec.md defines ``utilisation`` and ``busy`` (by
    bank). ``held`` is the share of all units' cycles in which their banks had a work.
    ``utilisation_together`` and ``held_together`` count until the first of several layers ended.
    ``cycles_to_seen`` counts from the first write of a single work until the host saw its
    completion; None for several works.

    A bound is a minimum number of cycles. The compute bound assumes that all multipliers, or all
    adders, always work. The memory bound assumes that each operand is read once and each result
    written once, and that the memories of all banks always move data.
    """
    config = device.config
    layers = [_layer_figures(device, number, job, run) for number, job in enumerate(jobs)]
    cycles = run.cycles(range(len(jobs))) if device.transport.timed else None
    together_cycles, together_operations = run.together or (0, 0)

    def shares(busy_cycles: list[int] | None, of_cycles: int | None) -> list[float] | None:
        if not of_cycles or busy_cycles is None:
            return None
        return [min(1.0, cycles / of_cycles) for cycles in busy_cycles]

    def held(busy: list[float] | None) -> float | None:
        if busy is None:
            return None
        banks = zip(config.placement.units, busy, strict=True)
        return sum(units * share for units, share in banks) / config.units

    busy = shares(run.busy_cycles, cycles)
    return {
        "backend": device.transport.name,
        "banks": config.banks,
        "bank_bytes": config.bank_bytes,
        "columns": config.columns,
        "units": config.units,
        "bank_units": list(config.placement.units),
        "clock_mhz": config.clock_mhz,
        "layers": layers,
        **_rates(
            config,
            cycles,
            operations=sum(layer["multiplications"] + layer["additions"] for layer in layers),
            compute_bound=sum(layer["compute_bound_cycles"] for layer in layers),
            memory_bound=sum(layer["memory_bound_cycles"] for layer in layers),
        ),
        "utilisation_together": together_operations / (config.units * together_cycles)
        if together_cycles
        else None,
        "cycles_to_seen": (
            run.records[0].seen_cycle - run.records[0].offer_cycle
            if cycles and len(run.records) == 1
            else None
        ),
        "held": held(busy),
        "held_together": held(shares(run.busy_together, together_cycles)),
        "busy": busy,
        "shortened": run.shortened,
        "simulated_cycles_per_host_second": (
            run.simulated_cycles / run.host_seconds
            if device.transport.timed and device.transport.computes
            else None
        ),
    }


def _layer_figures(device: Pim, number: int, job: Job, run: Run) -> dict[str, Any]:
    config = device.config
    records = [record for record in run.records if record.job == number]
    multiplications, additions = job.program.operations
    least_read, least_written = job.program.least_bytes
    compute_bound = max(
        multiplications / sum(config.placement.multipliers),
        additions / sum(config.placement.adders),
    )
    memory_bound = (least_read + least_written) / (BEAT_BYTES * config.banks)
    cycles = run.cycles([number]) if device.transport.timed else None
    return {
        "layer": job.name,
        "pass": job.pass_name,
        "sizes": job.layer.describe(),
        "published_sizes": job.published.describe(),
        "works": len(job.program.works),
        "multiplications": multiplications,
        "additions": additions,
        **_rates(
            config,
            cycles,
            operations=multiplications + additions,
            compute_bound=compute_bound,
            memory_bound=memory_bound,
        ),
        "bytes_read": sum(record.bytes_read for record in records),
        "bytes_written": sum(record.bytes_written for record in records),
        "least_bytes_read": least_read,
        "least_bytes_written": least_written,
        "compute_bound_cycles": compute_bound,
        "memory_bound_cycles": memory_bound,
        "records": [vars(record) for record in records],
    }


def _rates(
    config: PimConfig,
    cycles: int | None,
    *,
    operations: int,
    compute_bound: float,
    memory_bound: float,
) -> dict[str, Any]:
    if not cycles:
        names = ("utilisation", "gflop_per_s", "compute_bound_share", "memory_bound_share")
        return {"cycles": cycles, **dict.fromkeys(names)}
    return {
        "cycles": cycles,
        "utilisation": operations / (config.units * cycles),
        "gflop_per_s": operations / cycles * config.clock_mhz / 1e3,
        "compute_bound_share": compute_bound / cycles,
        "memory_bound_share": memory_bound / cycles,
    }
