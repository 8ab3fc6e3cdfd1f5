"""``nearmem plan memferry``: how a GPU gets at each layer's parameters in the host's memory."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
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
)
from .screen import engineering, print_prose, print_rows

if TYPE_CHECKING:
    from sw_driver.machine import Machine
    from sw_driver.system.memferry.link import Plan
    from sw_driver.system.memferry.profile import LayerProfile, ModelProfile

__all__ = ["Options", "run"]


@dataclass(frozen=True, kw_only=True)
class Options(OutputOptions):
    """Options of the command."""

    planner: Annotated[str, Parameter(metavar="NAME")] = "ours"
    """printed or repaired (the paper's algorithm), exact (the forward pass on the paper's link),
    exact-step (the step of 8 layers or fewer), or ours"""
    gpu_memory: Annotated[int | None, integer(1, metavar="BYTES")] = None
    """that the plan may take, such as 16GiB (default: any amount)"""
    reserve: Annotated[float, Parameter(metavar="SHARE")] = 1.0
    """of all gradients that may stay in the GPU's memory, from 0 to 1"""
    device: Literal["v100", "a100"] | None = None
    """whose times a cost model finds for a network (default: v100)"""
    rule: Annotated[str | None, Parameter(metavar="NAME")] = None
    """update rule of a function's model (default: adam)"""
    out: OutputFolder = None
    """folder for the profile and the step's timeline, as trace and pictures (default: none)"""


def run(what: str, /, *, options: Annotated[Options, FLAT] = Options()) -> int:
    """Choose for each layer whether a GPU copies or reads its parameters.

    Parameters and optimizer are in the host's memory, as in ZeRO-Offload. Each layer's parameters
    are copied to the GPU (GFGB), read by it where they are (DHA), or read in the forward pass and
    copied for the backward pass (DFGB); gradients stay or are written to the host's memory at once.
    Prints the plan, its time and memory beside other ways, and what would help most. Times are of
    the profile, or of a cost model.

    Parameters
    ----------
    what
        a file of a profile, PROFILE.json; bert-base-h100 or gpt2-medium-h100, whose times are
        measured; a network that is shipped, such as bert-base; the file of a trace; or
        FILE.py:FUNCTION, as 'nearmem workload' takes it
    """
    from rich.text import Text

    from sw_driver.machine.presets import PRESETS
    from sw_driver.system.memferry.planners import planned, told
    from sw_driver.workload.trace import TraceError

    progress, machine = progress_console(options), PRESETS[f"memferry_{options.device or 'v100'}"]
    with turning(TraceError, into=Refusal), progress.status(Text(f"planning {what}")):
        profile = _profile(what, machine, options)
        plan = planned(profile, options.planner, options.gpu_memory, options.reserve)
        figures = told(profile, options.planner, plan)
    files = [] if options.out is None else _write(profile, plan, options.out)
    if options.json:
        print(json.dumps(figures, indent=2))
    elif not options.quiet:
        print_prose(f"{what} on {profile.device}: planned by {options.planner}")
        _print_modes(profile, plan)
        with progress.status("comparing"):
            least_bytes = _print_times(profile, figures, options)
        room = int(machine.memory("gpu").capacity_bytes.value)
        if _profiled(what) is None and room < figures["gpu_bytes"]:
            fits = least_bytes <= room
            advice = f"plan with --gpu-memory {room >> 30}GiB" if fits else "no plan fits into that"
            print_prose(f"The GPU has {engineering(room, 'B')}: {advice}")
        if files:
            print_files(options, files)
    return 0


def _profile(what: str, machine: Machine, options: Options) -> ModelProfile:
    from sw_driver.system.memferry.costs import profile_of
    from sw_driver.system.memferry.profile import read_profile
    from sw_driver.workload.what import load_workload

    file = _profiled(what)
    if file is None:
        return profile_of(load_workload(what, options.rule), machine)
    for name in ("device", "rule"):
        if (value := getattr(options, name)) is not None:
            raise Refusal(f"--{name} is {value!r}, but a profile's times have one: leave it out")
    return read_profile(file)


def _profiled(what: str) -> Path | None:
    """The file of a profile, which may be one that is shipped."""
    from sw_driver.system.memferry.profile import MEASURED

    return MEASURED.get(what, Path(what) if what.endswith(".json") else None)


def _write(profile: ModelProfile, plan: Plan, out: Path) -> list[Path]:
    from sw_driver.system.memferry.profile import write_profile
    from sw_driver.system.memferry.systems import System, draw

    folder = output_folder(out, "plan")
    write_profile(folder / "profile.json", profile)
    return [folder / "profile.json", *draw(profile, System(plan=plan), folder / "timeline")]


def _print_modes(profile: ModelProfile, plan: Plan) -> None:
    """Layers that differ in their number only, and are treated alike, are a row."""
    alike: dict[tuple[str, str, str], list[LayerProfile]] = {}
    layers = zip(profile.layers, plan.modes, plan.gradients_on_gpu, strict=True)
    for layer, mode, on_gpu in layers:
        name = re.sub(r"\b\d+\b", "*", layer.name)
        alike.setdefault((name, mode, "GPU" if on_gpu else "host, by DHA"), []).append(layer)
    rows = []
    for (name, *ways), of in alike.items():
        nbytes = engineering(sum(each.nbytes for each in of), "B")
        rows.append([name if len(of) > 1 else of[0].name, *ways, str(len(of)), nbytes])
    print_rows("Layers", ("layers", "mode", "gradient", "number", "bytes"), rows, words=3)


def _print_times(profile: ModelProfile, figures: Mapping[str, Any], options: Options) -> int:
    """Returns the bytes of the way that takes least of the GPU's memory."""
    from sw_driver.system.memferry.link import every
    from sw_driver.system.memferry.planners import step_ns_of_changes, told
    from sw_driver.system.memferry.systems import native
    from sw_driver.system.memferry.systems import run as run_step

    on_gpu, by_dha = (
        told(profile, "", every(profile, mode, mode == "GFGB")) for mode in ("GFGB", "DHA")
    )
    zero = run_step(profile, native(profile))
    ways = {
        "this plan": figures,
        "all on the GPU": on_gpu,
        "all by DHA": by_dha,
        "native ZeRO-Offload": {
            "step_ns": zero.step_ns,
            "shared_link_forward_ns": zero.marks_ns["forward"],
            "gpu_bytes": zero.peak_bytes["gpu"],
        },
    }
    times = ("step_ns", "shared_link_forward_ns", "forward_ns")
    rows = []
    for name, way in ways.items():
        over = options.gpu_memory is not None and way["gpu_bytes"] > options.gpu_memory
        cells = [f"{way[each] / 1e6:,.2f} ms" if each in way else "" for each in times]
        rows.append([name + ", too large" * over, *cells, engineering(way["gpu_bytes"], "B")])
    headings = ("", "step", "forward", "forward, link not shared", "GPU memory")
    print_rows("A step", headings, rows, words=1)
    changes = step_ns_of_changes(profile, options.planner, options.gpu_memory, options.reserve)
    step_ns = figures["step_ns"]
    gains = [f"{name} {(step_ns - ns) / max(step_ns, 1):.1%}" for name, ns in changes.items()]
    print_prose(f"A step would be shorter, with twice as much of one: {', '.join(gains)}")
    return by_dha["gpu_bytes"]
