"""First screen of a comparison: a verdict, a table, parts of the time, and reasons in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sw_driver.machine import Machine
from sw_driver.report import Table
from sw_driver.report import engineering as with_prefix
from sw_driver.workload import Trace, peak_bytes
from sw_driver.workload.summary import trained_units

from ..outcome import Outcome
from ..reproduction import MARKS
from .comparison import Row, TrainedSteps, capacity_bytes, size
from .system import PLACE_NAMES, all_parts_ns
from .systems import ADAPTERS, WITHOUT_HARDWARE

__all__ = [
    "COLUMNS",
    "Compared",
    "bound",
    "by_machine",
    "by_step",
    "engineering",
    "fastest",
    "in_words",
    "parts_table",
    "rate",
    "reasons",
    "summary_table",
    "verdict",
]

COLUMNS = 80
"""Columns of the first screen, at most."""

_LANES = {
    "to the GPU": "PCIe",
    "from the GPU": "PCIe",
    "cpu": "CPU",
    "drive": "drives",
    "in the drive": "drives",
    "peers": "GPU links",
}
"""Words for the lanes of a step that are not the GPU."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A network on a machine, with a row for each system."""

    network: str
    """Name, batch and length of the step."""
    words: str
    """Choices of the training, formats first."""
    steps: TrainedSteps
    machine: Machine
    gpus: int
    changes: str = ""
    """Changed settings of the machine, but for its memory."""
    rows: Sequence[Row]

    @property
    def title(self) -> str:
        """Network, training and machine in words."""
        base, *file = self.machine.name.split(" ", 1)  # of a machine file, its name follows
        gpu = " ".join([base.removesuffix(f"x{self.gpus}"), *file])
        memory = size(capacity_bytes(self.machine, "gpu"))
        where = f"{self.gpus} x {gpu} with {memory}" + f", {self.changes}" * bool(self.changes)
        return f"{self.network}, {self.words}, {where}"


def engineering(value: float, unit: str = "") -> str:
    """Return a value with three digits and a prefix of its unit: ``"1.23 ms"``."""
    number, _, unit = with_prefix(value, unit, 2).partition(" ")
    return f"{_three(float(number))} {unit}".rstrip()


def _three(value: float) -> str:
    """Return a value with about three digits: ``"1,234"``, ``"12.3"`` or ``"0.12"``."""
    return f"{value:,.{2 if value < 10 else 1 if value < 100 else 0}f}"


def rate(case: Compared, made: Outcome) -> tuple[str, str]:
    """Return the tokens or samples per second of a step on all GPUs, and the unit."""
    units, word = trained_units(case.steps.usual)
    per_s = units * 1e9 / made.step_ns
    return _three(per_s) if per_s < 1e6 else engineering(per_s), f"{word}/s"


def by_step(rows: Sequence[Row]) -> list[Row]:
    """Return the rows from the shortest step to the longest, and then those that cannot run."""
    return sorted(rows, key=lambda row: row.outcome.step_ns if row.outcome else float("inf"))


def fastest(rows: Sequence[Row]) -> Row | None:
    """Return the row with the shortest step; None if no system can run it."""
    done = by_step([row for row in rows if row.outcome])
    return done[0] if done else None


def verdict(case: Compared) -> str:
    """Return one sentence: whether the step fits as it is, and which systems are the best."""
    made = [row for row in case.rows if row.outcome and row.system.name not in ADAPTERS]
    sold = [row for row in made if row.system.name in WITHOUT_HARDWARE] or made
    fits = peak_bytes(case.steps.usual) <= capacity_bytes(case.machine, "gpu")
    says = ["fits plainly" if fits else "does not fit plainly"]

    def speed(row: Row) -> str:
        assert row.outcome
        return (
            f"{row.system.name} at {engineering(row.outcome.step_ns / 1e9, 's')}, "
            f"{' '.join(rate(case, row.outcome))}"
        )

    best, best_sold = fastest(made), fastest(sold)
    if best is None or best_sold is None:
        says.append("no system can run it")
        if needing := [row for row in case.rows if "gpu" in row.needs]:
            least = min(needing, key=lambda row: row.needs["gpu"].nbytes)
            needs = ", ".join(
                f"{size(need.nbytes)} of {PLACE_NAMES[place]}"
                for place, need in least.needs.items()
                if need.nbytes
            )
            says.append(f"smallest need: {least.system.name}, {needs}")
        return f"{case.title}: {'; '.join(says)}."
    says.append(f"fastest that fits: {speed(best_sold)}")
    if best is not best_sold:
        says.append(f"with added hardware: {speed(best)}")
    if sparing := [row for row in sold if row.outcome and "gpu" in row.outcome.peak_bytes]:
        least = min(
            by_step(sparing), key=lambda row: row.outcome.peak_bytes["gpu"] if row.outcome else 0
        )
        assert least.outcome
        says.append(f"least GPU memory: {least.system.name}, {size(_gpu_bytes(least))}")
    return f"{case.title}: {'; '.join(says)}."


def _gpu_bytes(row: Row) -> int:
    """Return the bytes of GPU memory of a row, at the peak or at least."""
    return row.describe()["memory_bytes"].get("gpu", 0)


