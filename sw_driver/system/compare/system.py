"""Interface of a system to a comparison: needs and costs of a training step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar

from sw_driver.machine import Machine
from sw_driver.numbers import check_fields, check_name
from sw_driver.workload import Trace
from sw_driver.workload.summary import alive_bytes
from sw_driver.workload.training import Training

from ..outcome import Outcome
from ..reproduction import MARKS

__all__ = [
    "PARTS",
    "PLACES",
    "PLACE_NAMES",
    "Assumption",
    "CannotRunError",
    "Need",
    "Needs",
    "System",
    "all_parts_ns",
    "always",
    "formats_of",
    "remembering",
]

PLACES = {
    "gpu": ("gpu",),
    "host": ("host",),
    "module": ("module0", "module1"),
    "nvme": ("nvme",),
    "drive": ("drive",),
    "memory_node": ("memory_node",),
    "cxl": ("cxl",),
    "stack": ("stack",),
}
"""Places of bytes, with the memories of the machine that make up each."""

PLACE_NAMES = {
    "gpu": "GPU memory",
    "host": "host memory",
    "module": "module",
    "nvme": "drive",
    "drive": "drive",
    "memory_node": "memory-node",
    "cxl": "CXL memory",
    "stack": "stack",
}
"""Words for the places."""

PARTS: tuple[str, ...] = ("computing", "recomputing", "updating", "waiting")
"""Parts of a step's time on the GPU, or on the device in its place.

