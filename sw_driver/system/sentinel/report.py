"""Report of a plan for a small fast memory: time, moves, and other sizes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sw_driver.device.errors import InvalidArgumentError
from sw_driver.device.timeline import Timeline
from sw_driver.machine import Machine
from sw_driver.machine.sentinel import TIERS
from sw_driver.numbers import MOST, NUMBER_FORMS, check_name, parse_integer, parse_number
from sw_driver.report import Report, Table, Watch, engineering, milliseconds
from sw_driver.workload import peak_bytes
from sw_driver.workload.loading import load_workload
from sw_driver.workload.summary import described

from .planning import Planned, lower_bound_bytes, planned
from .profiling import StepProfile, profile_of
from .rivals import RIVALS

__all__ = ["report"]

_PERCENT = (10, 20, 40, 60, 80)
"""Fast memories on the curve in % of the step's peak, beside the requested one."""
_MOST = 10
"""Number of tensors that are shown."""


def report(
    workload: str,
    *,
    fast: str = "20%",
    slow: str = "xeon",
    rule: str | None = None,
    batch: int | None = None,
    seq: int | None = None,
    folder: Path | None = None,
    watch: Watch = Watch(),
) -> Report:
    """Return a plan, beside other systems and other sizes of the fast memory.

    Parameters
    ----------
    workload, batch, seq: see :func:`~sw_driver.workload.loading.load_workload`.
    fast: fast memory in bytes, or as a share of the step's peak, such as ``20%``.
    slow: one of :data:`~sw_driver.machine.sentinel.TIERS`; it names both memories by the slow one.
    rule: update rule of a function's model.
    folder: folder for a timeline of steps, as trace and pictures, and for the curve.

    Raises
    ------
    InvalidArgumentError: for an unknown memory, or one that is too small for the step.
    TraceError: for an unknown workload.
    """
    check_name("--slow", slow, TIERS)
    watch.say(f"planning {workload}")
    machine = TIERS[slow]
    cache = machine.devices[0].cache_bytes
    trace = load_workload(workload, rule, batch=batch, seq=seq)
    profile = profile_of(trace, int(cache.value) if cache else 0)
    peak = peak_bytes(profile.step)
    fast_bytes = _fast_bytes(fast, profile, peak)
    timeline = None if folder is None else Timeline(backend=machine.name, fabric_mhz=1000)
    small = _with(machine, fast_bytes)
    plan = planned(profile, small, timeline=timeline)
    rivals = {"fast-only": machine, "slow-only": machine, "first-touch": small}
    names = "interval_layers", "pool_bytes", "lower_bound_bytes", "cases", "moved_bytes", "step_ns"
    figures: dict[str, Any] = {name: getattr(plan, name) for name in names}
    for name, on in rivals.items():
        figures[f"{name.replace('-', '_')}_ns"] = RIVALS[name](profile, on).step_ns
    figures |= {"fast_bytes": fast_bytes, "peak_bytes": peak, "moving": _moving(profile, plan)}
    plans: dict[int, Planned | None] = {fast_bytes: plan}
    for nbytes in (peak * percent // 100 for percent in _PERCENT):
        if nbytes not in plans:
            watch.say(f"trying {_size(nbytes)} for {workload}")
            enough = nbytes >= plan.lower_bound_bytes
            plans[nbytes] = planned(profile, _with(machine, nbytes)) if enough else None
    curve = [
        {"fast_bytes": nbytes}
        | {
            name: None if made is None else getattr(made, name)
            for name in ("step_ns", "interval_layers", "moved_bytes")
        }
        for nbytes, made in sorted(plans.items())
    ]
    files: list[Path] = []
    if timeline is not None and folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        files = timeline.write_all(folder / "timeline")
        files.append(_draw(curve, figures, folder / "curve.svg"))
    return Report(
        title=f"{workload} on {machine.name} with {_size(fast_bytes)} of fast memory",
        results=figures | {"curve": curve},
        parts=[*_parts(figures), _curve(curve, figures)],
        machine=small.describe(),
        workload=described(profile.step),
        files=files,
    )


def _with(machine: Machine, fast_bytes: int) -> Machine:
    return machine.override({"fast.capacity_bytes": str(fast_bytes)})


def _fast_bytes(text: str, profile: StepProfile, peak: int) -> int:
    """Return the bytes that ``--fast`` gives, for a step with a peak of ``peak`` bytes."""
    if text.endswith("%"):
        percent = parse_number(text[:-1])
        valid = percent is not None and 0 < percent <= 100
        nbytes = int(percent * peak / 100) if percent is not None and valid else None
    else:
        nbytes = parse_integer(text)
    if nbytes is None or not 0 <= nbytes <= MOST:
        raise InvalidArgumentError(
            f"--fast is {text!r}: expected a share of the step's peak, above 0 and up to 100%, or "
            f"bytes, {NUMBER_FORMS}"
        )
    least = lower_bound_bytes(profile)
    if nbytes < least:
        raise InvalidArgumentError(
            f"--fast is {text!r}, {nbytes} bytes: {profile.step.name} takes at least {least}, for "
            "tensors that live within a layer and the largest other one; give "
            f"{-(-1000 * least // peak) / 10}% or more"
        )
    return nbytes


def _moving(profile: StepProfile, plan: Planned) -> list[dict[str, Any]]:
    """Return the tensors that move the most bytes in a step."""
    step = profile.step
    rows = []
    moves = sorted(plan.outcome.moved_bytes.items(), key=lambda move: -move[1])
    for number, moved_bytes in moves[:_MOST]:
        tensor = step.tensors[number]
        stage = step.stages[step.ops[step.accesses[number][0]].stage]
        rows.append(
            {
                "tensor": tensor.name or f"{number} of {stage.name} ({stage.phase})",
                "kind": tensor.kind,
                "nbytes": tensor.nbytes,
                "moved_bytes": moved_bytes,
            }
        )
    return rows


def _parts(figures: Mapping[str, Any]) -> list[Table | str]:
    times = {
        "this plan": figures["step_ns"],
        "fast memory alone": figures["fast_only_ns"],
        "slow memory alone": figures["slow_only_ns"],
        "first touch": figures["first_touch_ns"],
    }
    rows = [[name, milliseconds(ns), _loss(ns, figures)] for name, ns in times.items()]
    first, second, third = figures["cases"]
    pool, least, moved = (figures[f"{name}_bytes"] for name in ("pool", "lower_bound", "moved"))
    parts: list[Table | str] = [
        Table(title="Step times", headings=("", "time", "slow-down"), rows=rows),
        f"Layers per interval: {figures['interval_layers']}. {first} intervals end with the next "
        f"one's tensors in fast memory, {second} lack room for them, and {third} lack time. The "
        f"pool takes at most {_size(pool)}; {_size(moved)} move in a step. The least possible fast "
        f"memory is {_size(least)}.",
    ]
    if figures["moving"]:
        columns = {
            "tensor, or number and layer": lambda row: row["tensor"],
            "kind": lambda row: row["kind"].replace("_", " "),
            "bytes": lambda row: _size(row["nbytes"]),
            "moved": lambda row: _size(row["moved_bytes"]),
        }
        title = "Tensors that move the most bytes in a step"
        parts.append(Table.of(title, figures["moving"], columns, words=(0, 1)))
    return parts


def _curve(curve: list[dict[str, Any]], figures: Mapping[str, Any]) -> Table:
    rows = []
    for row in curve:
        cells = ["too small", "", "", ""]
        if (ns := row["step_ns"]) is not None:
            cells = [milliseconds(ns), _loss(ns, figures)]
            cells += [str(row["interval_layers"]), _size(row["moved_bytes"])]
        nbytes = row["fast_bytes"]
        rows.append([f"{nbytes / figures['peak_bytes']:.1%}", _size(nbytes), *cells])
    headings = ("share of peak", "fast memory", "step time", "slow-down", "layers", "moved")
    title = "Other sizes of fast memory, with layers per interval"
    return Table(title=title, headings=headings, rows=rows, words=())


def _draw(curve: list[dict[str, Any]], figures: Mapping[str, Any], path: Path) -> Path:
    from matplotlib.figure import Figure

    from sw_driver.files import write_picture

    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    rows = [row for row in curve if row["step_ns"] is not None]
    places = [100 * row["fast_bytes"] / figures["peak_bytes"] for row in rows]
    axes.plot(places, [row["step_ns"] / 1e6 for row in rows], "o-", label="planned")
    for name, style in (("fast", "--"), ("slow", ":")):
        ns = figures[f"{name}_only_ns"]
        axes.axhline(ns / 1e6, color="black", linestyle=style, label=f"{name} memory alone")
    axes.set(xlabel="fast memory, % of the step's peak", ylabel="step time, ms")
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
    axes.legend()
    return write_picture(path, figure)


def _size(nbytes: int) -> str:
    return engineering(nbytes, "B")


def _loss(ns: int, figures: Mapping[str, Any]) -> str:
    """Return the % by which a step is longer than in fast memory alone."""
    return f"{ns / max(figures['fast_only_ns'], 1) - 1:+.1%}"