def summary_table(case: Compared, title: str = "") -> Table:
    """Return the table of the first screen, the fastest system first."""
    held = [row.describe()["memory_bytes"] for row in case.rows]
    power = (
        3 if max((max(places.values(), default=0) for places in held), default=0) >= 2**30 else 2
    )
    units, word = trained_units(case.steps.usual)

    def gib(nbytes: int) -> str:
        return _three(nbytes / 1024**power)

    def cells(row: Row) -> list[str]:
        made, nbytes = row.outcome, row.describe()["memory_bytes"]
        others = [
            f"{PLACE_NAMES[place].removesuffix(' memory').removeprefix('memory-')} {gib(held)}"
            for place, held in nbytes.items()
            if place != "gpu" and held
        ]
        joules = None if row.energy_j is None else row.energy_j * case.gpus / units
        return [
            row.system.name + MARKS[row.system.mark] * bool(made),
            "yes" if made else "no",
            engineering(made.step_ns / 1e9, "s") if made else "",
            rate(case, made)[0] if made else "",
            gib(nbytes["gpu"]) if "gpu" in nbytes else "",
            "\n".join(others),
            "" if joules is None else engineering(joules, "J"),
            bound(row, case.steps.of(row.system), case.machine) if made else "",
        ]

    marks = {MARKS[row.system.mark].strip() for row in case.rows if row.outcome} & {*_MARKED}
    says = [
        f"Memory in {('', 'KiB', 'MiB', 'GiB')[power]}" + " of each GPU" * (case.gpus > 1),
        f"energy a {word.removesuffix('s')}",
        *(_MARKED[mark] for mark in sorted(marks)),
    ]
    headings = ["", "fits", "step", f"{word} /s", "GPU", "elsewhere", "energy", "bound by"]
    return Table(
        title=title,
        headings=headings,
        rows=[cells(row) for row in by_step(case.rows)],
        words=(0, 1, 7),
        caption="; ".join(says) + ".",
        is_dense=True,
    )


_MARKED = {
    "a": "a: nobody has built it",
    "c": "c: calibrated to the paper",
}
"""Explanations of the marks of times."""


def bound(row: Row, trace: Trace, machine: Machine) -> str:
    """Return in words what takes the largest part of a step's time; empty without a result.

    While the GPU works, it is bound by its arithmetic, its memory or its launches, whichever bounds
    the operations that take most of the time. An update elsewhere and a wait are named by the
    system, or by the lane beside the GPU's that is busy longest.
    """
    if row.outcome is None:
        return ""
    parts = all_parts_ns(row.outcome)
    parts["computing"] += parts.pop("recomputing")
    part = max(parts, key=parts.__getitem__)
    if part in row.system.bounds:
        return row.system.bounds[part]
    lanes = {lane: ns for lane, ns in row.outcome.busy_ns.items() if lane in _LANES and ns}
    on_gpu = part == "computing" or (part == "updating" and not {*lanes} - {"peers"})
    if on_gpu:
        return _bound_of_gpu(trace, machine)
    return _LANES[max(lanes, key=lanes.__getitem__)] if lanes else "waits"


def _bound_of_gpu(trace: Trace, machine: Machine) -> str:
    """Return what bounds the operations that take most of the GPU's time."""
    gpu, sums = machine.device("gpu"), {"GPU FLOP/s": 0, "GPU memory": 0, "launches": 0}
    least_ns = int(gpu.launch_ns.value) - gpu.start_ns
    for op in trace.ops:
        took_ns, computing_ns = gpu.cost(op) - gpu.start_ns, gpu.compute_ns(op)
        sums["launches"] += gpu.start_ns
        bound = "GPU FLOP/s" if computing_ns >= took_ns else "GPU memory"
        sums["launches" if took_ns <= least_ns else bound] += took_ns
    return max(sums, key=sums.__getitem__)


def parts_table(case: Compared) -> Table | None:
    """Return the shares of each step's time that computing, updating and waiting take."""
    rows = [row for row in by_step(case.rows) if row.outcome]
    parts = [all_parts_ns(row.outcome) for row in rows if row.outcome]
    names = [name for name in (parts[0] if parts else ()) if any(times[name] for times in parts)]
    if not rows:
        return None
    cells = [
        [row.system.name, *(f"{times[name] / max(sum(times.values()), 1):.0%}" for name in names)]
        for row, times in zip(rows, parts, strict=True)
    ]
    return Table(headings=["where the time goes", *names], rows=cells)


def reasons(rows: Sequence[Row]) -> list[str]:
    """Return the systems that cannot run the step, with the reasons."""
    return [f"{row.system.name}: {row.reason}" for row in rows if row.outcome is None]


def in_words(row: Row, where: str = "") -> str:
    """Return the first line of the reason why a system cannot run the step."""
    return f"- {row.system.name}{where}: {row.reason.splitlines()[0]}"


def by_machine(cases: Sequence[Compared]) -> Table:
    """Return one table of the speeds of a network on several machines."""
    _, word = trained_units(cases[0].steps.usual)
    names = [row.system.name for case in cases for row in case.rows]
    by_place: Mapping[tuple[str, str], Row] = {
        (case.machine.name, row.system.name): row for case in cases for row in case.rows
    }

    def cell(case: Compared, name: str) -> str:
        row = by_place.get((case.machine.name, name))
        if row is None:
            return ""
        return rate(case, row.outcome)[0] if row.outcome else "no"

    return Table(
        title=f"{cases[0].network}, {word}/s",
        headings=["", *(case.machine.name for case in cases)],
        rows=[[name, *(cell(case, name) for case in cases)] for name in dict.fromkeys(names)],
        caption="no: it does not fit, or cannot run; empty: it has no meaning there.",
    )
