"""Measures Adam and the memory's bandwidth on this machine's CPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from golden.rules import reference
from hw.rules import rule
from sw_driver.axdimm import Axdimm
from sw_driver.axdimm.runs import PARAMETER_BYTES
from sw_driver.experiments.figures import ceiling_mparams_per_s
from sw_driver.experiments.rulejob import RuleJob, hyperparameters_of

from .check import differing, special_operands
from .frameworks import numpy_adam, torch_adam
from .library import CpuLibrary, Variant, aligned_floats
from .traffic import ADAM, COPY, READ, TRIAD, Traffic

__all__ = [
    "CpuFigures",
    "Loop",
    "MismatchError",
    "ceiling_of",
    "measure_cpu",
    "measure_module",
    "needed_bytes",
    "working_set_bytes",
]

_CHECKED_RANDOM = 50_000
_PATTERN = 1 << 16


class MismatchError(RuntimeError):
    """What is called exact is not."""


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A loop over ``values`` values of each of its streams, and how long it took."""

    name: str
    threads: int
    values: int
    traffic: Traffic
    run: Callable[[int], object]
    """Called with the step, which counts from 1."""
    streaming: bool = False
    """Its stores go past the caches."""
    bit_exact: bool | None = None
    """Equal to the golden model; None for what is not Adam."""
    seconds: list[float] = field(default_factory=list)
    """Of all repetitions."""

    @property
    def quartiles_seconds(self) -> tuple[float, float]:
        """The lower and the upper; of fewer than four repetitions the extremes."""
        if len(self.seconds) < 4:
            return min(self.seconds), max(self.seconds)
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return low, high

    @property
    def mparams_per_s(self) -> float:
        """10^6 values of each stream in a second, from the median."""
        return self.values / statistics.median(self.seconds) / 1e6

    @property
    def mparams_per_s_quartiles(self) -> tuple[float, float]:
        """The same, from the upper and the lower quartile of the times."""
        low, high = self.quartiles_seconds
        return self.values / high / 1e6, self.values / low / 1e6

    @property
    def counted_gb_per_s(self) -> float:
        """10^9 bytes a second that the loop itself reads and writes."""
        return self.traffic.counted_bytes * self.mparams_per_s / 1e3

    @property
    def moved_gb_per_s(self) -> float:
        """The same with write-allocates."""
        return self.traffic.moved_bytes(streaming=self.streaming) * self.mparams_per_s / 1e3

    @property
    def certain(self) -> bool:
        """Whether the bytes moved are known: no store may or may not have allocated a line."""
        return self.streaming or not self.traffic.written_only


@dataclass(frozen=True, kw_only=True)
class CpuFigures:
    """What :func:`measure_cpu` found."""

    adam: tuple[Loop, ...]
    bandwidth: tuple[Loop, ...]
    vector_bytes: int
    """Of the exact kernel's loop; 0 if the compiler did not vectorise it."""
    checked_values: int
    """Parameters of the comparison with the golden model, in each of its settings."""
    torch: bool
    """torch is installed and was measured."""
    fast_pays: bool
    """The variant that is not bit-exact is faster by more than the spread of the repetitions."""


def working_set_bytes(parameters: int) -> int:
    """Of the loop with the fewest arrays that writes, the copy."""
    return 2 * PARAMETER_BYTES * parameters


def needed_bytes(parameters: int) -> int:
    """Memory that a measurement takes: p, g, m, v, a target for the copies and what numpy and
    torch bring, two arrays each."""
    return 9 * PARAMETER_BYTES * parameters


def ceiling_of(bandwidth: Iterable[Loop]) -> Loop:
    """The fastest of the loops whose traffic is certain, of all if it is of none."""
    loops = list(bandwidth)
    certain = [loop for loop in loops if loop.certain]
    return max(certain or loops, key=lambda loop: loop.moved_gb_per_s)


def _hyperparameters(t: int) -> dict[str, float]:
    return hyperparameters_of(rule("adam"), t)


def _constants(t: int) -> dict[str, np.float32]:
    return reference("adam").constants(**_hyperparameters(t))


def _check(library: CpuLibrary, thread_counts: Iterable[int]) -> int:
    operands = special_operands(seed=1, random_count=_CHECKED_RANDOM)
    for threads in thread_counts:
        for streaming in (False, True):
            wrong = differing(
                library, operands, _constants(3), threads=threads, streaming=streaming
            )
            if wrong:
                raise MismatchError(
                    f"the CPU's kernel ({threads} threads, streaming stores: {streaming}) differs "
                    f"from the golden model in {wrong} values of {3 * operands[0].size}: compiled "
                    f"with {' '.join(library.flags)}"
                )
    return operands[0].size


class _Arrays:
    """Operands of all loops, filled by the threads that will work on them."""

    def __init__(self, library: CpuLibrary, parameters: int, threads: int) -> None:
        self.p, self.g, self.m, self.v, self.target = (aligned_floats(parameters) for _ in range(5))
        rng = np.random.default_rng(1)
        for array in (self.p, self.g, self.m, self.v, self.target):
            pattern = rng.random(min(_PATTERN, parameters), dtype=np.float32)
            library.run("fill", array, pattern, threads=threads, settings=(pattern.size,))

    def loop(
        self, name: str, traffic: Traffic, threads: int, run: Callable[[int], object], **how: Any
    ) -> Loop:
        """A loop over the arrays."""
        size = self.p.size
        return Loop(name=name, threads=threads, values=size, traffic=traffic, run=run, **how)


