"""Break-even of near-memory hardware: its rate from which it beats what people use.

A search halves the range of factors in which the break-even is, on a logarithmic scale. It takes
for granted that a faster part makes no step longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import as_completed
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from sw_driver.machine import Machine
from sw_driver.report import Watch
from sw_driver.simulator.workers import connected, processes

from .comparison import Row, TrainedSteps, compare
from .summary import bound, engineering, fastest
from .systems import IN_USE, SYSTEMS

__all__ = ["LEAST", "MOST", "MOST_RUNS", "BreakEven", "break_evens", "least_factor", "rival"]

LEAST, MOST = 1 / 8, 32
"""Factors of a part's rate between which its break-even is searched."""
MOST_RUNS = 20
_NEAR = 1.02
"""Quotient of the factors between which a break-even is known."""

_BY_NAME = {system.name: system for system in SYSTEMS}


@dataclass(frozen=True, kw_only=True)
class BreakEven:
    """A part of a system, with the factor of its rate from which the system is the fastest."""

    system: str
    part: str
    """The part in words, such as ``its link``."""
    factor: float | None
    """Least factor; :data:`LEAST` if a lower one may do, None if :data:`MOST` is too little."""
    runs: int
    """Steps that were run."""
    gb_per_s: float | None = None
    """Rate of the part on this machine, in 10^9 bytes/s; None if it has no such rate."""
    bound: str = ""
    """Bound of the step at :data:`MOST` times the rate."""
    reason: str = ""
    """Reason why the system cannot run the step; else empty."""

    def describe(self) -> dict[str, Any]:
        """Return the break-even for JSON."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def sentence(self) -> str:
        """Return the break-even in words."""
        if self.reason:
            return f"{self.system}: {self.reason}"
        if self.factor is None:
            return (
                f"{self.system}: not with {self.part} {MOST} times as fast, bound by {self.bound}"
            )
        if self.factor <= LEAST:
            return f"{self.system}: wins already, even with an eighth of {self.part}"
        rate = ""
        if self.gb_per_s is not None:
            rate = f", {engineering(self.factor * self.gb_per_s * 1e9, 'B')}/s"
        wins = "wins already, down to" if self.factor <= 1 else "wins from"
        return f"{self.system}: {wins} {self.factor:.3g} times {self.part}{rate}"


def least_factor(beats: Callable[[float], bool]) -> tuple[float | None, int]:
    """Return the least factor that beats the rival, within 2 %, and the number of tries.

    Examples
    --------
    >>> factor, tries = least_factor(lambda factor: factor > 3)
    >>> 3 < factor < 3.06, tries < MOST_RUNS
    (True, True)
    >>> least_factor(lambda factor: False), least_factor(lambda factor: True)
    ((None, 1), (0.125, 2))
    """
    if not beats(MOST):
        return None, 1
    if beats(LEAST):
        return LEAST, 2
    low, high, runs = LEAST, float(MOST), 2
    while high / low > _NEAR and runs < MOST_RUNS:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if beats(middle) else (middle, high)
        runs += 1
    return high, runs


def rival(rows: Iterable[Row]) -> Row | None:
    """Return the fastest row of what people use."""
    return fastest([row for row in rows if row.system.name in IN_USE])


def break_evens(
    steps: TrainedSteps,
    machine: Machine,
    rival_ns: int,
    *,
    workers: str | int = 1,
    watch: Watch = Watch(),
) -> list[BreakEven]:
    """Return the break-even of each part of each near-memory system beside a step of ``rival_ns``.

    ``workers`` is a number of processes, or the address of a Dask scheduler. Parts that the machine
    lacks are left out.
    """
    works = [
        (steps, machine, system.name, part, rival_ns)
        for system in SYSTEMS
        for part, scaled in system.hardware.items()
        if callable(scaled) or {*scaled} <= {*machine.keys}
    ]
    if workers == 1:
        return [_break_even(work) for work in watch.track(works, "break-evens")]
    with _submitting(workers, watch) as submit:
        futures = [submit(work) for work in works]
        for _ in watch.track(as_completed(futures), "break-evens", len(futures)):
            pass
        return [future.result() for future in futures]


def _submitting(workers: str | int, watch: Watch) -> AbstractContextManager[Callable[[Any], Any]]:
    if isinstance(workers, int):
        return processes(workers, _break_even)
    return _on_cluster(workers, watch)


@contextmanager
def _on_cluster(address: str, watch: Watch) -> Iterator[Callable[[Any], Any]]:
    with connected(address, watch.log) as submit:
        yield lambda work: submit(_break_even, work)


def _break_even(work: tuple[TrainedSteps, Machine, str, str, int]) -> BreakEven:
    steps, machine, name, part, rival_ns = work
    system = _BY_NAME[name]
    scaled, rows = system.hardware[part], dict[float, Row]()

    def beats(factor: float) -> bool:
        other, there = system, machine
        if callable(scaled):
            other = scaled(system, factor)
        else:
            there = machine.override(_faster(machine, scaled, factor))
        (rows[factor],) = compare(steps, there, [other], lambda _: None)
        outcome = rows[factor].outcome
        return outcome is not None and outcome.step_ns < rival_ns

    factor, runs = least_factor(beats)
    last = rows[MOST]
    return BreakEven(
        system=name,
        part=part,
        factor=factor,
        runs=runs,
        gb_per_s=None if callable(scaled) else _value(machine, scaled[0]),
        bound=bound(last, steps.of(system), machine) if last.outcome else "",
        reason=last.reason.partition("\n")[0],
    )


def _faster(machine: Machine, keys: Iterable[str], factor: float) -> Mapping[str, str]:
    return {key: f"{factor * _value(machine, key):.9f}" for key in keys}


def _value(machine: Machine, key: str) -> float:
    figure = machine.keys[key]
    assert not isinstance(figure, str)
    return figure.value
