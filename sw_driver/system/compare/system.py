"""What a system is to a comparison: what a training step needs, and what it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sw_driver.machine import Machine
from sw_driver.numbers import check_fields, check_name
from sw_driver.workload import Trace
from sw_driver.workload.summary import alive_bytes

from ..outcome import Outcome
from ..reproduction import MARKS

__all__ = ["ALWAYS", "PARTS", "PLACES", "CannotRunError", "Need", "Needs", "System", "all_parts_ns"]

PLACES = {
    "gpu": ("gpu",),
    "host": ("host",),
    "module": ("module0", "module1"),
    "nvme": ("nvme",),
    "memory_node": ("memory_node",),
    "cxl": ("cxl",),
    "stack": ("stack",),
}
"""Where bytes are, with the memories of the machine that make it up."""

PARTS: tuple[str, ...] = ("computing", "recomputing", "updating", "waiting")
"""Of a step's time: the GPU, or who is in its place, computes the passes; computes again what it
did not keep; does not compute while parameters are updated; and waits for bytes."""


ALWAYS = (
    "One GPU trains, in FP32, with the batch of the step that was captured.",
    "An operation takes a launch and the longer of its arithmetic and its bytes, by data sheets; "
    "none of these steps was measured.",
    "Memory takes what tensors take, without an allocator's gaps.",
    "A step is one of many that are alike; profiling and planning take no time.",
    "The largest model has more layers of the same sizes, and the same batch.",
    "Energy is the full power of GPU and cores while they work, also while a kernel waits for what "
    "it reads or writes over a link, and nothing of links, drives and "
    "other memories. A heterogeneous PIM has a model of its own; of modules there is no figure.",
)
"""What all systems assume."""


class CannotRunError(Exception):
    """A system cannot run a step; the message says why, as a sentence."""


@dataclass(frozen=True, kw_only=True)
class Need:
    """The least bytes of a place with which a step runs."""

    nbytes: int
    growing_bytes: int
    """What a model with twice as many layers of the same sizes takes more: the rest is fixed."""

    def __post_init__(self) -> None:
        check_fields(self, "nbytes", "growing_bytes")

    @classmethod
    def of_all(cls, trace: Trace) -> Need:
        """Of a whole step in one place. Workspaces and the batch do not add up over layers."""
        alive, fixed = alive_bytes(trace), alive_bytes(trace, "temporary", "input")
        peak = max(alive)
        return cls(nbytes=peak, growing_bytes=peak - fixed[alive.index(peak)])


Needs = Mapping[str, Need]
"""By place."""


def all_parts_ns(outcome: Outcome) -> dict[str, int]:
    """Return a step by :data:`PARTS`, waiting included."""
    parts = {name: outcome.parts_ns.get(name, 0) for name in PARTS[:-1]}
    return parts | {PARTS[-1]: outcome.step_ns - sum(parts.values())}


@dataclass(frozen=True, kw_only=True)
class System:
    """A way to train. Both functions are given a trace of one step and one of
    :data:`~sw_driver.system.compare.bases.BASES`, perhaps changed, and may raise
    :class:`CannotRunError`."""

    name: str
    mark: str
    """One of :data:`~sw_driver.system.reproduction.MARKS`: how its time is found."""
    assumptions: tuple[str, ...] = field(default=())
    """What holds for it that nobody has said of the model or the machine, a sentence each."""
    needs: Callable[[Trace, Machine], Needs]
    """The least, without a simulation; also for a machine that is too small."""
    run: Callable[[Trace, Machine], Outcome]
    """Asked only if what is needed is there. The outcome's parts are of :data:`PARTS` but waiting,
    its peaks by :data:`PLACES`, and ``gpu`` and ``cpu`` are busy, if what computes has a power."""

    def __post_init__(self) -> None:
        check_name("mark", self.mark, MARKS, ValueError)
