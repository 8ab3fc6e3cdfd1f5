"""Interface of a system to a comparison: needs and costs of a training step."""

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
"""Places of bytes, with the memories of the machine that make up each."""

PARTS: tuple[str, ...] = ("computing", "recomputing", "updating", "waiting")
"""Parts of a step's time on the GPU, or on the device in its place.

It computes the passes, recomputes activations, stops for the update of parameters, or waits for
bytes.
"""


ALWAYS = (
    "One GPU trains, in FP32, with the batch of the step that was captured.",
    "An operation takes its launch and the longer of its arithmetic and its bytes, at data-sheet "
    "rates; none of these steps was measured.",
    "Memory in use is the sum of tensors, without an allocator's gaps.",
    "A step is one of many equal ones; profiling and planning take no time.",
    "The largest model has more layers of the same sizes, and the same batch.",
    "Energy is the full power of GPU and cores while they work, also while a kernel waits for a "
    "link. Links, drives and other memories are left out. A heterogeneous PIM has its own model; "
    "for modules there is no figure.",
)
"""Assumptions of all systems."""


class CannotRunError(Exception):
    """A system cannot run a step; the message gives the reason as a sentence."""


@dataclass(frozen=True, kw_only=True)
class Need:
    """Least bytes of a place with which a step runs.

    Examples
    --------
    >>> from sw_driver.workload import load_trace
    >>> Need.of_all(load_trace("gpt-tiny"))
    Need(nbytes=575240, growing_bytes=541440)
    """

    nbytes: int
    growing_bytes: int
    """Further bytes for a model with twice as many layers of the same sizes."""

    def __post_init__(self) -> None:
        check_fields(self, "nbytes", "growing_bytes")

    @classmethod
    def of_all(cls, trace: Trace) -> Need:
        """Return the need of a whole step in one place.

        Workspaces and the batch do not add up over layers.
        """
        alive, fixed = alive_bytes(trace), alive_bytes(trace, "temporary", "input")
        peak = max(alive)
        return cls(nbytes=peak, growing_bytes=peak - fixed[alive.index(peak)])


Needs = Mapping[str, Need]
"""Needs by place."""


def all_parts_ns(outcome: Outcome) -> dict[str, int]:
    """Return the ns of a step by :data:`PARTS`, waiting included."""
    parts = {name: outcome.parts_ns.get(name, 0) for name in PARTS[:-1]}
    return parts | {PARTS[-1]: outcome.step_ns - sum(parts.values())}


@dataclass(frozen=True, kw_only=True)
class System:
    """A way to train.

    Both functions take a trace of one step and one of
    :data:`~sw_driver.system.compare.bases.BASES`, perhaps changed. They may raise
    :class:`CannotRunError`.

    Examples
    --------
    >>> needs = {"host": Need(nbytes=1000, growing_bytes=800)}
    >>> mine = System(name="mine", mark="predicted", needs=lambda *_: needs, run=lambda *_: None)
    >>> mine.needs(None, None)["host"].growing_bytes
    800
    """

    name: str
    mark: str
    """Origin of its time: one of :data:`~sw_driver.system.reproduction.MARKS`."""
    assumptions: tuple[str, ...] = field(default=())
    """Assumptions beyond those of the model and the machine, a sentence each."""
    needs: Callable[[Trace, Machine], Needs]
    """Function that computes the needs without a simulation, on a machine of any size."""
    run: Callable[[Trace, Machine], Outcome]
    """Function that runs a step; called only if the needs are met.

    The outcome has parts of :data:`PARTS` without waiting, and peaks by :data:`PLACES`. Its
    ``busy_ns`` has ``gpu`` and ``cpu`` if their power is known.
    """

    def __post_init__(self) -> None:
        check_name("mark", self.mark, MARKS, ValueError)
