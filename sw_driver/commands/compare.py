"""``nearmem compare``: which system would train a model, in what time and memory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from shlex import join
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from . import (
    FLAT,
    OutputFolder,
    OutputOptions,
    Refusal,
    Settings,
    integer,
    output_folder,
    print_files,
    progress_console,
    turning,
)
from .screen import print_prose, print_rows

if TYPE_CHECKING:
    from sw_driver.system.compare.comparison import Row
    from sw_driver.workload import Trace

__all__ = ["Options", "run"]

_MEMORY = "gpu.capacity_bytes"


@dataclass(frozen=True, kw_only=True)
class Options(OutputOptions):
    """Options of the command."""

    machine: Annotated[str, Parameter(metavar="NAME")] = "v100"
    """a GPU at its host, with what the systems add: v100, a100, h100 or rtx4090"""
    memory: Annotated[int | None, integer(1, metavar="BYTES")] = None
    """of the GPU, such as 16GiB (default: the card's)"""
    set: Settings = ()
    """changes the machine, such as pcie.read_gb_per_s=25; may be given several times"""
    recompute: bool = False
    """compute activations again in the backward pass, whatever the system"""
    rule: Annotated[str | None, Parameter(metavar="NAME")] = None
    """update rule of a function's model (default: adam)"""
    out: OutputFolder = None
    """folder for compare.md, a page with all tables, and compare/, pictures of the first network:
    time against memory, where the time goes, and what changes with memory, links and batch
    (default: none)"""


def run(what: str, /, *others: str, options: Annotated[Options, FLAT] = Options()) -> int:
    """Compare systems that would train a model.

    Simulates a training step by each: all on the GPU, recomputation, ZeRO-Offload, the AXDIMM
    platform, MemFerry, Sentinel, MC-DLA's memory-nodes, a heterogeneous PIM. Prints its time, the
    memory that it takes, the largest model that would fit, and energy; why a system cannot run it;
    and what is assumed. Times are by models, and nothing is measured.

    Parameters
    ----------
    what
        a network that is shipped, such as gpt3-13b; the file of a trace; or FILE.py:FUNCTION, as
        'nearmem workload' takes it
    others
        more of these
    """
    from rich.text import Text

    from sw_driver.machine import MachineError
    from sw_driver.numbers import check_name, split_entries
    from sw_driver.system.compare.bases import BASES, IDLE_KEYS
    from sw_driver.system.compare.comparison import capacity_bytes, compare, size
    from sw_driver.system.compare.device import alone
    from sw_driver.system.compare.page import advice, page
    from sw_driver.system.compare.systems import SYSTEMS
    from sw_driver.workload.recomputation import recomputed
    from sw_driver.workload.trace import TraceError
    from sw_driver.workload.what import load_workload

    check_name("--machine", options.machine, BASES)
    changes = split_entries(options.set)
    if options.memory is not None:
        if _MEMORY in changes:
            raise Refusal(f"--memory is {options.memory}, and --set has {_MEMORY}: leave one out")
        changes[_MEMORY] = str(options.memory)
    for key in changes:
        if key in IDLE_KEYS:
            raise Refusal(f"--set has {key!r}, on which nothing depends: leave it out")
    progress = progress_console(options)
    with turning(TraceError, MachineError, into=Refusal), progress.status("") as status:

        def told(what: str) -> None:
            status.update(Text(what))

        machine = BASES[options.machine].override(changes)
        folder = options.out and output_folder(options.out / "compare", "compare")
        capacity, files = capacity_bytes(machine, "gpu"), []
        where = f"{machine.name} with {size(capacity)}"
        where += "".join(f", {key}={changes[key]}" for key in changes if key != _MEMORY)
        traces: dict[str, Trace] = {}
        found: dict[str, list[Row]] = {}
        said: dict[str, list[str]] = {}
        for each in dict.fromkeys((what, *others)):
            told(f"reading {each}")
            name, trace = each, load_workload(each, options.rule)
            if options.recompute:
                name, trace = f"{each}, recomputed", recomputed(trace)
            traces[name] = trace
            found[name] = compare(trace, machine, SYSTEMS, told)
            said[name] = advice(found[name], alone(trace, machine))
        if folder is not None:
            from sw_driver.files import write_whole
            from sw_driver.system.compare.figures import draw
            from sw_driver.system.compare.variation import varied

            (name, rows), *_ = found.items()
            cases = varied(traces[name], machine, [row.outcome for row in rows], told)
            pictures = draw(f"{name} on {where}", rows, cases, capacity, folder)
            file = folder.parent / "compare.md"
            words = ["nearmem", "compare", what, *others, "--machine", options.machine]
            words += [f"--set={key}={value}" for key, value in changes.items()]
            words += ["--recompute"] * options.recompute
            words += [f"--rule={options.rule}"] * (options.rule is not None)
            shown = [each.relative_to(folder.parent) for each in pictures]
            write_whole(file, page(f"{join(words)} --out DIR", where, found, said, shown))
            files = [file, *pictures]
    if options.json:
        rows = [{"network": name, **row.describe()} for name in found for row in found[name]]
        print(json.dumps(rows, indent=2))
    elif not options.quiet:
        _print(where, found, said)
        if files:
            print_files(options, files)
    return 0


def _print(
    where: str, found: Mapping[str, Sequence[Row]], said: Mapping[str, Sequence[str]]
) -> None:
    from sw_driver.system.compare.page import ASSUMPTIONS, reasons, table
    from sw_driver.system.compare.system import ALWAYS

    for name, rows in found.items():
        heading, *cells = table(rows)
        print_rows(f"{name} on {where}", heading, cells, words=(0, 3, 6))
        for each in reasons(rows):
            print_prose(each)
    print_prose(f"\nAssumed, 1 to {len(ALWAYS)} by all:")
    for number, each in enumerate(ASSUMPTIONS, 1):
        print_prose(f"{number}. {each}")
    print()
    for name, sentences in said.items():
        print_prose(f"{name} on {where}:")
        for each in sentences:
            print_prose(f"- {each}")
