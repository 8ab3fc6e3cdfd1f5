"""Report of a comparison: tables, reasons, assumptions, and a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import groupby
from pathlib import Path
from shlex import join
from types import MappingProxyType
from typing import Any

from sw_driver.device.errors import InvalidArgumentError
from sw_driver.files import write_whole
from sw_driver.machine import Machine
from sw_driver.report import Report, Table, Watch, engineering
from sw_driver.workload import Trace
from sw_driver.workload.loading import load_workload
from sw_driver.workload.precision import PRECISIONS
from sw_driver.workload.summary import described
from sw_driver.workload.trace import TraceError
from sw_driver.workload.training import Training

from ..outcome import Outcome
from ..reproduction import MARKS
from .bases import IDLE_KEYS, check_formats, machine_of, named, usual_precision
from .breakeven import break_evens, rival
from .comparison import Row, TrainedSteps, capacity_bytes, compare, size
from .lanes import alone
from .running import compared
from .summary import (
    COLUMNS,
    Compared,
    by_machine,
    in_words,
    parts_table,
    reasons,
    summary_table,
    verdict,
)
from .system import CannotRunError, System, always, formats_of
from .systems import DEFAULT, IN_USE, MOST_SEARCHED_OPS, SYSTEMS, WITHOUT_HARDWARE

__all__ = ["advice", "page", "report", "table"]

_INTRODUCTION = """\
# Which system trains it

