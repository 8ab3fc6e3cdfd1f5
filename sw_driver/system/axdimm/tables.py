"""The paper's tables and its timeline of a step."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from hw.axdimm.config import ModuleConfig
from hw.rules import PAPER_RULES, rule
from sw_driver.axdimm.figures import BYTES_PER_PARAMETER, PAPER_MPARAMS_PER_S
from sw_driver.axdimm.measure import COUNT, own_mparams_per_s
from sw_driver.device.timeline import Timeline
from sw_driver.machine.axdimm_platform import AXDIMM_PLATFORM
from sw_driver.workload import load_trace

from ..plotting import draw_bars
from ..reproduction import Changes, Claim, Experiment, Progress, Row, calibrated, given, predicted
from .calibration import ROWS, seconds, steps
from .paper import CPU_CEILING_MPARAMS_PER_S, CPU_MPARAMS_PER_S, MODELS, TABLE_4, TABLE_6
from .platform import PAPER_RATES, Rates, machine_of, open_framework
from .runs import BY_BYTES, MODULE, Variant, run
from .settings import CHANNELS

__all__ = ["figure4", "table4", "table5", "table6"]

TIME_BAND, SPEEDUP_BAND = 0.10, 0.05
"""Of times, throughputs and peaks; of speed-ups."""
SIZE_BAND = 0.04
"""Of sizes that are printed with two figures: 1.3 is from 1.25 to 1.35."""
PEAK = "peak NVMe, GB"


def table4(changes: Changes, progress: Progress) -> Experiment:
    """The models: what was captured of each."""
    progress("table 4")
    machine_of(changes=changes)  # refuses what there is not, though nothing depends on them
    claim = partial(predicted, section="Table 4", band=SIZE_BAND)
    rows: list[Row] = []
    for model, (billions, parameters_gb, states_gb) in TABLE_4.items():
        nbytes = {
            kind: sum(each.nbytes for each in load_trace(model).tensors if each.kind == kind)
            for kind in ("parameter", "optimizer_state")
        }
        states, slip = nbytes["optimizer_state"] / 1e9, ""
        if model == "gpt3-2.7b":
            slip = "The paper's sizes are 4 and 8 bytes of its rounded parameters, but for these: "
            slip += "8 bytes of 2.7 billion are 21.6 GB."
        rows.append(
            {
                "model": model,
                "billions of parameters": claim(nbytes["parameter"] / 4e9, billions),
                "parameters, GB": claim(nbytes["parameter"] / 1e9, parameters_gb, unit="GB"),
                "states, GB": claim(states, states_gb, unit="GB", excluded=slip),
            }
        )
    return Experiment(
        title="Table 4: models",
        rows=rows,
        notes=["Layers, widths, heads, batches and contexts are given."],
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
    for name, cell, most, measured, papers in (
        ("CPU, one core", given, bus, core, (CPU_CEILING_MPARAMS_PER_S, CPU_MPARAMS_PER_S)),
        ("module", predicted, ceiling, own, (914.29, PAPER_MPARAMS_PER_S)),
    ):
        how = {"section": "Table 5", "band": None if cell is given else TIME_BAND}
        share = 100 * papers[1] / papers[0]
        rows.append(
            {
                "device": name,
                "theoretical, MP/s": given(most, papers[0], section="Table 5", unit="MP/s"),
                "measured, MP/s": cell(measured, papers[1], unit="MP/s", **how),
                "%": cell(100 * measured / most, share, unit="%", digits=1, **how),
            }
        )
    notes = [
        f"The module's throughput is that of {COUNT:,} parameters a channel on the cycle model; "
        f"`nearmem sweep --count {COUNT}` finds it on the RTL. The paper's controller is another.",
    ]
    unit, module = rule(PAPER_RULES[0]), ModuleConfig()
    rows_of_block = module.block_bytes / module.part.geometry.row_bytes
    another = (
        "Ours is another design, of two DSPs for each of nine multipliers (`nearmem verilog "
        "adam_unit --resources`); which operators the paper's has is not said."
    )
    quoted = {
        "module beside the CPU": predicted(
            own / core, 5.6, section="6.2", unit="x", band=TIME_BAND
        ),
        "the same, theoretical": given(ceiling / bus, 4, section="6.2", unit="x"),
        "rows in a block of 16 KB": given(rows_of_block, 2, section="3.4", digits=0),
        "latency of a unit": predicted(
            unit.latency, 128, section="3.3", unit="cycles", excluded=another, digits=0
        ),
        "DSPs of a unit": predicted(18, 31, section="3.3", excluded=another, digits=0),
    }
    return Experiment(title="Table 5: Adam", rows=rows, quoted=quoted, notes=notes)


def table6(changes: Changes, progress: Progress) -> Experiment:
    """Training steps of five models, on the baseline and on the platform."""
    columns: dict[str, Row] = {}
    for model in MODELS:
        here = Variant(changes=changes, model=model)
        baseline, module = steps(model, PAPER_RATES, here, progress)
        faster = run(replace(here, own_rate=True), progress)
        ours = seconds(baseline, module) | {
            "baseline: total, s": baseline.total_ns / 1e9,
            "module: total, s": module.total_ns / 1e9,
            "speedup, backward": baseline.backward_ns / module.backward_ns,
            "speedup, total": baseline.total_ns / module.total_ns,
            PEAK: module.peak_nvme_bytes / 1e9,
        }
        columns[model] = {
            **{name: _judged(model, name, ours[name]) for name in TABLE_6[model]},
            "with our kernel's rate: total, s": predicted(faster.total_ns / 1e9),
            "with our kernel's rate: speedup": predicted(baseline.total_ns / faster.total_ns),
        }
    rates = ", ".join(
        f"{field.name} {getattr(PAPER_RATES, field.name):g}" for field in fields(Rates)
    )
    return Experiment(
        title="Table 6: training steps",
        rows=[
            {"": name, **{model: column[name] for model, column in columns.items()}}
            for name in columns[MODELS[0]]
        ],
        notes=[
            f"Calibrated on {' and '.join(ROWS)}, their four times each: {rates}. The "
            "overhead of each tensor's update is what its time leaves unexplained: the paper names "
            "no such cost.",
            _update_arithmetic(),
        ],
        draw=partial(
            draw_bars,
            [{"model": model, **column} for model, column in columns.items()],
            {
                "s a step": ["baseline: total, s", "module: total, s"],
                "speed-up over the baseline": ["speedup, backward", "speedup, total"],
            },
        ),
    )


def _judged(model: str, name: str, ours: float) -> Claim:
    """A cell of Table 6."""
    cell = calibrated if model in ROWS and name != PEAK else predicted
    how: dict[str, Any] = {"section": "Table 6", "unit": "s", "band": TIME_BAND}
    if "speedup" in name:
        how |= {"unit": "x", "band": SPEEDUP_BAND}
    elif name == PEAK:
        how |= {"unit": "GB", "digits": 1}
    return cell(ours, TABLE_6[model][name], **how)


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
    here = Variant(changes=changes, model=model)
    results = {
        "round robin, as the paper": run(here, progress),
        "by bytes": run(replace(here, settings=BY_BYTES), progress),
    }

    def draw(path: Path) -> list[Path]:
        timeline = Timeline(backend="model", fabric_mhz=1000)
        open_framework(machine, load_trace(model), MODULE, timeline=timeline).step()
        files = [path.with_suffix(f".{ending}") for ending in ("json.gz", "svg", "png")]
        for file in files:
            timeline.write(file)
        return files

    return Experiment(
        title=f"Figure 4: a training step of {model}",
        rows=[
            {
                "placement": name,
                "forward, s": predicted(result.forward_ns / 1e9),
                "backward, s": predicted(result.backward_ns / 1e9),
                "kernels, s": predicted(result.kernel_ns / 1e9),
            }
            for name, result in results.items()
        ],
        notes=[
            "The paper's figure has no scale. `--out DIR` writes the timeline of the first step: "
            "with parameters placed in turns, channel 1 has little to do."
        ],
        draw=draw,
    )


@cache
def _parameters(model: str) -> int:
    return sum(each.nbytes // 4 for each in load_trace(model).tensors if each.kind == "parameter")
