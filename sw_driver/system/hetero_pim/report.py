"""Report of a plan: the operations of a step that run in a memory with units and cores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hw.pim.config import configure
from sw_driver.device.errors import InvalidArgumentError
from sw_driver.device.timeline import Timeline
from sw_driver.machine.hetero_pim import GPU_USE, HETERO_PIM
from sw_driver.numbers import parse_number
from sw_driver.report import Report, Table, Watch, count, milliseconds
from sw_driver.report import share as shown_share
from sw_driver.workload import Trace, peak_bytes
from sw_driver.workload.loading import load_workload
from sw_driver.workload.summary import described

from ..errors import EngineError
from .configurations import CONFIGURATIONS, HEADLINE, HETERO, PROGR, STRICT
from .costs import Costs
from .operations import on_pools, operation_name
from .profiling import instance_name, measured, modelled, offered
from .ranking import SHARE, Profiled, by_type, chosen, ranking, read_profile, write_profile
from .scheduling import Schedule, schedule

__all__ = ["READINGS", "cpu_operations", "report"]

READINGS = {"headline": HEADLINE, "strict": STRICT}
_PROFILES = {
    "model": "by the rates of the paper's CPU",
    "measured": "by PyTorch here, on all of its threads",
}
_MOST = 15
"""Number of operations that are shown."""


def report(
    workload: str,
    *,
    share: str | None = None,
    readings: str | None = None,
    rate: int | None = None,
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
    share: share of the step's time on the CPU that is offered to the PIMs, in per cent; that of the
        readings if None, and 90% for a profile.
    readings: a name in ``READINGS``, ``headline`` if None.
    rate: operations of a unit a cycle; those of the RTL if None.
    by: ``operation`` (default for a profile), or ``type`` (default for a workload).
    profile: source of a workload's times, ``model`` (default) or ``measured``.
    units: multipliers and adders, half of each; the readings' if None.
    cores: programmable cores; the readings' if None.
    rule: update rule of a function's model.
    folder: folder for the profile and a timeline of steps, as trace and pictures.

    Raises
    ------
    InvalidArgumentError: for an invalid share or number of units, and options that a profile
        ignores.
    TraceError: for an unknown workload.
    """
    is_profile = workload.endswith(".csv")
    own = READINGS[readings or "headline"]
    if share is None:
        share = f"{100 * (SHARE if is_profile else own.share):g}%"
    percent = parse_number(share.removesuffix("%"))
    if percent is None or not share.endswith("%") or not 0 <= percent <= 100:
        raise InvalidArgumentError(f"--share is {share!r}: expected 0% to 100%")
    watch.say(f"planning {workload}")
    types = by == "type" if by else not is_profile
    results: dict[str, Any] = {}
    machine: dict[str, Any] = {}
    workload_figures: dict[str, Any] = {"name": workload}
    files: list[Path] = []
    if is_profile:
        options = {"profile": profile, "units": units, "cores": cores, "rule": rule, "out": folder}
        options |= {"batch": batch, "seq": seq, "readings": readings, "rate": rate}
        for name, value in options.items():
            if value is not None:
                raise InvalidArgumentError(
                    f"--{name} is {str(value)!r}, but a profile is ranked only: leave it out"
                )
        rows = read_profile(Path(workload))
    else:
        trace = load_workload(workload, rule, batch=batch, seq=seq)
        _check(trace)
        workload_figures = described(trace)
        rows = measured(workload, trace, batch, seq) if profile == "measured" else modelled(trace)
        results["profile"] = _PROFILES[profile or "model"]
        use = GPU_USE[trace.name].value if trace.name in GPU_USE else 1.0
        own = replace(own, share=percent / 100, units=units or own.units, cores=cores or own.cores)
        try:
            config = configure("paper", total=own.units)
        except ValueError as error:
            raise InvalidArgumentError(f"--units is {units}: {error}") from error
        machine = {**asdict(config), "gpu_use": use, "rate": rate or 0, "readings": asdict(own)}
        costs = Costs(config=config, gpu_use=use, readings=own, unit_rate=rate or 0)
        timeline = _schedule(trace, offered(rows, own.share, types=types), costs, cores, results)
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
        parts += [_placed(rows, results), *_steps(results)]
        notes.append(
            f"Profiled {results['profile']}. The GPU reaches {machine['gpu_use']:.0%} of its peak "
            "rates. Hetero PIM's pools wait while a core or the CPU computes."
        )
        reasons: dict[str, str] = results["reasons"]
        notes += [f"{name} cannot run it: {reason}" for name, reason in reasons.items()]
    unit = "types of operations" if len(grouped) < len(rows) else "operations"
    offer = f"{len(picked)} of {len(grouped)} {unit}, {results['share']:.1%} of the time"
    return Report(
        title=f"{workload}: PIMs are offered {offer}",
        results=results,
        parts=parts,
        notes=notes,
        machine=machine,
        workload=workload_figures,
        files=files,
    )


