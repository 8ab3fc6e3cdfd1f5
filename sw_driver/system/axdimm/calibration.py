"""Finds the four rates that the paper does not state from rows of its Table 6."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from sw_driver.numbers import check_integer
from sw_driver.simulator.workers import processes

from ..reproduction import Progress
from .framework import StepResult
from .paper import TABLE_6
from .platform import Rates
from .runs import Variant, run
from .settings import CHANNELS

__all__ = ["ROWS", "calibrate", "deviations", "seconds", "steps"]

ROWS = ("gpt3-large", "gpt3-13b")
"""The smallest and the largest model: the others lie between them."""

_START = Rates(
    memory_gb_per_s=4.0, drives_gb_per_s=3.0, direct_gb_per_s=2.0, update_overhead_us=2000.0
)
_STEP = 0.03
"""Of a rate, for its derivative: the times have small jumps."""

_AS_IS = Variant()


def steps(
    model: str, rates: Rates, assumed: Variant = _AS_IS, progress: Progress = lambda _: None
) -> tuple[StepResult, StepResult]:
    """Of the baseline, whose memory is in as many parts as ``assumed`` has channels, and of the
    platform with the paper's kernel."""
    module = replace(assumed, model=model, rates=rates, channels=CHANNELS)
    cpu = replace(
        module, channels=assumed.channels, settings=replace(assumed.settings, updater="cpu")
    )
    return run(cpu, progress), run(module, progress)


def seconds(baseline: StepResult, module: StepResult) -> dict[str, float]:
    """What forward and backward pass of the two take, by the rows of Table 6."""
    return {
        f"{name}: {part}, s": ns / 1e9
        for name, step in (("baseline", baseline), ("module", module))
        for part, ns in (("forward", step.forward_ns), ("backward", step.backward_ns))
    }


def deviations(model: str, baseline: StepResult, module: StepResult) -> list[float]:
    """Of those times from the paper's, as shares of these."""
    paper = TABLE_6[model]
    return [ours / paper[name] - 1 for name, ours in seconds(baseline, module).items()]


def calibrate(
    rows: Sequence[str] = ROWS,
    assumed: Variant = _AS_IS,
    progress: Progress = lambda _: None,
) -> Rates:
    """The rates with the least squares of the deviations, in logarithms, of the four times of each
    row. Two rows are eight times for four rates."""
    check_integer("the number of rows", len(rows))
    names = [field.name for field in fields(Rates)]
    start = np.array([getattr(_START, name) for name in names])
    runs = 0

    def rates_of(point: NDArray[np.float64]) -> Rates:
        # From 1, not 0: steps are shares of the point.
        values = start * np.exp(point - 1)
        return Rates(**{name: float(value) for name, value in zip(names, values, strict=True)})

    with processes(len(rows), _steps) as submit:

        def residuals(point: NDArray[np.float64]) -> NDArray[np.float64]:
            nonlocal runs
            runs += 1
            progress(f"calibrating: run {runs}")
            measured = {row: submit((row, rates_of(point), assumed)) for row in rows}
            found = [deviations(row, *steps.result()) for row, steps in measured.items()]
            return np.log1p(np.array(found)).ravel()

        found = least_squares(
            residuals, np.ones(len(names)), diff_step=_STEP, xtol=1e-3, ftol=1e-3, max_nfev=20
        )
    return rates_of(found.x)


def _steps(arguments: tuple[str, Rates, Variant]) -> tuple[StepResult, StepResult]:
    return steps(*arguments)
