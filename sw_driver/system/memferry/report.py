"""Report of a plan: the way of each layer's parameters to the GPU, beside other plans."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sw_driver.device.errors import InvalidArgumentError
from sw_driver.machine.presets import PRESETS
from sw_driver.report import Report, Table, Watch, engineering
from sw_driver.workload.loading import load_workload
from sw_driver.workload.summary import described

from .costs import profile_of
from .link import AccessPlan, every
from .planners import figures_of, planned, step_ns_of_changes
from .profile import MEASURED, LayerProfile, ModelProfile, read_profile, write_profile
from .systems import System, draw, native, run

__all__ = ["report"]

_TIMES = {"step_ns": "step", "shared_link_forward_ns": "forward",
          "forward_ns": "forward, link not shared"}  # fmt: skip


def report(
    workload: str,
    *,
    planner: str = "ours",
    gpu_bytes: int | None = None,
    reserve: float = 1.0,
    device: str | None = None,
    rule: str | None = None,
    batch: int | None = None,
    seq: int | None = None,
    folder: Path | None = None,
    watch: Watch = Watch(),
) -> Report:
    """Return a plan, with its time and memory beside other plans, and the most helpful changes.

    Parameters
    ----------
    workload, batch, seq: a profile's file or name, or see
        :func:`~sw_driver.workload.loading.load_workload`.
    planner: one of :data:`~sw_driver.system.memferry.planners.PLANNERS`.
    gpu_bytes: bytes of the GPU's memory for the plan; any amount if None.
    reserve: largest share of all gradients in the GPU's memory.
    device: GPU for the cost model of a network, ``v100`` (default) or ``a100``.
    rule: update rule of a function's model.
    folder: folder for the profile and the step's timeline, as trace and pictures.

    Raises
    ------
    InvalidArgumentError: for what the planner refuses, and a profile with an option for
        a network.
    TraceError: for an unknown workload.
    """
    watch.say(f"planning {workload}")
    machine = PRESETS[f"memferry_{device or 'v100'}"]
    file = MEASURED.get(workload, Path(workload) if workload.endswith(".json") else None)
    known: dict[str, Any] = {}
    if file is None:
        trace = load_workload(workload, rule, batch=batch, seq=seq)
        profile, known = profile_of(trace, machine), described(trace)
    else:
        given = {"device": device, "rule": rule, "batch": batch, "seq": seq}
        for name, value in given.items():
            if value is not None:
                raise InvalidArgumentError(
                    f"--{name} is {value!r}, but a profile already has one: leave it out"
                )
        profile = read_profile(file)
    plan = planned(profile, planner, gpu_bytes, reserve)
    figures = figures_of(profile, planner, plan)
    files: list[Path] = []
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        files = [folder / "profile.json"]
        write_profile(files[0], profile)
        files += draw(profile, System(plan=plan), folder / "timeline")
    watch.say("comparing")
    ways = _ways(profile, figures)
    changes = step_ns_of_changes(profile, planner, gpu_bytes, reserve)
    step_ns = figures["step_ns"]
    gains = [f"{name} {(step_ns - ns) / max(step_ns, 1):.1%}" for name, ns in changes.items()]
    notes = [f"Doubling one of these would shorten a step by: {', '.join(gains)}"]
    room = int(machine.memory("gpu").capacity_bytes.value)
    if file is None and room < figures["gpu_bytes"]:
        fits = ways["all by DHA"]["gpu_bytes"] <= room
        advice = f"plan with --gpu-memory {room >> 30}GiB" if fits else "no plan fits into that"
        notes.append(f"The GPU has {engineering(room, 'B')}: {advice}")
    return Report(
        title=f"{workload} on {profile.device}: planned by {planner}",
        results=figures | {"ways": ways, "step_ns_with_twice": changes},
        parts=[_modes(profile, plan), _times(ways, gpu_bytes)],
        notes=notes,
        machine=machine.describe() if file is None else {"name": profile.device},
        workload={
            **known,
            "name": workload,
            "planner": planner,
            "gpu_bytes": gpu_bytes,
            "reserve": reserve,
        },
        files=files,
    )


def _modes(profile: ModelProfile, plan: AccessPlan) -> Table:
    """Return a table with one row for layers that are treated alike and differ only in a number."""
    alike: dict[tuple[str, str, str], list[LayerProfile]] = {}
    layers = zip(profile.layers, plan.modes, plan.gradients_on_gpu, strict=True)
    for layer, mode, on_gpu in layers:
        name = re.sub(r"\b\d+\b", "*", layer.name)
        alike.setdefault((name, mode, "GPU" if on_gpu else "host, by DHA"), []).append(layer)
    rows = []
    for (name, *ways), group in alike.items():
        nbytes = engineering(sum(layer.nbytes for layer in group), "B")
        rows.append([name if len(group) > 1 else group[0].name, *ways, str(len(group)), nbytes])
    headings = ("layers", "mode", "gradient", "number", "bytes")
    return Table(title="Layers", headings=headings, rows=rows, words=(0, 1, 2))


def _ways(profile: ModelProfile, figures: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return times and memory of the plan and of other plans."""
    on_gpu, by_dha = (
        figures_of(profile, "", every(profile, mode, mode == "GFGB")) for mode in ("GFGB", "DHA")
    )
    zero = run(profile, native(profile))
    names = [*_TIMES, "gpu_bytes"]
    planned_ways = {"this plan": figures, "all on the GPU": on_gpu, "all by DHA": by_dha}
    return {way: {name: plan[name] for name in names} for way, plan in planned_ways.items()} | {
        "native ZeRO-Offload": {
            "step_ns": zero.step_ns,
            "shared_link_forward_ns": zero.marks_ns["forward"],
            "gpu_bytes": zero.peak_bytes["gpu"],
        }
    }


def _times(ways: Mapping[str, Mapping[str, Any]], gpu_bytes: int | None) -> Table:
    rows = []
    for name, way in ways.items():
        over = gpu_bytes is not None and way["gpu_bytes"] > gpu_bytes
        cells = [f"{way[time] / 1e6:,.2f} ms" if time in way else "" for time in _TIMES]
        rows.append([name + ", too large" * over, *cells, engineering(way["gpu_bytes"], "B")])
    return Table(title="Step times", headings=["", *_TIMES.values(), "GPU memory"], rows=rows)
