"""A network that is small enough for the optimum, beside it."""

from __future__ import annotations

from itertools import pairwise
from math import inf

from sw_driver.workload.trace import Op, Stage, Tensor, Trace

from ..reproduction import Changes, Claim, Experiment, Progress, predicted
from .optimum import optimum
from .planning import planned
from .profiling import StepProfile
from .rivals import RIVALS
from .runs import SENTINEL, on_machine

__all__ = ["LAYERS", "chain", "optimal"]

OTHERS = ("clairvoyant", "first-touch")
LAYERS = 5
NBYTES = 8 << 20
"""Of each layer's output and of its gradient."""


def chain() -> Trace:
    """A step of so many layers: n has output n, and the gradient of that is 2 * LAYERS - 1 - n."""
    end = 2 * LAYERS
    tensors, ops = [], []
    for n in range(end):
        layer, forward = min(n, end - 1 - n), n < LAYERS
        reads = [n - 1] * (n not in (0, LAYERS)) + [layer] * (not forward)
        freed = end - n if forward else min(n + 2, end)
        kind = "activation" if forward else "temporary"
        tensors.append(Tensor(id=n, nbytes=NBYTES, kind=kind, allocated=n, freed=freed))
        ops.append(
            Op(
                id=n, kind="mm", layer=layer, phase="forward" if forward else "backward", stage=n,
                reads=tuple(reads), writes=(n,), read_bytes=(NBYTES,) * len(reads),
                write_bytes=(NBYTES,), flops=0,
            )
        )  # fmt: skip
    names = [f"layer {n}" for n in range(LAYERS)]
    stages = [Stage(name=each, phase="forward") for each in names]
    stages += [Stage(name=each, phase="backward") for each in reversed(names)]
    return Trace(
        name="a chain", tensors=tuple(tensors), ops=tuple(ops), layers=tuple(names),
        stages=tuple(stages),
    )  # fmt: skip


def optimal(changes: Changes, progress: Progress) -> Experiment:
    """A small network beside the optimum."""
    profile = StepProfile(step=chain())
    rows: list[dict[str, Claim | str]] = []
    quoted: dict[str, Claim] = {}
    for transfers in ("apart", "shared"):
        best = []
        for count in range(2, LAYERS + 2):
            progress(f"the optimum, {count} of {2 * LAYERS} tensors in fast memory")
            machine = on_machine("xeon", transfers, changes, count * NBYTES)
            took = {"optimum": optimum(profile.step, machine).step_ns}
            took[SENTINEL] = planned(profile, machine).step_ns
            took |= {each: RIVALS[each](profile, machine).step_ns for each in OTHERS}
            best.append(took["optimum"])
            row = {f"{name}, us": predicted(ns / 1e3, digits=1) for name, ns in took.items()}
            rows.append({"tensors in fast memory": str(count), "transfers": transfers, **row})
        falls = sum(a >= b for a, b in pairwise(best))
        quoted[f"more is no slower, {transfers}"] = predicted(
            falls, len(best) - 1, band=(len(best) - 1, inf), section="6.2", digits=0
        )
    return Experiment(
        title="The optimum: a network of 10 tensors",
        rows=rows,
        quoted=quoted,
        notes=[
            f"A chain of {LAYERS} layers, whose outputs and gradients have 8 MiB each, and the "
            "best of all ways to place and move them, by an integer programme."
        ],
    )
