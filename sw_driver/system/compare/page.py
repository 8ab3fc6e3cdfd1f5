"""A comparison in words: a table of rows, why some cannot run, what they assume, and a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

from matplotlib.ticker import EngFormatter

from ..outcome import Outcome
from ..reproduction import MARKS, markdown
from .comparison import Row, size
from .system import ALWAYS
from .systems import SYSTEMS, WITHOUT_HARDWARE

__all__ = ["ASSUMPTIONS", "advice", "page", "reasons", "table"]

ASSUMPTIONS = tuple(dict.fromkeys((*ALWAYS, *(s for each in SYSTEMS for s in each.assumptions))))
"""All that is assumed; tables have their numbers, from 1."""

_INTRODUCTION = """\
# Which system trains it

Five papers say how to train a model for which a GPU has too little memory, each on a machine of
its own and beside a baseline of its own. Here models of all their systems, and of what is in use
today, run the same training step on one base machine, with the parts that each of them adds. This
page, with another network or [a function of yours](systems.md#a-model-of-your-own), is what this
command writes:

```
{command}
```

Without `--out` it prints the tables. In Python, {{py:mod}}`sw_driver.system.compare` has the same.

- **A table.** *step* is the time of a training step when many follow each other. *GPU memory* and
  *elsewhere* are the most bytes that it takes; of a system that cannot run, the least with which it
  could. *largest* is the number of parameters, in billions, of the largest model of this kind that
  would run. *assumes* has numbers of [the list](#what-is-assumed), beside what all of them assume.
- **Marks.** No time is measured. With a *c* it is calibrated, by figures of the paper that are not
  on this page; all others are predicted.
- **To change an assumption**, `--machine` takes another GPU (`v100`, `a100`, `h100`, `rtx4090`),
  `--memory` another size of its memory, and `--set` any number of the machine, such as
  `--set pcie.read_gb_per_s=25` or `--set host.capacity_bytes=64GiB`. An unknown key is refused with
  a list of all; {{py:mod}}`sw_driver.system.compare.bases` has the source of each number. With
  `--recompute` all systems train a model that computes activations again, as many do that offload.
- **Limits.** An operation costs what data sheets allow, so that all are faster here than real
  kernels make them, and those that wait for links stand behind more than they would. It is one GPU,
  in FP32, with the batch that was captured. A policy is as its paper has it, also where that is not
  the best: with 2,050 MiB on a V100, bert-base takes Sentinel 9 % longer over a link that is twice
  as fast towards the GPU alone, and recomputation of a small LSTM takes 1 % more memory.
"""

_CAPTIONS = {
    "pareto": "Left and low is better. Each point is a system on this GPU, or on one with more or "
    "less memory; hollow ones take more than this GPU has. One is shown of those that nearly meet.",
    "parts": "Where the time of a step on this GPU goes; a bar with an arrow is cut off:",
    "sensitivity": "A step with other memory on the GPU, with other rates of its links (PCIe, CXL, "
    "to memory-nodes), and with other batches; a line ends where a system cannot run.",
}


def table(rows: Sequence[Row]) -> list[list[str]]:
    """Its heading first."""
    heading = ["", "step", "GPU memory", "elsewhere", "largest", "energy", "assumes"]
    return [heading, *map(_cells, rows)]


def _cells(row: Row) -> list[str]:
    nbytes = row.describe()["memory_bytes"]
    made, largest, energy = row.outcome, row.largest_parameters, row.energy_j
    return [
        row.system.name,
        seconds(made.step_ns) + MARKS[row.system.mark] if made else "cannot",
        size(nbytes["gpu"]) if "gpu" in nbytes else "",
        _memory({place: of for place, of in nbytes.items() if place != "gpu"}),
        "" if largest is None else f"{largest / 1e9:,.1f} bn",
        "" if energy is None else EngFormatter("J", places=1)(energy),
        _ranges(sorted(ASSUMPTIONS.index(each) + 1 for each in row.system.assumptions)),
    ]


def _ranges(numbers: Sequence[int]) -> str:
    """Such as ``7, 9-12``."""
    runs = [
        [number for _, number in run]
        for _, run in groupby(enumerate(numbers), lambda each: each[1] - each[0])
    ]
    return ", ".join(f"{run[0]}-{run[-1]}" if run[1:] else f"{run[0]}" for run in runs)


def seconds(ns: int) -> str:
    """With a prefix of its unit."""
    return EngFormatter("s", places=1)(ns / 1e9)


def reasons(rows: Sequence[Row]) -> list[str]:
    """Why those that cannot run it cannot."""
    return [f"{row.system.name}: {row.reason}" for row in rows if row.outcome is None]


def advice(rows: Sequence[Row], alone: Outcome) -> list[str]:
    """Who is the fastest, who is without other hardware than a GPU and a host, and who takes the
    least of the GPU's memory, each with what it takes; and what a step would take if the GPU had
    memory for all of it, ``alone``."""
    done = [(row.system.name, row.outcome) for row in rows if row.outcome]
    said = []

    def say(words: str, name: str, made: Outcome) -> None:
        said.append(f"{words}: {name}, {seconds(made.step_ns)}, with {_memory(made.peak_bytes)}")

    if done:
        say("The fastest", *min(done, key=lambda each: each[1].step_ns))
    if sold := [each for each in done if each[0] in WITHOUT_HARDWARE]:
        say("The fastest without other hardware", *min(sold, key=lambda each: each[1].step_ns))
    if sparing := [each for each in done if "gpu" in each[1].peak_bytes]:
        least = min(sparing, key=lambda each: (each[1].peak_bytes["gpu"], each[1].step_ns))
        say("The least GPU memory", *least)
    if not done:
        said.append("None can run it")
        if needing := [row for row in rows if "gpu" in row.needs]:
            row = min(needing, key=lambda each: each.needs["gpu"].nbytes)
            needs = {place: need.nbytes for place, need in row.needs.items()}
            said.append(f"The least that one needs: {row.system.name}, {_memory(needs)}")
    said.append(
        f"If all were in the GPU's memory: {seconds(alone.step_ns)}, "
        f"with {_memory(alone.peak_bytes)}"
    )
    return said


def _memory(nbytes: Mapping[str, int]) -> str:
    """Such as ``gpu 1.0 GiB, host 2.0 GiB``."""
    taken = {each.replace("_", " "): size(of) for each, of in nbytes.items() if of}
    return ", ".join(f"{place} {of}" for place, of in taken.items())


def page(
    command: str,
    where: str,
    found: Mapping[str, Sequence[Row]],
    said: Mapping[str, Sequence[str]],
    pictures: Sequence[Path],
) -> str:
    """As Markdown: who trains which network ``where``, ``pictures`` of the first, as seen from the
    page, and of each what is ``said`` and a table."""
    first = next(iter(found))
    steps = {name: [_cells(row)[1] for row in rows] for name, rows in found.items()}
    names = [row.system.name for row in found[first]]
    overview = [
        [name, *(each.replace("cannot", "") for each in cells)]
        for name, *cells in zip(names, *steps.values(), strict=True)
    ]
    parts = [_INTRODUCTION.format(command=command).strip()]
    parts += ["## All networks", f"Times of a step on {where}; who has none cannot run it."]
    parts += [markdown([["", *found], *overview])]
    for path in pictures:
        parts += [_CAPTIONS[path.stem], f"![{first}: {path.stem}]({path.as_posix()})"]
    for network, rows in found.items():
        parts += [f"## {network}", "\n".join(f"- {each}." for each in said[network])]
        parts += [markdown(table(rows))]
        parts += ["\n".join(f"- {each}" for each in reasons(rows))]
    parts += ["## What is assumed", f"1 to {len(ALWAYS)} by all:"]
    parts.append("\n".join(f"{n}. {each}" for n, each in enumerate(ASSUMPTIONS, 1)))
    return "\n\n".join(each for each in parts if each) + "\n"
