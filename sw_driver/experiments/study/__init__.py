"""Experiments behind the paper's arguments, measured on the RTL."""

from __future__ import annotations

from typing import Any, Literal

from hw.axdimm.config import ModuleConfig
from sw_driver.report import Report, Table, Watch, share

from . import parallel, sharing

__all__ = ["report"]

_HEADINGS = {
    "mode": "",
    "channel_0": "channel 0",
    "channel_1": "channel 1",
    "pattern": "host reads",
    "interval_fabric_cycles": "cycles per read",
    "offered_gb_per_s": "offered GB/s",
    "host_gb_per_s": "host GB/s",
    "latency_median_ns": "median ns",
    "latency_p99_ns": "99 % ns",
    "latency_worst_ns": "worst ns",
    "late_share": "late reads",
    "kernel_mparams_per_s": "kernel MP/s",
    "kernel_share": "share of kernel alone",
    "copy_gb_per_s": "copies GB/s",
}
_WORDS = ("mode", "channel_0", "channel_1", "pattern")


def report(
    name: Literal["fcfs", "parallel"],
    config: ModuleConfig,
    *,
    parameters: int,
    window_fabric_cycles: int,
    copy_bytes: int,
    watch: Watch = Watch(),
) -> Report:
    """Report an experiment: host and kernel on one channel, or a copy beside a kernel.

    Arguments and errors are those of
    :func:`~sw_driver.experiments.study.sharing.measure_sharing` and
    :func:`~sw_driver.experiments.study.parallel.measure_parallel`.
    """
    job: dict[str, Any] = {"parameters": parameters}
    if name == "fcfs":
        job["window_fabric_cycles"] = window_fabric_cycles
        measured = sharing.measure_sharing(config, **job, announce=watch.log)
    else:
        job["copy_bytes"] = copy_bytes
        measured = parallel.measure_parallel(config, **job, announce=watch.log)
    rows = list(watch.track(measured, "measuring"))
    names = [name for name in _HEADINGS if any(name in row for row in rows)]
    table = Table(
        title=f"nearmem study {name}: {config.part.name}",
        headings=[_HEADINGS[name] for name in names],
        rows=[[_cell(name, row.get(name)) for name in names] for row in rows],
        words=[place for place, name in enumerate(names) if name in _WORDS],
    )
    machine = config.describe()
    return Report(results=rows, parts=[table], machine=machine, workload={"experiment": name} | job)


def _cell(name: str, value: Any) -> str:
    if name.endswith("_share"):
        return share(value)
    if isinstance(value, float):
        return f"{value:.2f}" if value < 1000 else f"{value:,.0f}"
    return "" if value is None else str(value)
