"""The paper's tables and its timeline of a step."""

from __future__ import annotations

from dataclasses import fields
from functools import cache, partial
from pathlib import Path

from sw_driver.device.timeline import Timeline
from sw_driver.experiments.figures import BYTES_PER_PARAMETER, PAPER_MPARAMS_PER_S
from sw_driver.machine.axdimm_platform import AXDIMM_PLATFORM
from sw_driver.workload import load_trace

from ..reproduction import Cell, Changes, Experiment, Progress, Row, calibrated, given, predicted
from .calibration import ROWS, seconds
from .paper import CPU_CEILING_MPARAMS_PER_S, CPU_MPARAMS_PER_S, MODELS, TABLE_4, TABLE_6
from .platform import PAPER_RATES, Rates, machine_of, measure, open_framework, trace_of
from .plots import draw_table6
from .runs import BASELINE, BY_BYTES, COUNT, MODULE, own_mparams_per_s
from .settings import CHANNELS

__all__ = ["figure4", "table4", "table5", "table6"]

TIME_BAND, SPEEDUP_BAND, NVME_BAND = 0.10, 0.05, 0.10
_PEAK = "peak NVMe, GB"


def table4(changes: Changes, progress: Progress) -> Experiment:
    """The models: what was captured of each."""
    progress("table 4")
    machine_of(changes=changes)  # refuses what there is not, though nothing depends on them
    rows: list[Row] = []
    for model, (billions, parameters_gb, states_gb) in TABLE_4.items():
        nbytes = {
            kind: sum(each.nbytes for each in load_trace(model).tensors if each.kind == kind)
            for kind in ("parameter", "optimizer_state")
        }
        rows.append(
            {
                "model": model,
                "billions of parameters": predicted(nbytes["parameter"] / 4e9, billions),
                "parameters, GB": predicted(nbytes["parameter"] / 1e9, parameters_gb),
                "states, GB": predicted(nbytes["optimizer_state"] / 1e9, states_gb),
            }
        )
    return Experiment(
        name="table4",
        title="Table 4: models",
        rows=rows,
        notes=[
            "Layers, widths, heads, batches and contexts are given. The paper's sizes are 4 and 8 "
            "bytes of its rounded parameters, but for the states of its 2.7 billion: those are "
            "21.6 GB, not 20.2."
        ],
    )


def table5(changes: Changes, progress: Progress) -> Experiment:
    """Adam's throughput."""
    progress("table 5: the kernel's cycles")
    machine = machine_of(changes=changes)
    own = own_mparams_per_s()
    core = 1000 * machine.link("cpu").read_gb_per_s.value / BYTES_PER_PARAMETER
    bus = 1000 * AXDIMM_PLATFORM.link("module").read_gb_per_s.value / BYTES_PER_PARAMETER
    channels = [machine.link(f"channel{number}") for number in range(CHANNELS)]
    ceiling = 1000 * sum(each.read_gb_per_s.value for each in channels) / BYTES_PER_PARAMETER

    rows: list[Row] = []
    for name, theoretical, measured in (
        (
            "CPU, one core",
            given(bus, CPU_CEILING_MPARAMS_PER_S),
            given(core, CPU_MPARAMS_PER_S),
        ),
        ("module", given(ceiling, 914.29), predicted(own, PAPER_MPARAMS_PER_S)),
    ):
        assert theoretical.paper
        assert measured.paper
        row = {"device": name, "theoretical, MP/s": theoretical, "measured, MP/s": measured}
        paper = 100 * measured.paper / theoretical.paper
        share = 100 * measured.ours / theoretical.ours
        rows.append({**row, "%": Cell(ours=share, paper=paper, mark=measured.mark, digits=1)})
    notes = [
        f"The module's throughput is that of {COUNT:,} parameters a channel on the cycle model; "
        f"`nearmem sweep --count {COUNT}` finds it on the RTL. No band: another controller.",
    ]
    return Experiment(name="table5", title="Table 5: Adam", rows=rows, notes=notes)