def _adam_loop(library: CpuLibrary, arrays: _Arrays, threads: int, streaming: bool) -> Loop:
    def run(t: int) -> None:
        library.adam(
            arrays.p, arrays.g, arrays.m, arrays.v, _constants(t),
            threads=threads, streaming=streaming,
        )  # fmt: skip

    exact = library.variant is Variant.EXACT
    name = "C++" + (", streaming" if streaming else "") + ("" if exact else ", fast")
    return arrays.loop(name, ADAM, threads, run, streaming=streaming, bit_exact=exact)


def _torch_loops(arrays: _Arrays, thread_counts: Iterable[int]) -> list[Loop]:
    hyperparameters = {name: value for name, value in _hyperparameters(1).items() if name != "t"}
    step = torch_adam(arrays.p, arrays.g, **hyperparameters)
    if step is None:
        return []
    name = "torch, fused Adam"
    return [
        arrays.loop(name, ADAM, n, lambda _, n=n, step=step: step(n), bit_exact=False)
        for n in thread_counts
    ]


def _numpy_loop(arrays: _Arrays) -> Loop:
    step = numpy_adam(arrays.p, arrays.g, arrays.m, arrays.v)
    # The bits of its NaNs are not the normative ones.
    return arrays.loop("numpy", ADAM, 1, lambda t: step(_constants(t)), bit_exact=False)


def _bandwidth_loops(library: CpuLibrary, arrays: _Arrays, threads: int) -> list[Loop]:
    p, g, m, v, target = arrays.p, arrays.g, arrays.m, arrays.v, arrays.target

    def read(_: int) -> None:
        # Two arrays, one after the other: as many bytes as a copy, so that no cache holds them.
        for each in (m, v):
            library.run("read", each, threads=threads)

    def update(_: int) -> None:
        library.run("update", p, g, m, v, threads=threads)

    loops = [
        arrays.loop("read", READ, threads, read),
        arrays.loop("Adam's traffic alone", ADAM, threads, update),
    ]
    for streaming in _stores(library):
        for name, traffic, sources in (("copy", COPY, (g,)), ("triad", TRIAD, (g, m))):
            run = partial(library.run, name, target, *sources, threads=threads)
            loops.append(
                arrays.loop(
                    name + (", streaming" if streaming else ""),
                    traffic,
                    threads,
                    lambda _, run=run, streaming=streaming: run(settings=(streaming,)),
                    streaming=streaming,
                )
            )
    return loops


def _stores(library: CpuLibrary) -> tuple[bool, ...]:
    return (False, True) if library.streams else (False,)


def _time(loops: list[Loop], repetitions: int, track: Callable[[range], Iterable[int]]) -> None:
    for repetition in track(range(repetitions + 1)):
        for loop in loops:
            start = time.perf_counter()
            loop.run(repetition + 1)
            spent = time.perf_counter() - start
            if repetition:
                loop.seconds.append(spent)


def measure_cpu(
    parameters: int,
    *,
    repetitions: int,
    threads: int,
    track: Callable[[range], Iterable[int]] = iter,
) -> CpuFigures:
    """Compares the exact kernel with the golden model, then measures.

    Every loop runs on one core and on ``threads``, once a repetition and in turn, so that what
    disturbs the machine for a while disturbs all of them; one repetition more comes first and does
    not count. ``track`` is handed the repetitions, to show progress. Raises
    :class:`MismatchError`, and ``CompilerError`` if the compiler is missing or fails.
    """
    counts = sorted({1, threads})
    exact, fast = CpuLibrary(Variant.EXACT), CpuLibrary(Variant.FAST)
    checked_values = _check(exact, counts)
    arrays = _Arrays(exact, parameters, threads)
    rows = {
        "exact": [_adam_loop(exact, arrays, n, how) for how in _stores(exact) for n in counts],
        "fast": [_adam_loop(fast, arrays, n, False) for n in counts],
        "torch": _torch_loops(arrays, counts),
        "numpy": [_numpy_loop(arrays)],
        "bandwidth": [loop for n in counts for loop in _bandwidth_loops(exact, arrays, n)],
    }
    _time([loop for group in rows.values() for loop in group], repetitions, track)
    fastest = max(rows["exact"], key=lambda row: row.mparams_per_s)
    fast_pays = any(
        row.mparams_per_s_quartiles[0] > fastest.mparams_per_s_quartiles[1] for row in rows["fast"]
    )
    return CpuFigures(
        adam=(
            *rows["exact"],
            *(rows["fast"] if fast_pays else ()),
            *rows["torch"],
            *rows["numpy"],
        ),
        bandwidth=tuple(rows["bandwidth"]),
        vector_bytes=exact.vector_bytes["plain"],
        checked_values=checked_values,
        torch=bool(rows["torch"]),
        fast_pays=fast_pays,
    )


def measure_module(device: Axdimm, parameters: int) -> dict[str, Any]:
    """A step of Adam on ``parameters`` in each channel of the simulated module, as JSON has it.

    ``fabric_cycles``: of the slowest channel. Raises :class:`MismatchError` if it is not the golden
    model's step, and what the driver raises.
    """
    transport = device.transport
    job = RuleJob(device, parameters)
    results = job.step(1)
    if not job.bit_exact():
        raise MismatchError(
            f"the module's p, m and v are not the golden model's (backend {transport.name!r})"
        )
    speed = job.mparams_per_s(results)
    ceiling = ceiling_mparams_per_s(device.channels, transport.fabric_mhz)
    return {
        "backend": transport.name,
        "channels": device.channels,
        "lanes": device.configuration(0).lanes,
        "parameters_per_channel": parameters,
        "fabric_cycles": max(result.fabric_cycles for result in results),
        "mparams_per_s": speed,
        "ceiling_mparams_per_s": ceiling,
        "bit_exact": True,
        "efficiency": speed / ceiling,
    }
