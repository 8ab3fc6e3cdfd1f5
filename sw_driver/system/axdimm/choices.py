"""What is not in the paper: how well its times come out with other choices, and other rates."""

from __future__ import annotations

from dataclasses import fields, replace

from ..reproduction import Changes, Experiment, Progress, Row, calibrated, predicted
from .calibration import ROWS, calibrate, deviations, steps
from .paper import MODELS, TABLE_6
from .platform import Rates
from .runs import BY_BYTES, MODULE, Variant

__all__ = ["calibration", "choices"]

_CHOICES = {
    "as above": Variant(),
    "the baseline's memory in one part": Variant(channels=1),
    "placed by bytes": Variant(settings=BY_BYTES),
    "gradients in a stream of their own": Variant(settings=replace(MODULE, one_stream=False)),
    "transfers beside each other": Variant(settings=replace(MODULE, one_transfer=False)),
    "5 operations ahead": Variant(settings=replace(MODULE, ahead_ops=5)),
    "100 operations ahead": Variant(settings=replace(MODULE, ahead_ops=100)),
}


def choices(changes: Changes, progress: Progress) -> Experiment:
    """How well Table 6 comes out if what the paper does not say was otherwise."""
    rows: list[Row] = []
    for name, variant in _CHOICES.items():
        assumed = replace(variant, changes=changes)
        progress(f"choices: {name}")
        rates = calibrate(assumed=assumed)
        times, peaks = [], []
        for model in MODELS:
            baseline, module = steps(model, rates, assumed, progress)
            times += deviations(model, baseline, module)
            peaks.append(module.peak_nvme_bytes / 1e9 / TABLE_6[model]["peak NVMe, GB"] - 1)
        rows.append(
            {"choice": name}
            | {
                f"{which} deviation of {what}, %": cell(value, digits=1)
                for what, cell, found in (("times", calibrated, times), ("peaks", predicted, peaks))
                for which, value in (
                    ("worst", 100 * max(found, key=abs)),
                    ("mean", 100 * sum(map(abs, found)) / len(found)),
                )
            }
        )
    return Experiment(
        title="What the choices explain",
        rows=rows,
        notes=[
            "20 times and 5 peaks of Table 6, each choice with its own rates, calibrated on "
            f"{' and '.join(ROWS)}."
        ],
    )


def calibration(changes: Changes, progress: Progress) -> Experiment:
    """The fit of the four rates again, and what other rows would have given."""
    rows: list[Row] = []
    assumed = Variant(changes=changes)
    for chosen in (ROWS, ("gpt3-large", "gpt3-6.7b"), ("gpt3-xl", "gpt3-13b")):
        rates = calibrate(chosen, assumed, progress)
        worst = {}
        for model in MODELS:
            both = steps(model, rates, assumed, progress)
            worst[model] = max(deviations(model, *both), key=abs)
        rows.append(
            {
                "calibrated on": " and ".join(chosen),
                **{field.name: calibrated(getattr(rates, field.name)) for field in fields(Rates)},
                **{
                    f"worst of {model}, %": (calibrated if model in chosen else predicted)(
                        100 * value, digits=1
                    )
                    for model, value in worst.items()
                },
            }
        )
    return Experiment(
        title="Calibration on other rows",
        rows=rows,
        notes=["Table 6 is simulated with the first row's rates, rounded."],
    )