def table6(changes: Changes, progress: Progress) -> Experiment:
    """Training steps of five models, on the baseline and on the platform."""
    machine, own = machine_of(changes=changes), own_mparams_per_s()
    columns = {}
    for model in MODELS:
        progress(f"table 6: {model}")
        baseline = measure(machine, trace_of(model), BASELINE)
        module = measure(machine, trace_of(model), MODULE)
        faster = measure(machine, trace_of(model), MODULE, channel_mparams_per_s=own / CHANNELS)
        ours = seconds(baseline, module) | {
            "baseline: total, s": baseline.total_ns / 1e9,
            "module: total, s": module.total_ns / 1e9,
            "speedup, backward": baseline.backward_ns / module.backward_ns,
            "speedup, total": baseline.total_ns / module.total_ns,
        }
        paper, cell = TABLE_6[model], calibrated if model in ROWS else predicted
        peak_gb = module.peak_nvme_bytes / 1e9
        columns[model] = {
            **{name: cell(value, paper[name], band=_band(name)) for name, value in ours.items()},
            _PEAK: predicted(peak_gb, paper[_PEAK], band=NVME_BAND, digits=1),
            "with our kernel's rate: total, s": predicted(faster.total_ns / 1e9),
            "with our kernel's rate: speedup": predicted(baseline.total_ns / faster.total_ns),
        }
    names = dict.fromkeys((*TABLE_6[MODELS[0]], *columns[MODELS[0]]))
    rows: list[Row] = [
        {"": name, **{model: column[name] for model, column in columns.items()}} for name in names
    ]
    rates = ", ".join(
        f"{field.name} {getattr(PAPER_RATES, field.name):g}" for field in fields(Rates)
    )
    notes = [
        f"Calibrated on {' and '.join(ROWS)}, their four times each: {rates}. The "
        "overhead of each tensor's update is what its time leaves unexplained: the paper names no "
        "such cost.",
        _update_arithmetic(),
    ]
    return Experiment(
        name="table6",
        title="Table 6: training steps",
        rows=rows,
        notes=notes,
        draw=partial(draw_table6, rows),
    )


def _band(name: str) -> float:
    return SPEEDUP_BAND if "speedup" in name else TIME_BAND


def _update_arithmetic() -> str:
    """What the paper's own times say about overlap."""
    lines = []
    for model in MODELS:
        count = _parameters(model) / 1e6
        cpu = count / CPU_MPARAMS_PER_S
        both, one = count / PAPER_MPARAMS_PER_S, count * CHANNELS / PAPER_MPARAMS_PER_S
        paper = [TABLE_6[model][f"{which}: backward, s"] for which in ("baseline", "module")]
        lines.append(f"{model} {paper[0] - paper[1]:.2f} ({cpu - one:.2f}, {cpu - both:.2f})")
    return (
        "Backward pass of the paper's baseline minus its platform's, in s, and in brackets what "
        "the CPU's updates take minus those of one channel's kernel, and minus those of both: "
        f"{'; '.join(lines)}. The first is the nearer in all: as if one channel did all the work, "
        "and neither it nor the CPU beside transfers, although by the text (6.3) updates overlap "
        "with all transfers. So it is here: Megatron makes weights and biases in turns, and "
        "placing parameters in turns (5.2) brings all large ones to one channel."
    )


def figure4(changes: Changes, progress: Progress) -> Experiment:
    """A step's timeline."""
    progress("figure 4: timeline")
    model = MODELS[0]
    machine = machine_of(changes=changes)
    rows: list[dict[str, Cell | str]] = []
    results = {
        "round robin, as the paper": measure(machine, trace_of(model), MODULE),
        "by bytes": measure(machine, trace_of(model), BY_BYTES),
    }
    for name, result in results.items():
        rows.append(
            {
                "placement": name,
                "forward, s": predicted(result.forward_ns / 1e9),
                "backward, s": predicted(result.backward_ns / 1e9),
                "kernels, s": predicted(result.kernel_ns / 1e9),
            }
        )

    def draw(folder: Path) -> list[Path]:
        timeline = Timeline(backend="model", fabric_mhz=1000)
        open_framework(machine, load_trace(model), MODULE, timeline=timeline).step()
        files = [folder / f"figure4.{ending}" for ending in ("json.gz", "svg", "png")]
        for file in files:
            timeline.write(file)
        return files

    return Experiment(
        name="figure4",
        title=f"Figure 4: a training step of {model}",
        rows=rows,
        notes=[
            "The paper's figure has no scale. `--out DIR` writes the timeline of the first step: "
            "with parameters placed in turns, channel 1 has little to do."
        ],
        draw=draw,
    )


@cache
def _parameters(model: str) -> int:
    return sum(each.nbytes // 4 for each in load_trace(model).tensors if each.kind == "parameter")
