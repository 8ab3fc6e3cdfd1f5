"""Predictions of published measurements, by the models of this package."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace

from sw_driver.machine import Device, MachineError
from sw_driver.machine.gpus import GPUS
from sw_driver.report import Watch
from sw_driver.system.compare.bases import check_formats, machine_of
from sw_driver.system.compare.system import CannotRunError, all_parts_ns
from sw_driver.system.compare.systems import SYSTEMS
from sw_driver.system.outcome import Outcome
from sw_driver.workload import Trace
from sw_driver.workload.precision import PRECISIONS
from sw_driver.workload.summary import trained_units
from sw_driver.workload.trace import Geometry, Op, TraceError

from .rows import Row, RowError
from .steps import MeasuredStep, gpu_of, is_range, kind_of, step_of

__all__ = ["GOOD", "SPAN", "Prediction", "predict"]

SPAN = 1.3
"""Factor around a single ratio, as a range: the same offload differs so by core binding alone."""

GOOD = 0.2
"""Error of a good prediction, at most."""

_MOST_MICRO_BATCHES = 3
"""Micro-batches that are simulated; later ones take as long as the last of these."""
_SIDE = 8192
"""Side of the matrices of a row for a product, as large as those that reach the peak."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A row with its prediction, in the unit of the row."""

    row: Row
    kind: str
    """One of :data:`~sw_driver.experiments.measurements.steps.KINDS`."""
    value: float
    bound: float
    """Value if products and attention alone took time, all at the rate of large products."""

    @property
    def is_counted(self) -> bool:
        """True if the error counts in medians: neither a range nor an input."""
        return self.kind != "input" and not is_range(self.row)

    @property
    def is_possible(self) -> bool:
        """False for a measured rate or time beyond :attr:`bound`."""
        low, high = self.row.span
        if self.kind == "peak memory" or not self.is_counted:
            return True
        is_time = self.bound < self.value
        return high >= self.bound if is_time else low <= self.bound

    @property
    def error(self) -> float:
        """Predicted over measured, less 1; 0 inside of a measured range."""
        low, high = self.row.span
        return self.value / min(max(self.value, low), high) - 1

    @property
    def is_good(self) -> bool:
        """True if a range is within a factor of :data:`SPAN`, another value :data:`GOOD` off."""
        if is_range(self.row):
            return 1 / SPAN <= 1 + self.error <= SPAN
        return abs(self.error) <= GOOD


def predict(
    rows: Iterable[Row], watch: Watch = Watch()
) -> tuple[list[Prediction], list[tuple[str, str]]]:
    """Return the predictions of rows, and the ids of the others with the reason."""
    capture = _Captures()
    predictions, left_out = [], []
    for row in watch.track(rows, "predicting"):
        try:
            _ = row.span  # a bad value is refused before a capture
            value, bound = _value(row, capture)
        except (ValueError, TraceError, CannotRunError, MachineError) as error:
            left_out.append((row.id, " ".join(str(error).split())))
        else:
            predictions.append(Prediction(row=row, kind=kind_of(row), value=value, bound=bound))
    return predictions, left_out


class _Captures:
    """Steps as captured, by their models."""

    def __init__(self) -> None:
        self._traces: dict[object, Trace] = {}

    def __call__(self, step: MeasuredStep) -> Trace:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        from sw_driver.workload.capture import capture_config

        key = step.config, step.is_fused
        if key not in self._traces:
            with nullcontext() if step.is_fused else sdpa_kernel(SDPBackend.MATH):
                self._traces[key] = capture_config("model", step.config)
        return self._traces[key]


@dataclass(frozen=True, kw_only=True)
class _Run:
    """A simulated step of a row; ``step_ns`` has all micro-batches."""

    trace: Trace
    outcome: Outcome
    step_ns: float
    micro_batches: int
    gpus: int
    least_ns: float
    """Time of products and attention at the rate of large products."""

    @property
    def tokens_per_s(self) -> float:
        units, _ = trained_units(replace(self.trace, origin={**self.trace.origin, "accumulate": 1}))
        return units * self.micro_batches / self.step_ns * 1e9

    @property
    def tflop_per_s(self) -> float:
        """Rate of a GPU's products, with those that are computed again, in 10^12 FLOP/s."""
        of_batch = sum(op.flops for op in self.trace.ops if op.geometry is not None)
        micro = int(self.trace.origin.get("accumulate", 1))
        return of_batch / micro * self.micro_batches / self.step_ns / 1000


