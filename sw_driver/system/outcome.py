"""Costs of a training step, in any system."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sw_driver.numbers import check_integer

from .engine import Engine

__all__ = ["Outcome", "Span", "merged", "outcome_of", "spans_of"]

_FINEST = 2000
"""Part of a step that a gap between merged spans is shorter than."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """An interval of a step in which a lane is busy, in ns from the step's begin."""

    lane: str
    """A processor or a direction of a link: ``gpu``, ``cpu``, ``pcie in`` or ``drive``."""
    name: str
    """Work of the interval, such as a phase of the step."""
    begin_ns: int
    end_ns: int


def merged(spans: Iterable[Span], step_ns: int) -> tuple[Span, ...]:
    """Return spans in the order of their begins, joined where a picture shows no difference.

    Neighbours in a lane become one span if they have the same name, and if the gap between them is
    shorter than a 2000th of the step.

    Examples
    --------
    >>> work = [Span(lane="gpu", name="forward", begin_ns=at, end_ns=at + 9) for at in (0, 10)]
    >>> merged(work, 40_000)
    (Span(lane='gpu', name='forward', begin_ns=0, end_ns=19),)
    """
    plain = ((span.lane, span.name, span.begin_ns, span.end_ns) for span in spans)
    return _merged(sorted(plain, key=lambda span: span[2]), step_ns)


def _merged(ordered: Iterable[tuple[str, str, int, int]], step_ns: int) -> tuple[Span, ...]:
    joined: list[list[Any]] = []
    last: dict[str, list[Any]] = {}
    for lane, name, begin_ns, end_ns in ordered:
        before = last.get(lane)
        if before and before[1] == name and (begin_ns - before[3]) * _FINEST < step_ns:
            before[3] = max(before[3], end_ns)
        else:
            last[lane] = [lane, name, begin_ns, end_ns]
            joined.append(last[lane])
    keys = ("lane", "name", "begin_ns", "end_ns")
    return tuple(Span(**dict(zip(keys, span, strict=True))) for span in joined)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A training step, and what it takes of a machine.

    Examples
    --------
    >>> outcome = Outcome(step_ns=200, busy_ns={"gpu": 150, "cpu": 30}, peak_bytes={"gpu": 1 << 30})
    >>> outcome.busy("gpu", "cpu"), outcome.step_ns
    (180, 200)
    """

    step_ns: int
    busy_ns: Mapping[str, int] = field(default_factory=dict)
    """Time in ns during which queues or processors have work, including waits for bytes."""
    peak_bytes: Mapping[str, int] = field(default_factory=dict)
    """Peak of the bytes held, by memory or by place."""
    moved_bytes: Mapping[Any, int] = field(default_factory=dict)
    """Bytes moved, by kind of transfer or by tensor."""
    marks_ns: Mapping[str, int] = field(default_factory=dict)
    """End of phases, such as the ``forward`` pass, in ns from the start of the step."""
    parts_ns: Mapping[str, int] = field(default_factory=dict)
    """Parts of the step in ns that do not overlap; the rest of the step is waiting."""
    spans: tuple[Span, ...] = field(default=(), repr=False)
    """Intervals in which lanes of the machine are busy; empty if no schedule gives them."""
    energy_j: float | None = None
    """Energy in joules, if a model of the system computes it."""

    def __post_init__(self) -> None:
        check_integer("step_ns", self.step_ns, 0)
        if (done := sum(self.parts_ns.values())) > self.step_ns:
            raise ValueError(f"parts_ns take {done}: expected step_ns, {self.step_ns}, at most")

    def busy(self, *queues: str) -> int:
        """Return the sum of :attr:`busy_ns` of queues; one that had no entry adds 0."""
        return sum(self.busy_ns.get(queue, 0) for queue in queues)


def outcome_of(engine: Engine, since: Outcome | None = None, **others: Any) -> Outcome:
    """Return what an engine has done in total, or since an earlier outcome of it.

    Peaks always cover the whole run. ``others`` are further fields of the outcome.
    """
    before = since or Outcome(step_ns=0)
    queues, memories = engine.queues.items(), engine.memories.items()
    return Outcome(
        step_ns=engine.now_ns - before.step_ns,
        busy_ns={name: queue.busy_ns - before.busy(name) for name, queue in queues},
        peak_bytes={name: memory.peak_bytes for name, memory in memories},
        spans=spans_of(engine, before.step_ns, engine.now_ns),
        **others,
    )


def spans_of(engine: Engine, begin_ns: int, end_ns: int) -> tuple[Span, ...]:
    """Return what an engine's queues and transfers did between two times, in spans from 0 on."""
    cut = [
        (lane, name, max(begin - begin_ns, 0), min(end, end_ns) - begin_ns)
        for lane, name, begin, end in engine.noted
        if max(begin, begin_ns) < min(end, end_ns)
    ]
    return _merged(sorted(cut, key=lambda span: span[2]), end_ns - begin_ns)
