"""What a training step takes, of whatever system."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sw_driver.numbers import check_integer

from .engine import Engine

__all__ = ["Outcome", "outcome_of"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A training step, and what it takes of a machine."""

    step_ns: int
    busy_ns: Mapping[str, int] = field(default_factory=dict)
    """How long queues, or processors, have something to do, also if that waits for bytes."""
    peak_bytes: Mapping[str, int] = field(default_factory=dict)
    """The most that is held, by memory, or by place."""
    moved_bytes: Mapping[Any, int] = field(default_factory=dict)
    """By kind of transfer, or by tensor."""
    marks_ns: Mapping[str, int] = field(default_factory=dict)
    """When something was over, such as the pass ``forward``, from the begin of the step on."""
    parts_ns: Mapping[str, int] = field(default_factory=dict)
    """Parts of the step that do not overlap; the rest of it is waiting."""
    energy_j: float | None = None
    """If a model of the system has it."""

    def __post_init__(self) -> None:
        check_integer("step_ns", self.step_ns, 0)
        if (done := sum(self.parts_ns.values())) > self.step_ns:
            raise ValueError(f"parts_ns take {done}: expected step_ns, {self.step_ns}, at most")

    def busy(self, *queues: str) -> int:
        """Return the sum of :attr:`busy_ns` of queues; one that had no entry adds 0."""
        return sum(self.busy_ns.get(each, 0) for each in queues)


def outcome_of(engine: Engine, since: Outcome | None = None, **others: Any) -> Outcome:
    """Return what an engine has done, with ``others`` of the fields; or what it has done since an
    outcome of it. Peaks are those of all that it has done."""
    before = since or Outcome(step_ns=0)
    queues, memories = engine.queues.items(), engine.memories.items()
    return Outcome(
        step_ns=engine.now_ns - before.step_ns,
        busy_ns={name: each.busy_ns - before.busy(name) for name, each in queues},
        peak_bytes={name: each.peak_bytes for name, each in memories},
        **others,
    )
