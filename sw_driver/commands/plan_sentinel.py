"""``nearmem plan sentinel``: which of a step's tensors are in a small fast memory, and when."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from . import (
    FLAT,
    OutputFolder,
    OutputOptions,
    Refusal,
    output_folder,
    print_files,
    progress_console,
    turning,
)
from .screen import engineering, print_prose, print_rows

if TYPE_CHECKING:
    from sw_driver.machine import Machine
    from sw_driver.system.sentinel.planning import Planned
    from sw_driver.system.sentinel.profiling import StepProfile

__all__ = ["Options", "run"]

_PERCENT = (10, 20, 40, 60, 80)
"""Of the step's peak: fast memories on the curve, beside that which was asked for."""
_MOST = 10
"""So many tensors are shown."""


@dataclass(frozen=True, kw_only=True)
class Options(OutputOptions):
    """Options of the command."""

    fast: Annotated[str, Parameter(metavar="PERCENT|BYTES")] = "20%"
    """fast memory, of the most that the step needs at a time, or in bytes, such as 1.5GiB"""
    slow: Annotated[str, Parameter(metavar="NAME")] = "xeon"
    """both memories, by the slow one: xeon (the paper's, across sockets), cxl, nvme or ddr4-800;
    the host's, for a GPU, over pcie3, pcie4 or pcie5"""
    rule: Annotated[str | None, Parameter(metavar="NAME")] = None
    """update rule of a function's model (default: adam)"""
    out: OutputFolder = None
    """folder for a timeline of steps, as trace and pictures, and for the curve (default: none)"""


