"""``nearmem plan hetero-pim``: which of a step's operations run on which part of a stack of memory
with units and cores."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from . import (
    FLAT,
    OutputFolder,
    OutputOptions,
    Refusal,
    integer,
    output_folder,
    print_files,
    progress_console,
    turning,
)  # fmt: skip
from .screen import print_prose, print_rows

if TYPE_CHECKING:
    from sw_driver.device.timeline import Timeline
    from sw_driver.system.hetero_pim.ranking import Profiled
    from sw_driver.system.hetero_pim.scheduling import Schedule
    from sw_driver.workload import Trace

__all__ = ["Options", "run"]

_UNITS = 444
_PROFILES = {
    "model": "by the rates of the paper's CPU",
    "measured": "by PyTorch here, on all of its threads",
}
_MOST = 15
"""So many operations are shown."""


@dataclass(frozen=True, kw_only=True)
class Options(OutputOptions):
    """Options of the command."""

    share: Annotated[str, Parameter(metavar="PERCENT")] = "90%"
    """of the step's time on the CPU, that is offered to the PIMs"""
    by: Literal["operation", "type"] | None = None
    """whether operations are ranked one by one (default for a profile) or all of a type together
    (default for a network)"""
    profile: Literal["model", "measured"] | None = None
    """times of a network's operations: by the rates of the paper's CPU (default), or measured here
    by PyTorch's profiler; accesses are past that CPU's cache, and steps have its rates, in both"""
    units: Annotated[int | None, integer(1)] = None
    """multipliers and adders, half of each, over 32 banks (default: 444)"""
    cores: Annotated[int | None, integer(1)] = None
    """programmable cores (default: 1)"""
    rule: Annotated[str | None, Parameter(metavar="NAME")] = None
    """update rule of a function's model (default: adam)"""
    out: OutputFolder = None
    """folder for the profile and a timeline of steps, as trace and pictures (default: none)"""


def run(what: str, /, *, options: Annotated[Options, FLAT] = Options()) -> int:
    """Choose what a memory with units and cores does of a step.

    As Liu et al. do: operations are profiled on the CPU, and ranked by time and accesses to main
    memory. The first, that make most of the time, are offered to the stack's fixed-function units
    (the pools) and to its cores, which may have pools work for them; the CPU has the rest. Prints
    the ranking and, for a network, where operations run, and a step's time on CPU, GPU, cores only,
    pools only, and all together. What units and cores take is predicted from the RTL.

    Parameters
    ----------
    what
        a file of a profile, PROFILE.csv, with columns operation, time, accesses and, if known,
        kind, which is ranked only; a network that is shipped, such as vgg-19; the file of a trace;
        or FILE.py:FUNCTION, as 'nearmem workload' takes it
    """
    from rich.text import Text

    from sw_driver.system.hetero_pim.profiling import measured, modelled, offered
    from sw_driver.system.hetero_pim.ranking import (
        by_type,
        chosen,
        ranking,
        read_profile,
        write_profile,
    )  # fmt: skip
    from sw_driver.workload.trace import TraceError
    from sw_driver.workload.what import load_workload

    share, is_profile = _share(options.share), what.endswith(".csv")
    types = options.by == "type" if options.by else not is_profile
    figures: dict[str, Any] = {}
    files: list[Path] = []
    progress = progress_console(options)
    with turning(TraceError, into=Refusal), progress.status(Text(f"planning {what}")):
        if is_profile:
            for name in ("profile", "units", "cores", "rule", "out"):
                if (value := getattr(options, name)) is not None:
                    raise Refusal(
                        f"--{name} is {str(value)!r}, but a profile is ranked only: leave it out"
                    )
            rows = read_profile(Path(what))
        else:
            trace = load_workload(what, options.rule)
            rows = measured(what, trace) if options.profile == "measured" else modelled(trace)
            figures["profile"] = _PROFILES[options.profile or "model"]
            timeline = _schedule(trace, offered(rows, share, types=types), options, figures)
            if options.out is not None:
                folder = output_folder(options.out, "plan")
                files = [folder / "profile.csv", *timeline.write_all(folder / "timeline")]
                write_profile(files[0], rows)
        grouped = by_type(rows) if types else rows
        picked = chosen(grouped, share)
        figures |= {
            "ranking": [each.operation for each in ranking(grouped)],
            "chosen": [each.operation for each in picked],
            "share": sum(each.time for each in picked) / sum(each.time for each in rows),
            "files": [str(file) for file in files],
        }
    if options.json:
        print(json.dumps(figures, indent=2))
    elif not options.quiet:
        _print(what, rows, grouped, figures)
        if files:
            print_files(options, files)
    return 0