_METRICS: dict[str, Callable[[_Run], float]] = {
    r"(tokens|samples)/s/gpu": lambda run: run.tokens_per_s / run.gpus,
    r"(tokens|samples|images)/s": lambda run: run.tokens_per_s,
    r"(s|ms|time)/iter|step time": lambda run: run.step_ns / 1e9,
    r"(s |ms )?optimizer step": lambda run: run.outcome.parts_ns["updating"] / 1e9,
    r"TFLOPS(/gpu)?": lambda run: run.tflop_per_s,
    r"peak memory.*": lambda run: run.outcome.peak_bytes["gpu"],
    r"share of step in update.*": lambda run: (
        1 - all_parts_ns(run.outcome)["computing"] / run.step_ns
    ),
}
"""Values by a pattern of the metric, in the units of :data:`_UNITS` with the factor 1."""
_UNITS = {
    "tok/s": 1, "samples/s": 1, "images/s": 1, "TFLOPS": 1, "s": 1, "ms": 1000, "%": 100, "x": 1,
    "MiB": 2**-20, "GiB": 2**-30, "MB": 1e-6, "GB": 1e-9,
}  # fmt: skip


def _value(row: Row, capture: _Captures) -> tuple[float, float]:
    """Return a row's value and its bound."""
    if row.unit not in _UNITS:
        raise RowError(f"unit is {row.unit!r}: expected one of {', '.join(_UNITS)}")
    if kind_of(row) == "input":
        return (rate := _product_tflop_per_s(row)), rate
    if row.metric == "speedup":
        fast, over, slow = row.offload.partition(" over ")
        if not over:
            raise RowError(f"offload is {row.offload!r}: expected two systems, with over between")
        runs = [_run(step_of(row, name), capture) for name in (fast, slow)]
        return (ratio := runs[1].step_ns / runs[0].step_ns), ratio
    if "optimizer step" in row.metric:  # the passes do not matter
        row = replace(row, seq="128", micro_batch="1", checkpointing="no")
    for pattern, value in _METRICS.items():
        if re.fullmatch(pattern, row.metric, re.IGNORECASE):
            run = _run(step_of(row), capture)
            fastest = replace(run, step_ns=run.least_ns)
            return value(run) * _UNITS[row.unit], value(fastest) * _UNITS[row.unit]
    raise RowError(f"metric is {row.metric!r}: expected such as tokens/s/gpu, s/iter, peak memory")


def _run(step: MeasuredStep, capture: _Captures) -> _Run:
    system = next((one for one in SYSTEMS if one.name == step.system), None)
    if system is None:
        raise RowError(f"offload needs the system {step.system!r}, which is not modelled")
    formats = PRECISIONS[step.training.precision]
    check_formats(step.gpu, formats, f"precision is {step.training.precision}")
    captured = capture(step)
    training = system.training(step.training, captured)
    gpus = f"x{training.gpus}" if training.gpus > 1 else ""
    machine = machine_of(
        f"{step.gpu}{gpus}", training.precision, network_gb_per_s=step.network
    ).override(step.changes)
    micro = min(step.micro_batches, _MOST_MICRO_BATCHES)

    def run(number: int) -> tuple[Trace, Outcome]:
        trace = replace(training, accumulate=number).apply(captured)
        system.check(trace)
        return trace, system.run(trace, machine)

    trace, outcome = run(micro)
    step_ns: float = outcome.step_ns
    if later := step.micro_batches - micro:
        step_ns += later * (step_ns - run(micro - 1)[1].step_ns)
    return _Run(
        trace=trace,
        outcome=outcome,
        step_ns=step_ns,
        micro_batches=step.micro_batches,
        gpus=training.gpus,
        least_ns=_least_ns(trace, GPUS[step.gpu].device) * step.micro_batches / micro,
    )


def _least_ns(trace: Trace, gpu: Device) -> float:
    """Return the time of a step's products and attention at the rate of large products."""
    total = 0.0
    for op in trace.ops:
        if op.geometry is not None:
            peak = getattr(gpu, f"{op.dtype}_tflop_per_s", None) or gpu.tflop_per_s
            share = (gpu.fp8_share if op.dtype == "fp8" else None) or gpu.product_share
            rate = peak.value * (share.value if share else 1)
            total += op.flops / (1 + op.geometry.causal) / rate / 1000
    return total


def _product_tflop_per_s(row: Row) -> float:
    """Return the rate of a large product, which is close to the input that the row is."""
    nbytes, form = 2 * _SIDE**2, row.precision
    op = Op(
        id=0, kind="mm", layer=0, phase="forward", stage=0, reads=(0, 1), writes=(2,),
        read_bytes=(nbytes, nbytes), write_bytes=(nbytes,), flops=2 * _SIDE**3, dtype=form,
        geometry=Geometry(operands=((_SIDE, _SIDE),) * 2, result=(_SIDE, _SIDE)),
    )  # fmt: skip
    return op.flops / GPUS[gpu_of(row)].device.cost(op) / 1000