def run(what: str, /, *, options: Annotated[Options, FLAT] = Options()) -> int:
    """Choose which tensors are in a small fast memory, and when.

    As Sentinel does: tensors that live within a layer have a pool in fast memory; others are moved
    there for the next interval of layers, and away when neither needs them. The best length of
    intervals is found by trying. Prints the step beside that in fast memory alone, what moves most,
    and a curve of what other sizes of fast memory give. Times are by a model.

    Parameters
    ----------
    what
        a network that is shipped, such as resnet32; the file of a trace; or FILE.py:FUNCTION, as
        'nearmem workload' takes it
    """
    from rich.text import Text

    from sw_driver.device.timeline import Timeline
    from sw_driver.machine.sentinel import TIERS
    from sw_driver.numbers import check_name
    from sw_driver.system.sentinel.planning import planned
    from sw_driver.system.sentinel.profiling import profile_of
    from sw_driver.system.sentinel.rivals import RIVALS
    from sw_driver.workload import peak_bytes
    from sw_driver.workload.trace import TraceError
    from sw_driver.workload.what import load_workload

    check_name("--slow", options.slow, TIERS)
    machine = TIERS[options.slow]
    cache = machine.devices[0].cache_bytes
    progress = progress_console(options)
    with turning(TraceError, into=Refusal), progress.status(Text(f"planning {what}")):
        profile = profile_of(load_workload(what, options.rule), int(cache.value) if cache else 0)
        peak = peak_bytes(profile.step)
        fast_bytes = _fast_bytes(options.fast, profile, peak)
        timeline = Timeline(backend=machine.name, fabric_mhz=1000) if options.out else None
        small = _with(machine, fast_bytes)
        plan = planned(profile, small, timeline=timeline)
        rivals = {"fast-only": machine, "slow-only": machine, "first-touch": small}
        others = {name: RIVALS[name](profile, on).step_ns for name, on in rivals.items()}
    names = "interval_layers", "pool_bytes", "lower_bound_bytes", "cases", "moved_bytes", "step_ns"
    figures = {name: getattr(plan, name) for name in names}
    figures |= {f"{name.replace('-', '_')}_ns": ns for name, ns in others.items()}
    figures |= {"fast_bytes": fast_bytes, "peak_bytes": peak, "moving": _moving(profile, plan)}
    if not progress.quiet:
        print_prose(f"{what} on {machine.name}, of whose fast memory it has {_size(fast_bytes)}")
        _print(figures)
    files = []
    if options.out is not None or not progress.quiet:
        plans: dict[int, Planned | None] = {fast_bytes: plan}
        with progress.status("") as status:
            for nbytes in (peak * percent // 100 for percent in _PERCENT):
                if nbytes not in plans:
                    status.update(Text(f"trying {_size(nbytes)} for {what}"))
                    enough = nbytes >= plan.lower_bound_bytes
                    plans[nbytes] = planned(profile, _with(machine, nbytes)) if enough else None
        curve = dict(sorted(plans.items()))
        if not progress.quiet:
            _print_curve(curve, figures)
        if timeline is not None and options.out is not None:
            folder = output_folder(options.out, "plan")
            files = timeline.write_all(folder / "timeline")
            files.append(_draw(curve, figures, folder / "curve.svg"))
    if options.json:
        print(json.dumps(figures | {"files": [str(file) for file in files]}, indent=2))
    elif files:
        print_files(options, files)
    return 0


def _with(machine: Machine, fast_bytes: int) -> Machine:
    return machine.override({"fast.capacity_bytes": str(fast_bytes)})


def _fast_bytes(text: str, profile: StepProfile, peak: int) -> int:
    """What ``--fast`` says, of a step that needs so many bytes at most."""
    from sw_driver.numbers import MOST, NUMBER_FORMS, parse_integer, parse_number
    from sw_driver.system.sentinel.planning import lower_bound_bytes

    if text.endswith("%"):
        percent = parse_number(text[:-1])
        valid = percent is not None and 0 < percent <= 100
        nbytes = int(percent * peak / 100) if percent is not None and valid else None
    else:
        nbytes = parse_integer(text)
    if nbytes is None or not 0 <= nbytes <= MOST:
        raise Refusal(
            f"--fast is {text!r}: expected a share of the step's peak, above 0 and up to 100%, or "
            f"bytes, {NUMBER_FORMS}"
        )
    least = lower_bound_bytes(profile)
    if nbytes < least:
        raise Refusal(
            f"--fast is {text!r}, {nbytes} bytes: {profile.step.name} takes at least {least}, for "
            "what lives within a layer and the largest of all else; give "
            f"{-(-1000 * least // peak) / 10}% or more"
        )
    return nbytes


def _moving(profile: StepProfile, plan: Planned) -> list[dict[str, Any]]:
    """The tensors of which most bytes move in a step."""
    step = profile.step
    found = []
    moves = sorted(plan.outcome.moved_bytes.items(), key=lambda each: -each[1])
    for number, moved_bytes in moves[:_MOST]:
        tensor = step.tensors[number]
        stage = step.stages[step.ops[step.accesses[number][0]].stage]
        found.append(
            {
                "tensor": tensor.name or f"{number} of {stage.name} ({stage.phase})",
                "kind": tensor.kind,
                "nbytes": tensor.nbytes,
                "moved_bytes": moved_bytes,
            }
        )
    return found


def _print(figures: Mapping[str, Any]) -> None:
    times = {
        "this plan": figures["step_ns"],
        "fast memory alone": figures["fast_only_ns"],
        "slow memory alone": figures["slow_only_ns"],
        "first touch": figures["first_touch_ns"],
    }
    rows = [[name, _ms(ns), _loss(ns, figures)] for name, ns in times.items()]
    print_rows("A step", ("", "time", "longer"), rows, words=1)
    first, second, third = figures["cases"]
    pool, least, moved = (figures[f"{each}_bytes"] for each in ("pool", "lower_bound", "moved"))
    print_prose(
        f"Layers in an interval: {figures['interval_layers']}. Of the intervals {first} end with "
        f"all there for the next, {second} without room, {third} without time. The pool takes "
        f"{_size(pool)} at most; {_size(moved)} move in a step. The least fast memory is "
        f"{_size(least)}."
    )
    rows = [
        [tensor, kind.replace("_", " "), _size(nbytes), _size(moved)]
        for tensor, kind, nbytes, moved in map(dict.values, figures["moving"])
    ]
    headings = ("tensor, or number and layer", "kind", "bytes", "moved")
    if rows:
        print_rows("What moves most in a step", headings, rows, words=2)


def _print_curve(curve: Mapping[int, Planned | None], figures: Mapping[str, Any]) -> None:
    rows = []
    for nbytes, plan in curve.items():
        cells = ["too small", "", "", ""]
        if plan is not None:
            ns, moved_bytes = plan.step_ns, plan.moved_bytes
            cells = [_ms(ns), _loss(ns, figures), str(plan.interval_layers), _size(moved_bytes)]
        rows.append([f"{nbytes / figures['peak_bytes']:.1%}", _size(nbytes), *cells])
    headings = ("of the peak", "fast memory", "a step", "longer", "layers", "moved")
    print_rows("With other sizes of fast memory", headings, rows, words=0)


def _draw(curve: Mapping[int, Planned | None], figures: Mapping[str, Any], path: Path) -> Path:
    from matplotlib.figure import Figure

    from sw_driver.files import write_picture

    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    found = {nbytes: plan.step_ns / 1e6 for nbytes, plan in curve.items() if plan is not None}
    places = [100 * nbytes / figures["peak_bytes"] for nbytes in found]
    axes.plot(places, [*found.values()], "o-", label="planned")
    for name, style in (("fast", "--"), ("slow", ":")):
        ns = figures[f"{name}_only_ns"]
        axes.axhline(ns / 1e6, color="black", linestyle=style, label=f"{name} memory alone")
    axes.set(xlabel="fast memory, % of the step's peak", ylabel="a step, ms")
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
    axes.legend()
    return write_picture(path, figure)


def _size(nbytes: int) -> str:
    return engineering(nbytes, "B")


def _ms(ns: int) -> str:
    return f"{ns / 1e6:,.3f} ms"


def _loss(ns: int, figures: Mapping[str, Any]) -> str:
    """How much longer than in fast memory alone."""
    return f"{ns / max(figures['fast_only_ns'], 1) - 1:+.1%}"