It computes the passes, recomputes activations, stops for the update of parameters, or waits for
bytes.
"""


_AUTOCAST = (
    "With {0}-mixed, PyTorch's autocast computes: products in {1}, and losses, norms and softmax "
    "in FP32. Trained parameters and their gradients are in FP32, and products read copies of "
    "them, unless a system's own assumptions differ."
)
_FORMATS = {
    "fp32": "With fp32, parameters, gradients and results are in FP32.",
    "tf32": "With tf32, parameters, gradients and results are in FP32. Products round their "
    "operands to TF32.",
    "bf16-mixed": _AUTOCAST.format("bf16", "BF16"),
    "fp16-mixed": f"{_AUTOCAST.format('fp16', 'FP16')} The loss is scaled, which takes no time.",
    **{
        form: f"With {form}, parameters, gradients and results are in {form.upper()}. Statistics "
        "of norms are in FP32."
        for form in ("bf16", "fp16")
    },
    "fp8-mixed": f"{_AUTOCAST.format('fp8', 'BF16')} Linear layers read copies in FP8 instead, "
    "where 16 divides all sides.",
    "as captured": "As captured, a step has the formats of its trace.",
}
"""Assumptions by the word for the formats of a step."""


def formats_of(trace: Trace) -> str:
    """Return the word for the formats of a step: its precision, or ``as captured``."""
    applied = dict(text.partition("=")[::2] for text in trace.origin.get("applied", ()))
    is_plain = all(op.dtype == "fp32" for op in trace.ops)
    return applied.get("precision", "fp32" if is_plain else "as captured")


def always(trace: Trace, machine: Machine) -> tuple[str, ...]:
    """Return the assumptions of all systems for a step on a machine."""
    gpus, micro = (int(trace.origin.get(name, 1)) for name in ("gpus", "accumulate"))
    who = f"The figures are of one GPU; all {gpus} do the same at the same time"
    batch = "The batch is that of the title, or the captured one" + "".join(
        (f"; a step has {micro} of them" * (micro > 1), "; every replica has its own" * (gpus > 1))
    )
    plain = (
        "An operation takes its launch and the longer of its arithmetic and its bytes, at "
        "data-sheet rates; none of these steps was measured."
    )
    kept = (
        "A product takes a time by its format and shape, at the share of the data sheet's rate "
        "that the GPU keeps in training. Another operation takes the longer of its arithmetic and "
        "its bytes, and none less than a launch. None of these steps was measured."
    )
    return (
        f"{who if gpus > 1 else 'One GPU trains'}. {batch}.",
        _FORMATS[formats_of(trace)],
        plain if machine.device("gpu").multiprocessors is None else kept,
        *(
            "Collectives run on a ring of GPUs, one after the other, beside operations that need "
            "nothing from them."
            for _ in range(gpus > 1)
        ),
        "Memory in use is the sum of tensors, without an allocator's gaps.",
        "A step is one of many equal ones; profiling and planning take no time.",
        "The largest model has more layers of the same sizes, and the same batch.",
        "Energy is the full power of one GPU while it computes; its host and all links are left "
        "out."
        if gpus > 1
        else "Energy is the full power of GPU and cores while they work, also while a kernel waits "
        "for a link. Links, drives and other memories are left out. A heterogeneous PIM has its "
        "own model; for modules there is no figure.",
    )


_R = TypeVar("_R")


def remembering(function: Callable[..., _R]) -> Callable[..., _R]:
    """Return a function that gives its last result again to the very same arguments.

    A system's needs and its run begin with the same work. Steps and machines are compared by
    identity, other arguments by value.

    Examples
    --------
    >>> step = remembering(lambda trace, nbytes: [nbytes])
    >>> trace = object()
    >>> step(trace, 1) is step(trace, 1), step(trace, 1) is step(trace, 2)
    (True, False)
    """
    last: list[Any] = [(), None]

    @wraps(function)
    def call(*given: Any) -> _R:
        same = len(given) == len(last[0]) and all(
            one is other or (isinstance(one, int | str | bool) and one == other)
            for one, other in zip(given, last[0], strict=True)
        )
        if not same:
            last[:] = given, function(*given)
        return last[1]

    return call


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
    def of_all(cls, trace: Trace, place: str = "gpu") -> Need:
        """Return the need of all tensors of a step in one place.

        Workspaces and the batch do not add up over layers.
        """
        alive = alive_bytes(trace, place=place)
        fixed = alive_bytes(trace, "temporary", "input", place=place)
        peak = max(alive)
        return cls(nbytes=peak, growing_bytes=peak - fixed[alive.index(peak)])


Needs = Mapping[str, Need]
"""Needs by place."""

Assumption = str | tuple[str, Callable[[Trace], bool]]
"""A sentence, perhaps with the steps that it holds for."""


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
    assumptions: tuple[Assumption, ...] = field(default=())
    """Assumptions beyond :func:`always`."""
    several_gpus: bool = False
    """True if it runs one GPU's share of a step of several, with collectives."""
    micro_batches: bool = True
    """True if it runs a step of several micro-batches."""
    bounds: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Words for what takes a part of :data:`PARTS`, where it is not the GPU."""
    training: Callable[[Training, Trace], Training] = lambda training, _: training
    """Function that returns the system's own training, from the user's and the captured step."""
    hardware: Mapping[str, tuple[str, ...] | Callable[[System, float], System]] = field(
        default_factory=dict, hash=False
    )
    """Parts that the system adds, in words: settings with their rates, the first one shown.

    Or a function that returns the system with the part's rate times a factor.
    """
    searched_ops: Callable[[Trace, Machine], int] = lambda *_: 0
    """Function that estimates the operations that a search for the system's schedule simulates."""
    needs: Callable[[Trace, Machine], Needs]
    """Function that computes the needs without a simulation, on a machine of any size."""
    run: Callable[[Trace, Machine], Outcome]
    """Function that runs a step; called only if the needs are met.

    The outcome has parts of :data:`PARTS` without waiting, and peaks by :data:`PLACES`. Its
    ``busy_ns`` has ``gpu`` and ``cpu`` if their power is known.
    """

    def __post_init__(self) -> None:
        check_name("mark", self.mark, MARKS, ValueError)

    def check(self, trace: Trace) -> None:
        """Raise :class:`CannotRunError` for a kind of step that the system has no model of."""
        gpus, micro = (int(trace.origin.get(name, 1)) for name in ("gpus", "accumulate"))
        if gpus > 1 and not self.several_gpus:
            raise CannotRunError(f"a step of {gpus} GPUs: this system is modelled on one")
        if micro > 1 and not self.micro_batches:
            raise CannotRunError(
                f"a step of {micro} micro-batches: this system is modelled with one, so give "
                f"--accumulate 1"
            )

    def assumed(self, trace: Trace) -> tuple[str, ...]:
        """Return the assumptions that hold for a step."""
        both = (one if isinstance(one, tuple) else (one, bool) for one in self.assumptions)
        return tuple(text for text, holds in both if holds(trace))
