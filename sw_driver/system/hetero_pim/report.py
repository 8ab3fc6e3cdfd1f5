"""Report of a plan: the operations of a step that run in a memory with units and cores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hw.pim.config import configure
from sw_driver.device.errors import InvalidArgumentError
from sw_driver.device.timeline import Timeline
from sw_driver.machine.hetero_pim import GPU_USE
from sw_driver.numbers import parse_number
from sw_driver.report import Report, Table, Watch, count, milliseconds
from sw_driver.report import share as shown_share
from sw_driver.workload import Trace
from sw_driver.workload.loading import load_workload
from sw_driver.workload.summary import described

from ..errors import EngineError
from .configurations import CONFIGURATIONS, HETERO
from .costs import Costs
from .profiling import instance_name, measured, modelled, offered
from .ranking import Profiled, by_type, chosen, ranking, read_profile, write_profile
from .scheduling import Schedule, schedule

__all__ = ["report"]

_UNITS = 444
_PROFILES = {
    "model": "by the rates of the paper's CPU",
    "measured": "by PyTorch here, on all of its threads",
}
_MOST = 15
"""Number of operations that are shown."""


def report(
    workload: str,
    *,
    share: str = "90%",
    by: str | None = None,
    profile: str | None = None,
    units: int | None = None,
    cores: int | None = None,
    rule: str | None = None,
    batch: int | None = None,
    seq: int | None = None,
    folder: Path | None = None,
    watch: Watch = Watch(),
) -> Report:
    """Return the ranking of a step's operations and, for a workload, where they run.

    Parameters
    ----------
    workload, batch, seq: a CSV file of a profile, which is only ranked, or see
        :func:`~sw_driver.workload.loading.load_workload`.
    share: share of the step's time on the CPU that is offered to the PIMs, in per cent.
    by: ``operation`` (default for a profile), or ``type`` (default for a workload).
    profile: source of a workload's times, ``model`` (default) or ``measured``.
    units: multipliers and adders, half of each; 444 if None.
    cores: programmable cores; the number in the configurations if None.
    rule: update rule of a function's model.
    folder: folder for the profile and a timeline of steps, as trace and pictures.

    Raises
    ------
    InvalidArgumentError: for an invalid share or number of units, and options that a profile
        ignores.
    TraceError: for an unknown workload.
    """
    percent = parse_number(share.removesuffix("%"))
    if percent is None or not share.endswith("%") or not 0 <= percent <= 100:
        raise InvalidArgumentError(f"--share is {share!r}: expected 0% to 100%")
    watch.say(f"planning {workload}")
    is_profile = workload.endswith(".csv")
    types = by == "type" if by else not is_profile
    results: dict[str, Any] = {}
    machine: dict[str, Any] = {}
    workload_figures: dict[str, Any] = {"name": workload}
    files: list[Path] = []
    if is_profile:
        options = {"profile": profile, "units": units, "cores": cores, "rule": rule, "out": folder}
        options |= {"batch": batch, "seq": seq}
        for name, value in options.items():
            if value is not None:
                raise InvalidArgumentError(
                    f"--{name} is {str(value)!r}, but a profile is ranked only: leave it out"
                )
        rows = read_profile(Path(workload))
    else:
        trace = load_workload(workload, rule, batch=batch, seq=seq)
        workload_figures = described(trace)
        rows = measured(workload, trace, batch, seq) if profile == "measured" else modelled(trace)
        results["profile"] = _PROFILES[profile or "model"]
        use = GPU_USE[trace.name].value if trace.name in GPU_USE else 1.0
        try:
            config = configure("paper", total=units or _UNITS)
        except ValueError as error:
            raise InvalidArgumentError(f"--units is {units}: {error}") from error
        machine = {**asdict(config), "cores": cores or HETERO.cores, "gpu_use": use}
        ids = offered(rows, percent / 100, types=types)
        timeline = _schedule(trace, ids, Costs(config=config, gpu_use=use), cores, results)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            files = [folder / "profile.csv", *timeline.write_all(folder / "timeline")]
            write_profile(files[0], rows)
    grouped = by_type(rows) if types else rows
    picked = chosen(grouped, percent / 100)
    results |= {
        "ranking": [row.operation for row in ranking(grouped)],
        "chosen": [row.operation for row in picked],
        "share": sum(row.time for row in picked) / sum(row.time for row in rows),
    }
    parts = [_ranked(rows, grouped, results)]
    notes: list[str] = []
    if not is_profile:
        parts += [_placed(rows, results["places"]), _steps(results)]
        notes.append(f"The GPU reaches {machine['gpu_use']:.0%} of its peak rates.")
        reasons: dict[str, str] = results["reasons"]
        notes += [f"{name} cannot run it: {reason}" for name, reason in reasons.items()]
    unit = "types of operations" if len(grouped) < len(rows) else "operations"
    profiled = "" if is_profile else f", profiled {results['profile']}"
    return Report(
        title=f"{workload}{profiled}: the PIMs are offered {len(picked)} of {len(grouped)} "
        f"{unit}, with {results['share']:.1%} of the time",
        results=results,
        parts=parts,
        notes=notes,
        machine=machine,
        workload=workload_figures,
        files=files,
    )


def _schedule(
    trace: Trace, ids: Sequence[int], costs: Costs, cores: int | None, results: dict[str, Any]
) -> Timeline:
    """Add the figures of all configurations, and return the timeline of all devices together."""
    made: dict[str, Schedule] = {}
    reasons: dict[str, str] = {}
    for configuration in CONFIGURATIONS:
        try:
            own = replace(configuration, cores=cores or configuration.cores)
            made[configuration.name] = schedule(trace, costs, own, ids)
        except EngineError as error:
            reasons[configuration.name] = str(error)
    for figure in ("step_ns", "breakdown_ns", "utilisation"):
        results[figure] = {name: getattr(run, figure) for name, run in made.items()}
    hetero = made[HETERO.name]
    places = {instance_name(trace.ops[n]): place for n, place in hetero.places.items()}
    results |= {"reasons": reasons, "places": places}
    return hetero.timeline


def _ranked(
    rows: Sequence[Profiled], grouped: Sequence[Profiled], results: Mapping[str, Any]
) -> Table:
    time, accesses = sum(row.time for row in rows) or 1, sum(row.accesses for row in rows) or 1
    of_name = {row.operation: row for row in grouped}
    columns = {
        "operation": lambda row: row.operation,
        "offered": lambda row: "yes" if row.operation in results["chosen"] else "no",
        "time": lambda row: shown_share(row.time / time),
        "accesses": lambda row: shown_share(row.accesses / accesses),
    }
    first = [of_name[name] for name in results["ranking"][:_MOST]]
    return Table.of("Operations at the top of the ranking", first, columns, words=(0, 1))


def _placed(rows: Sequence[Profiled], places: Mapping[str, str]) -> Table:
    time = sum(row.time for row in rows) or 1
    alike: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        alike.setdefault((places[row.operation], row.kind), []).append(row.time)
    columns = {
        "device": lambda item: item[0][0],
        "type": lambda item: item[0][1],
        "number": lambda item: count(len(item[1])),
        "share of time": lambda item: shown_share(sum(item[1]) / time),
    }
    title = "Devices that run the operations in Hetero PIM"
    return Table.of(title, sorted(alike.items()), columns, words=(0, 1))


def _steps(results: Mapping[str, Any]) -> Table:
    rows = [
        [
            name,
            milliseconds(ns) if ns > 1e4 else f"{ns:,} ns",
            f"{results['step_ns']['CPU'] / ns:.2f}",
            *(shown_share(part / ns) for part in results["breakdown_ns"][name].values()),
            shown_share(results["utilisation"][name]),
        ]
        for name, ns in results["step_ns"].items()
    ]
    headings = ("", "step time", "speed-up", "computing", "moving", "waiting", "pools used")
    title = "Step times, and speed-ups over the CPU"
    return Table(title=title, headings=headings, rows=rows)