def _share(text: str) -> float:
    from sw_driver.numbers import parse_number

    percent = parse_number(text.removesuffix("%"))
    if percent is None or not text.endswith("%") or not 0 <= percent <= 100:
        raise Refusal(f"--share is {text!r}: expected 0% to 100%")
    return percent / 100


def _schedule(
    trace: Trace, ids: Sequence[int], options: Options, figures: dict[str, Any]
) -> Timeline:
    """Adds the figures of all configurations; returns the timeline of all parts together."""
    from hw.pim.config import configure
    from sw_driver.machine.hetero_pim import GPU_USE
    from sw_driver.system.errors import EngineError
    from sw_driver.system.hetero_pim.configurations import CONFIGURATIONS, HETERO
    from sw_driver.system.hetero_pim.costs import Costs
    from sw_driver.system.hetero_pim.profiling import instance_name
    from sw_driver.system.hetero_pim.scheduling import schedule

    use = GPU_USE[trace.name].value if trace.name in GPU_USE else 1.0
    try:
        costs = Costs(config=configure("paper", total=options.units or _UNITS), gpu_use=use)
    except ValueError as error:
        raise Refusal(f"--units is {options.units}: {error}") from error
    found: dict[str, Schedule] = {}
    reasons: dict[str, str] = {}
    for each in CONFIGURATIONS:
        try:
            cores = options.cores or each.cores
            found[each.name] = schedule(trace, costs, replace(each, cores=cores), ids)
        except EngineError as error:
            reasons[each.name] = str(error)
    for what in ("step_ns", "breakdown_ns", "utilisation"):
        figures[what] = {name: getattr(made, what) for name, made in found.items()}
    hetero = found[HETERO.name]
    places = {instance_name(trace.ops[n]): place for n, place in hetero.places.items()}
    figures |= {"gpu_use": use, "reasons": reasons, "places": places}
    return hetero.timeline


def _print(
    what: str, rows: Sequence[Profiled], grouped: Sequence[Profiled], figures: Mapping[str, Any]
) -> None:
    picked, places = figures["chosen"], figures.get("places")
    time, accesses = (sum(getattr(each, of) for each in rows) or 1 for of in ("time", "accesses"))
    of = "types of operations" if len(grouped) < len(rows) else "operations"
    print_prose(
        f"{what}{', profiled ' * bool(places)}{figures.get('profile', '')}: the PIMs are offered "
        f"{len(picked)} of {len(grouped)} {of}, which make {figures['share']:.1%} of the time"
    )
    of_name = {each.operation: each for each in grouped}
    shown = [
        [
            name,
            "yes" if name in picked else "no",
            f"{of_name[name].time / time:.1%}",
            f"{of_name[name].accesses / accesses:.1%}",
        ]
        for name in figures["ranking"][:_MOST]
    ]
    headings = ("operation", "offered", "time", "accesses")
    print_rows("The first of the ranking", headings, shown, words=2)
    if places is None:
        return
    alike: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        alike.setdefault((places[row.operation], row.kind), []).append(row.time)
    shown = [
        [*names, str(len(times)), f"{sum(times) / time:.1%}"]
        for names, times in sorted(alike.items())
    ]
    headings = ("", "type", "number", "of the time")
    print_rows("Where Hetero PIM runs operations", headings, shown, words=2)
    shown = [
        [
            name,
            f"{ns / 1e6:,.3f} ms" if ns > 1e4 else f"{ns:,} ns",
            f"{figures['step_ns']['CPU'] / ns:.2f}",
            *(f"{part / ns:.1%}" for part in figures["breakdown_ns"][name].values()),
            f"{figures['utilisation'][name]:.1%}",
        ]
        for name, ns in figures["step_ns"].items()
    ]
    headings = ("", "a step", "faster", "computing", "moving", "waiting", "pools used")
    print_rows("A step, and how much faster than on the CPU", headings, shown, words=1)
    print_prose(f"The GPU does {figures['gpu_use']:.0%} of its peak rates.")
    for name, reason in figures["reasons"].items():
        print_prose(f"{name} cannot run it: {reason}")