Five papers train models that are too large for a GPU's memory, each on its own machine and beside
its own baseline. Here models of their systems, and of systems in use today, run the same training
step on one base machine, with the parts that each system adds. This command writes the page, also
for other networks or [a function of yours](systems.md#a-model-of-your-own):

```
{command}
```

Without `--out` it prints the tables. With it, `compare.html` beside the page has plots of the first
network for a browser: to zoom into a step, and to change memory, links and batch. It loads no other
file. In Python, {{py:mod}}`sw_driver.system.compare` does the same.

- **Fewer rows.** A screen shows twelve systems at most: those in use today, and the fastest of
  each paper. `--all` shows all, on all cores; Sentinel's search of a schedule takes up to a minute
  of one core. *bound by* names the largest part of a step. While the GPU works, that is its
  arithmetic, its memory or its launches, whichever bounds the operations that take the most time. A
  wait or an update elsewhere has the name of the link or processor that is busy.
- **Break-even.** `--break-even` searches the rate of each near-memory part from which its system
  beats the fastest of what people use, between an eighth and 32 times the rate, within 2 %. It
  takes for granted that a faster part makes no step longer.
- **A table.** *step* is the time of one training step among many. *GPU memory* and *elsewhere* are
  the peak of the bytes that it takes. For a system that cannot run, they are the least bytes that
  it needs. *largest* is the number of parameters of the largest model of this kind that would run.
  *assumes* has the system's numbers in [the list](#what-is-assumed); the first numbers hold for all
  systems.
- **Marks.** No time is measured. A *c* marks times calibrated to figures of the paper that are not
  on this page, an *a* times of a machine that nobody has built; all others are predicted.
- **To change the machine**, `--machine` takes another GPU, such as `h100`, or several, such as
  `h100x8`; `--memory` another size of its memory, and `--set` any number of the machine, such as
  `--set pcie.read_gb_per_s=25` or `--set host.capacity_bytes=64GiB`. An unknown key is refused with
  a list of all; {{py:mod}}`sw_driver.system.compare.bases` has the source of each number.
- **To change the training**, options set precision, checkpoints, optimizer, micro-batches, adapters
  and sharding ([list](systems.md#training-as-it-is-done)). Without `--precision` a step runs in
  mixed precision, as most training does; the papers' terms are `--precision fp32`.
- **Limits.** With `--precision fp32` data sheets give the cost of an operation, so all steps are
  faster here than with real kernels. Systems that wait for links look slower beside the others than
  they would be. Policies are those of the papers, even where they are not the best. With 2,050 MiB
  on a V100, for example, Sentinel takes 9 % longer for bert-base if its link is twice as fast
  away from the GPU only. Recomputation of a small LSTM takes 1 % more memory.
"""

_CAPTIONS = {
    "pareto": "Time of a step against memory; left and low is better. Each point is a system on "
    "this GPU, or on one with more or less memory. Hollow points take more memory than this GPU "
    "has. Of points that nearly coincide, one is shown.",
    "parts": "Parts of the time of a step on this GPU; a bar with an arrow is cut off:",
    "sensitivity": "Time of a step with other sizes of GPU memory, other rates of the GPU's links "
    "(PCIe, CXL, to memory-nodes), and other batches; a line ends where a system cannot run.",
}


_MEMORY = "gpu.capacity_bytes"
_AS_CAPTURED = Training()


def report(
    names: Sequence[str],
    *,
    machine: str = "v100",
    changes: Mapping[str, str] | None = None,
    training: Training = _AS_CAPTURED,
    others: Mapping[str, Training] = MappingProxyType({}),
    batch: int | None = None,
    seq: int | None = None,
    folder: Path | None = None,
    everything: bool = False,
    shows_assumptions: bool = False,
    workers: str | int | None = None,
    watch: Watch = Watch(),
) -> Report:
    """Return a comparison of the systems that would train models.

    Parameters
    ----------
    names, batch, seq: networks, traces or functions, and their sizes; see
        :func:`~sw_driver.workload.loading.load_workload`.
    machine: a name that :func:`~sw_driver.system.compare.bases.machine_of` takes.
    training: choices of the step, with the machine's number of GPUs. Without a precision, a step
        captured in FP32 has the usual one of its GPU.
    others: further machines, with the choices of the step there.
    changes: changes that :meth:`~sw_driver.machine.machine.Machine.override` takes.
    folder: for ``compare.md`` with all systems and, of the first network on the first machine,
        ``compare.html`` and, in ``compare/``, pictures.
    everything: True for all systems, in place of
        :data:`~sw_driver.system.compare.systems.DEFAULT`. This takes all cores.
    workers: for the break-evens of near-memory hardware too, on so many processes or the Dask
        scheduler of this address.
    shows_assumptions: True if the assumptions are printed, too; JSON and files always have them.

    Raises
    ------
    InvalidArgumentError: for an unknown machine, two machine files of one name, a change without
        effect, a precision or a number of GPUs that the machine lacks, and models that no system
        can train.
    MachineError, TraceError: for invalid changes and names, and a training that fits no step.
    """
    changes = dict(changes or {})
    bases = {
        name: _machine(name, choices, changes)
        for name, choices in {machine: training, **others}.items()
    }
    titles = [base.name for base, _ in bases.values()]
    if twice := [name for name in titles if titles.count(name) > 1]:
        raise InvalidArgumentError(
            f"--machine has two machines {twice[0]!r}: give a file another name"
        )
    captured: dict[str, Trace] = {}
    for name in dict.fromkeys(names):
        watch.say(f"reading {name}")
        title = name + f", batch {batch}" * (batch is not None)
        title += f", {seq} tokens" * (seq is not None)
        captured[title] = load_workload(name, batch=batch, seq=seq)
    steps = {
        (name, where): _step(name, trace, where, bases[where][1])
        for name, trace in captured.items()
        for where in bases
    }
    wanted = [
        (own, bases[where][0], _systems(own, bases[where][0], everything or folder is not None))
        for (_, where), own in steps.items()
    ]
    cases = [
        Compared(
            network=name,
            words=_words(own.training, own.usual),
            steps=own,
            machine=bases[where][0],
            gpus=named(where)[1],
            changes=", ".join(f"{key}={changes[key]}" for key in changes if key != _MEMORY),
            rows=rows,
        )
        for ((name, where), own), rows in zip(
            steps.items(), compared(wanted, watch.say, is_long=everything), strict=True
        )
    ]
    if not any(row.outcome for case in cases for row in case.rows):
        raise InvalidArgumentError(
            f"{verdict(cases[0]).removesuffix('.')}; take a machine with more memory, a smaller "
            f"--batch, --checkpoint full, --trainable qlora:16{'' if everything else ', or --all'}"
        )
    general = [
        *dict.fromkeys(text for one in cases for text in always(one.steps.usual, one.machine))
    ]
    assumptions = _numbered(general, [case.rows for case in cases])
    files: list[Path] = []
    if folder is not None:
        from .figures import draw
        from .html import write
        from .variation import varied

        first, outcomes = cases[0], [row.outcome for row in cases[0].rows]
        varying = varied(first.steps, first.machine, outcomes, watch.say)
        pictures = folder / "compare"
        pictures.mkdir(parents=True, exist_ok=True)
        capacity = capacity_bytes(first.machine, "gpu")
        drawn = draw(first.title, first.rows, varying, capacity, pictures)
        command = ["nearmem", "compare", *names]
        for name in bases:
            command += ["--machine", name]
        command += _options(training)
        command += [f"--set={key}={value}" for key, value in changes.items()]
        given = {"batch": batch, "seq": seq}
        command += [f"--{option}={value}" for option, value in given.items() if value is not None]
        shown = [file.relative_to(folder) for file in drawn]
        text = page(f"{join(command)} --out DIR", cases, changes, shown, assumptions)
        text += f"\n{_hold(general)}\n"
        write_whole(folder / "compare.md", text)
        sentences = [verdict(first), *advice(first.rows, alone(first.steps.usual, first.machine))]
        own = table(first.rows, assumptions), first.rows, varying, capacity, assumptions
        looked = write(folder / "compare.html", first.title, sentences, *own)
        files = [folder / "compare.md", looked, *drawn]
    results = [
        {
            "network": case.network,
            "training": case.words,
            "machine": case.machine.name,
            **row.describe(),
            "assumes": _assumed(row, assumptions),
        }
        for case in cases
        for row in case.rows
    ]
    described_machines = {where: base.describe() for where, (base, _) in bases.items()}
    parts, essence = _shown(cases, everything)
    breaks: list[dict[str, Any]] = []
    for case in cases if workers is not None else ():
        texts, figures = _break_even(case, workers or 1, watch)
        parts += texts
        breaks += figures
    return Report(
        results=results if workers is None else {"rows": results, "break_even": breaks},
        parts=[*parts, *[_hold(general)] * shows_assumptions],
        assumptions=assumptions,
        machine=described_machines if others else described_machines[machine],
        workload={case.network: described(case.steps.usual) for case in cases},
        files=files,
        essence=essence,
        hides_assumptions=not shows_assumptions,
        columns=COLUMNS,
    )


def _break_even(
    case: Compared, workers: str | int, watch: Watch
) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the break-evens of a case in words, and for JSON."""
    in_use = [system for system in SYSTEMS if system.name in IN_USE]
    beaten = rival(compare(case.steps, case.machine, in_use, watch.say))
    if beaten is None or beaten.outcome is None:
        return [f"Break-even of {case.title}: nothing in use runs it, so there is none."], []
    step_ns, name = beaten.outcome.step_ns, beaten.system.name
    made = break_evens(case.steps, case.machine, step_ns, workers=workers, watch=watch)
    title = f"Break-even of {case.title}, beside {name} with {seconds(step_ns)}:"
    where = {"network": case.network, "machine": case.machine.name, "beats": name}
    return [title, *dict.fromkeys(f"- {one.sentence()}" for one in made)], [
        where | one.describe() for one in made
    ]


def _machine(name: str, training: Training, changes: Mapping[str, str]) -> tuple[Machine, Training]:
    """Return a machine with changes, and the training with its number of GPUs."""
    base = machine_of(name, training.precision)
    gpu, gpus = named(name)
    if training.gpus == 1 and gpus > 1:
        training = replace(training, gpus=gpus)
    if training.gpus != gpus:
        raise InvalidArgumentError(
            f"gpus is {training.gpus}, and the machine {name} has {gpus}: give a machine such "
            f"as {gpu}x{training.gpus}, or leave out gpus"
        )
    if training.precision:
        formats = PRECISIONS[training.precision]
        check_formats(gpu, formats, f"--precision is {training.precision!r}")
    for key in changes:
        if key in IDLE_KEYS:
            raise InvalidArgumentError(f"--set has {key!r}, on which nothing depends: leave it out")
    return base.override(changes), training


def _step(name: str, captured: Trace, machine: str, training: Training) -> TrainedSteps:
    """Return a captured step with the choices of a training on a machine."""
    gpu, gpus = named(machine)
    steps = TrainedSteps(captured, _trained(captured, training, gpu))
    trace = steps.usual
    if not trace.ops:
        raise TraceError(f"{name} has no operation: give a training step")
    formats = {op.dtype for op in trace.ops}
    check_formats(gpu, formats, f"{name} has other formats than FP32", "capture it in FP32")
    if (several := int(trace.origin.get("gpus", 1))) != gpus:
        raise TraceError(
            f"{name} is a step of {several} GPUs already, and {machine} has {gpus}: give the "
            f"step as captured"
        )
    return steps


def _systems(steps: TrainedSteps, machine: Machine, everything: bool) -> list[System]:
    """Return all systems, or those of :data:`DEFAULT` with a model of a step and a short search."""
    return [system for system in SYSTEMS if everything or _is_shown(system, steps, machine)]


def _is_shown(system: System, steps: TrainedSteps, machine: Machine) -> bool:
    if system.name not in DEFAULT:
        return False
    try:
        trace = steps.of(system)
        system.check(trace)
    except (CannotRunError, InvalidArgumentError, TraceError):
        return False
    return system.searched_ops(trace, machine) <= MOST_SEARCHED_OPS


def _shown(
    cases: Sequence[Compared], everything: bool
) -> tuple[list[Table | str], list[Table | str]]:
    """Return the parts of the first screen, and the tables alone."""
    parts: list[Table | str] = []
    essence: list[Table | str] = []
    for name in dict.fromkeys(case.network for case in cases):
        own = [
            replace(
                case,
                rows=[
                    row
                    for row in case.rows
                    if everything or _is_shown(row.system, case.steps, case.machine)
                ],
            )
            for case in cases
            if case.network == name
        ]
        parts += [verdict(case) for case in own]
        table = by_machine(own) if len(own) > 1 else summary_table(own[0])
        essence.append(table)
        parts.append(table)
        if len(own) == 1 and (times := parts_table(own[0])):
            parts.append(times)
        for case in own:
            where = f" on {case.machine.name}" * (len(own) > 1)
            parts += [in_words(row, where) for row in case.rows if row.outcome is None]
        parts += _left_out(own)
    return parts, essence


def _left_out(cases: Sequence[Compared]) -> list[str]:
    """Return a sentence on systems that have no row in any of the cases, if there are some."""
    shown = {row.system.name for case in cases for row in case.rows}
    left = [system for system in SYSTEMS if system.name not in shown]
    slow = [
        system.name
        for system in left
        if system.name in DEFAULT
        and any(
            system.searched_ops(case.steps.usual, case.machine) > MOST_SEARCHED_OPS
            for case in cases
        )
    ]
    if not left:
        return []
    why = f"{', '.join(slow)} (a long search)" if slow else ""
    others = f"{len(left) - len(slow)} systems (variants, or without meaning here)"
    return [f"Not shown: {', '.join(filter(None, (why, others)))}. --all shows them."]


def _trained(trace: Trace, training: Training, gpu: str) -> Training:
    """Return the training of a step, with the usual precision unless one is given.

    A step in other formats, or changed already, stays as it is.
    """
    is_changed = not {"applied", "recomputed"}.isdisjoint(trace.origin)
    if training.precision or is_changed or any(op.dtype != "fp32" for op in trace.ops):
        return training
    return replace(training, precision=usual_precision(gpu))


def _words(training: Training, trace: Trace) -> str:
    """Return the choices of a training in words, formats first."""
    width, chunks = training.tensor_parallel, training.loss_chunks
    loss = "fused " * training.fused_loss + "loss" + f" in {chunks} chunks" * (chunks > 1)
    choices = {
        formats_of(trace): True,
        training.trainable: training.trainable != "all",
        f"checkpoint {training.checkpoint}": training.checkpoint != "none",
        f"{training.optimizer}{' in the backward pass' * training.in_backward}": training.optimizer,
        f"{training.accumulate} micro-batches": training.accumulate > 1,
        f"tensor parallel {width}": width > 1,
        training.scheme: training.scheme != "none",
        loss: loss != "loss",
        "compiled": training.compiled,
    }
    return ", ".join(text for text, holds in choices.items() if holds)


def _options(training: Training) -> list[str]:
    """Return the options of the command that choose a training."""
    options = []
    for field in fields(training):
        value = getattr(training, field.name)
        if field.name != "gpus" and value != field.default:
            name = "compile" if field.name == "compiled" else field.name.replace("_", "-")
            options.append(f"--{name}" if value is True else f"--{name}={value}")
    return options


def _numbered(general: Sequence[str], networks: Iterable[Sequence[Row]]) -> list[str]:
    """Return all assumptions: general ones, and those of systems in their order."""
    order = {system.name: number for number, system in enumerate(SYSTEMS)}
    every = (row for rows in networks for row in rows)
    own = sorted(every, key=lambda row: order.get(row.system.name, -1))
    return [*dict.fromkeys((*general, *(text for row in own for text in row.assumptions)))]


def _hold(general: Sequence[str]) -> str:
    return f"Assumptions 1 to {len(general)} hold for all systems."


def table(rows: Sequence[Row], assumptions: Sequence[str], title: str = "") -> Table:
    """Return a row for each system, with the numbers of its ``assumptions``."""
    cells = [[*_cells(row), _ranges(_assumed(row, assumptions))] for row in rows]
    headings = ["", "step", "GPU memory", "elsewhere", "largest", "energy", "assumes"]
    return Table(title=title, headings=headings, rows=cells, words=(0, 3, 6))


def _assumed(row: Row, assumptions: Sequence[str]) -> list[int]:
    """Return the numbers of a system's own assumptions."""
    return sorted(assumptions.index(text) + 1 for text in row.assumptions)


def _cells(row: Row) -> list[str]:
    """Return all cells but the last."""
    nbytes = row.describe()["memory_bytes"]
    made, largest, energy = row.outcome, row.largest_parameters, row.energy_j
    return [
        row.system.name,
        seconds(made.step_ns) + MARKS[row.system.mark] if made else "cannot",
        size(nbytes["gpu"]) if "gpu" in nbytes else "",
        _memory({place: held for place, held in nbytes.items() if place != "gpu"}),
        "" if largest is None else _parameters(largest),
        "" if energy is None else engineering(energy, "J"),
    ]


def _parameters(number: int) -> str:
    """Return a number of parameters, such as ``1.3 bn`` or ``350.0 M``."""
    return f"{number / 1e9:,.1f} bn" if number >= 10**9 else f"{number / 1e6:,.1f} M"


def _ranges(numbers: Sequence[int]) -> str:
    """Return numbers as ranges, such as ``7, 9-12``."""
    runs = [
        [number for _, number in run]
        for _, run in groupby(enumerate(numbers), lambda item: item[1] - item[0])
    ]
    return ", ".join(f"{run[0]}-{run[-1]}" if run[1:] else f"{run[0]}" for run in runs)


def seconds(ns: int) -> str:
    """Return a time as a text, with a prefix of its unit."""
    return engineering(ns / 1e9, "s")


def advice(rows: Sequence[Row], alone: Outcome) -> list[str]:
    """Return sentences on the fastest system and on the one with the least GPU memory.

    One is on the fastest without hardware beyond a GPU and a host. The last has the step ``alone``,
    on a GPU with enough memory for everything.
    """
    done = [(row.system.name, row.outcome) for row in rows if row.outcome]
    sentences = []

    def say(words: str, name: str, made: Outcome) -> None:
        sentences.append(
            f"{words}: {name}, {seconds(made.step_ns)}, with {_memory(made.peak_bytes)}"
        )

    if done:
        say("Fastest", *min(done, key=lambda item: item[1].step_ns))
    if sold := [item for item in done if item[0] in WITHOUT_HARDWARE]:
        say("Fastest without additional hardware", *min(sold, key=lambda item: item[1].step_ns))
    if sparing := [item for item in done if "gpu" in item[1].peak_bytes]:
        least = min(sparing, key=lambda item: (item[1].peak_bytes["gpu"], item[1].step_ns))
        say("Least GPU memory", *least)
    if not done:
        sentences.append("No system can run it")
        if needing := [row for row in rows if "gpu" in row.needs]:
            row = min(needing, key=lambda item: item.needs["gpu"].nbytes)
            needs = {place: need.nbytes for place, need in row.needs.items()}
            sentences.append(f"Smallest need: {row.system.name}, {_memory(needs)}")
    sentences.append(
        f"With everything in the GPU's memory: {seconds(alone.step_ns)}, "
        f"with {_memory(alone.peak_bytes)}"
    )
    return sentences


def _memory(nbytes: Mapping[str, int]) -> str:
    """Return sizes by place as a text, such as ``gpu 1.0 GiB, host 2.0 GiB``."""
    taken = {place.replace("_", " "): size(held) for place, held in nbytes.items() if held}
    return ", ".join(f"{place} {held}" for place, held in taken.items())


def page(
    command: str,
    cases: Sequence[Compared],
    changes: Mapping[str, str],
    pictures: Sequence[Path],
    assumptions: Sequence[str],
) -> str:
    """Return the page as Markdown.

    For each of ``cases`` there is a table. ``changes`` are those of all machines. ``pictures`` show
    the first case; paths are relative to the page.
    """
    first = cases[0]
    several = len({case.machine.name for case in cases}) > 1
    labels = [case.network + f" on {case.machine.name}" * several for case in cases]
    steps = [[_cells(row)[1] for row in case.rows] for case in cases]
    names = [row.system.name for row in first.rows]
    overview = [
        [name, *(cell.replace("cannot", "") for cell in cells)]
        for name, *cells in zip(names, *steps, strict=True)
    ]
    where = " or ".join(
        dict.fromkeys(
            f"{case.machine.name} with {size(capacity_bytes(case.machine, 'gpu'))}"
            for case in cases
        )
    )
    where += "".join(f", {key}={changes[key]}" for key in changes if key != _MEMORY)
    parts = [_INTRODUCTION.format(command=command).strip()]
    parts += [
        "## All networks",
        f"Times of a step on {where}, {' or '.join(dict.fromkeys(case.words for case in cases))}; "
        "a system without a time cannot run it.",
    ]
    parts += [Table(headings=["", *labels], rows=overview).markdown]
    for path in pictures:
        parts += [_CAPTIONS[path.stem], f"![{labels[0]}: {path.stem}]({path.as_posix()})"]
    for label, case in zip(labels, cases, strict=True):
        parts += [f"## {label}, {case.words}", verdict(case)]
        advised = advice(case.rows, alone(case.steps.usual, case.machine))
        parts += ["\n".join(f"- {sentence}." for sentence in advised)]
        parts += [table(case.rows, assumptions).markdown]
        parts += ["\n".join(f"- {sentence}" for sentence in reasons(case.rows))]
    parts.append(Report(results=None, assumptions=assumptions).markdown.strip())
    return "\n\n".join(part for part in parts if part) + "\n"
