"""The paper's tables: models, Adam's throughput, and training steps."""

from __future__ import annotations

from dataclasses import fields
from functools import partial

from sw_driver.axdimm.figures import BYTES_PER_PARAMETER, PAPER_MPARAMS_PER_S
from sw_driver.axdimm.measure import COUNT, own_mparams_per_s
from sw_driver.machine.axdimm_platform import AXDIMM_PLATFORM
from sw_driver.workload import load_trace

from ..plotting import draw_bars
from ..reproduction import Claim, Experiment, Row, calibrated, given, predicted
from ..runs import Runs
from .platform import PAPER_RATES, Rates, machine_of, measure
from .settings import CHANNELS, FrameworkSettings

__all__ = ["table4", "table5", "table6"]

_TIME_BAND, _SPEEDUP_BAND = 0.10, 0.05
"""Bands of times, throughputs and peaks, and of speed-ups."""
_SIZE_BAND = 0.04
"""Band of sizes that are printed with two digits: 1.3 is from 1.25 to 1.35."""
_PEAK = "peak NVMe, GB"
_FITTED = ("gpt3-large", "gpt3-13b")
"""The smallest and the largest model, whose passes the rates are calibrated on."""

_BILLIONS = {
    "gpt3-large": 0.76,
    "gpt3-xl": 1.3,
    "gpt3-2.7b": 2.7,
    "gpt3-6.7b": 6.7,
    "gpt3-13b": 13.0,
}
"""Parameters of the models, in billions."""

_TABLE_6 = {
    "baseline: total, s": (8.79, 21.42, 47.87, 128.29, 246.86),
    "module: total, s": (5.40, 15.43, 35.23, 101.72, 192.45),
    "speedup, backward": (1.74, 1.45, 1.42, 1.31, 1.33),
    "speedup, total": (1.63, 1.39, 1.36, 1.26, 1.28),
    _PEAK: (0.9, 9.8, 26.1, 78.4, 153.1),
}
"""The paper's figures of the models, in this order."""


def table4(runs: Runs) -> Experiment:
    """Compare the captured models' sizes with the paper's."""
    runs.progress("table 4")
    machine_of(changes=runs.changes)  # refuses unknown changes, though nothing depends on them
    claim = partial(predicted, section="Table 4", band=_SIZE_BAND)
    rows: list[Row] = []
    for model, billions in _BILLIONS.items():
        tensors = load_trace(model).tensors
        nbytes = sum(tensor.nbytes for tensor in tensors if tensor.kind == "parameter")
        rows.append({"model": model, "billions of parameters": claim(nbytes / 4e9, billions)})
    return Experiment(
        title="Table 4: models",
        rows=rows,
        notes=["Layers, widths, heads, batches and contexts are given."],
    )


def table5(runs: Runs) -> Experiment:
    """Compare Adam's throughput."""
    runs.progress("table 5: the kernel's cycles")
    machine = machine_of(changes=runs.changes)
    own = own_mparams_per_s()
    core = 1000 * machine.link("cpu").read_gb_per_s.value / BYTES_PER_PARAMETER
    bus = 1000 * AXDIMM_PLATFORM.link("module").read_gb_per_s.value / BYTES_PER_PARAMETER
    channels = [machine.link(f"channel{number}") for number in range(CHANNELS)]
    ceiling = 1000 * sum(channel.read_gb_per_s.value for channel in channels) / BYTES_PER_PARAMETER
    claim = partial(predicted, section="Table 5", band=_TIME_BAND)
    share = 100 * PAPER_MPARAMS_PER_S / 914.29
    rows: list[Row] = [
        {
            "device": "CPU, one core",
            "theoretical, MP/s": given(bus),
            "measured, MP/s": given(core),
            "%": given(100 * core / bus, digits=1),
        },
        {
            "device": "module",
            "theoretical, MP/s": given(ceiling),
            "measured, MP/s": claim(own, PAPER_MPARAMS_PER_S, unit="MP/s"),
            "%": claim(100 * own / ceiling, share, unit="%", digits=1),
        },
    ]
    return Experiment(
        title="Table 5: Adam",
        rows=rows,
        quoted={
            "throughput of the module over the CPU": predicted(
                own / core, 5.6, section="6.2", unit="x", band=_TIME_BAND
            )
        },
        notes=[
            f"The module's throughput comes from the cycle model with {COUNT:,} parameters per "
            f"channel; `nearmem sweep --count {COUNT}` measures it on the RTL. The paper's module "
            "has another controller.",
        ],
    )


def table6(runs: Runs) -> Experiment:
    """Compare training steps of five models, on the baseline and on the platform."""
    machine = machine_of(changes=runs.changes)
    columns: dict[str, dict[str, Claim]] = {}
    for n, model in enumerate(_BILLIONS):
        trace, steps = load_trace(model), {}
        for updater in ("cpu", "module"):
            runs.progress(f"{model}, updated by {updater}")
            settings = FrameworkSettings(updater=updater)
            steps[updater] = measure(machine, trace, settings)
        baseline, module = steps.values()
        backward_ns = [step.step_ns - step.marks_ns["forward"] for step in steps.values()]
        ours = {
            "baseline: total, s": baseline.step_ns / 1e9,
            "module: total, s": module.step_ns / 1e9,
            "speedup, backward": backward_ns[0] / backward_ns[1],
            "speedup, total": baseline.step_ns / module.step_ns,
            _PEAK: module.peak_bytes["nvme"] / 1e9,
        }
        columns[model] = {
            name: _judged(model, name, value, _TABLE_6[name][n]) for name, value in ours.items()
        }
    rates = ", ".join(
        f"{field.name} {getattr(PAPER_RATES, field.name):g}" for field in fields(Rates)
    )
    return Experiment(
        title="Table 6: training steps",
        rows=[
            {"": name, **{model: column[name] for model, column in columns.items()}}
            for name in _TABLE_6
        ],
        notes=[
            f"Calibrated on {' and '.join(_FITTED)}: {rates}. The overhead of a tensor's update is "
            "the time that other rates leave unexplained; the paper names no such cost.",
        ],
        draw=partial(
            draw_bars,
            [{"model": model, **column} for model, column in columns.items()],
            {
                "step time, s": ["baseline: total, s", "module: total, s"],
                "speed-up over the baseline": ["speedup, backward", "speedup, total"],
            },
        ),
    )


def _judged(model: str, name: str, ours: float, paper: float) -> Claim:
    """Return a cell of Table 6."""
    if name == _PEAK:
        return predicted(ours, paper, section="Table 6", unit="GB", band=_TIME_BAND, digits=1)
    cell = calibrated if model in _FITTED else predicted
    unit, band = ("x", _SPEEDUP_BAND) if "speedup" in name else ("s", _TIME_BAND)
    return cell(ours, paper, section="Table 6", unit=unit, band=band)