def _check(trace: Trace) -> None:
    """Raise if the units can run nothing of a step, or the main memory is too small for it."""
    if all(on_pools(op) == "no" for op in trace.ops):
        raise InvalidArgumentError(
            f"the stack's units can run no operation of {trace.name}: expected products, sums or "
            "updates by gradient descent, in FP32"
        )
    need, room = peak_bytes(trace), int(HETERO_PIM.memory("host").capacity_bytes.value)
    if need > room:
        raise InvalidArgumentError(
            f"a step of {trace.name} takes {need:,} bytes, and the main memory has {room:,}: "
            "expected a smaller batch or network"
        )


def cpu_operations(made: Schedule, most: int) -> str:
    """Return why the CPU runs operations, with the ``most`` types that take it longest of each."""
    ops, steps = made.trace.ops, len(made.ends_ns)
    took: dict[str, Counter[str]] = {}
    number: Counter[tuple[str, str]] = Counter()
    for op, reason in made.reasons.items():
        number[reason, operation_name(ops[op])] += 1
        took.setdefault(reason, Counter())
    for row in made.rows:
        op = row.op - (steps - 1) * len(ops)
        if row.device == "cpu" and op in made.reasons:
            took[made.reasons[op]][operation_name(ops[op])] += row.end_ns - row.begin_ns
    parts = []
    for reason, kinds in sorted(took.items()):
        names = [f"{kind} {number[reason, kind]}" for kind, _ in kinds.most_common(most)]
        more = len(kinds) - len(names)
        parts.append(f"{reason}: {', '.join(names)}{f', {more} more' if more > 0 else ''}")
    return "; ".join(parts)


def _schedule(
    trace: Trace, ids: Sequence[int], costs: Costs, cores: int | None, results: dict[str, Any]
) -> Timeline:
    """Add the figures of all configurations, and return the timeline of all devices together."""
    made: dict[str, Schedule] = {}
    reasons: dict[str, str] = {}
    for configuration in CONFIGURATIONS:
        own = costs
        if configuration is PROGR and cores is None:
            many = replace(costs.readings, cores=costs.readings.progr_cores)
            own = replace(costs, readings=many)
        try:
            made[configuration.name] = schedule(trace, own, configuration, ids)
        except EngineError as error:
            reasons[configuration.name] = str(error)
    for figure in ("step_ns", "breakdown_ns", "utilisation"):
        results[figure] = {name: getattr(run, figure) for name, run in made.items()}
    results["busy_ns"] = {
        name: {device: run.busy_ns(device) for device in ("core", "cpu")}
        for name, run in made.items()
    }
    hetero = made[HETERO.name]
    places = {instance_name(trace.ops[n]): place for n, place in hetero.places.items()}
    on_cpu = {instance_name(trace.ops[n]): reason for n, reason in hetero.reasons.items()}
    results |= {"reasons": reasons, "places": places, "on_cpu": on_cpu}
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


def _placed(rows: Sequence[Profiled], results: Mapping[str, Any]) -> Table:
    time = sum(row.time for row in rows) or 1
    alike: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        why = results["on_cpu"].get(row.operation, "")
        alike.setdefault((results["places"][row.operation], row.kind, why), []).append(row.time)
    columns = {
        "device": lambda item: item[0][0],
        "type": lambda item: item[0][1],
        "number": lambda item: count(len(item[1])),
        "CPU time": lambda item: shown_share(sum(item[1]) / time),
        "why the CPU": lambda item: item[0][2],
    }
    title = "Devices that run the operations in Hetero PIM"
    return Table.of(title, sorted(alike.items()), columns, words=(0, 1, 4))


def _steps(results: Mapping[str, Any]) -> list[Table]:
    """Return tables of the steps' times, and of where they go."""
    rows, parts = [], []
    for name, ns in results["step_ns"].items():
        took = milliseconds(ns) if ns > 1e4 else f"{ns:,} ns"
        busy = [shown_share(part / ns) for part in results["busy_ns"][name].values()]
        used = shown_share(results["utilisation"][name])
        rows.append([name, took, f"{results['step_ns']['CPU'] / ns:.2f}", used, *busy])
        own = results["breakdown_ns"][name]
        parts.append([name, *(shown_share(part / ns) for part in own.values())])
    headings = ("", "step time", "speed-up", "pools used", "cores busy", "CPU busy")
    return [
        Table(title="Step times, and speed-ups over the CPU", headings=headings, rows=rows),
        Table(title="Where the time goes", headings=("", *own), rows=parts),
    ]
