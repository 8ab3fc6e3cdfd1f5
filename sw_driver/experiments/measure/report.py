"""Report of all rates of this machine, and the machine file that they make."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from sw_driver.axdimm.figures import PAPER_CPU_MPARAMS_PER_S
from sw_driver.device.errors import InvalidArgumentError
from sw_driver.files import write_whole
from sw_driver.machine.files import MachineFile
from sw_driver.machine.gpus import CUDA_NAMES, GPUS
from sw_driver.machine.parts import Figure, measured
from sw_driver.report import Report, Table, Watch
from sw_driver.system.compare.bases import checked, machine_of, named

from .adam import check_memory, cores, measure_cpu
from .rates import cpu_rates, drive_rates, filesystem, gpu_rates, memory_bytes

__all__ = ["report", "settings"]

_SHARED = ("cpu.tflop_per_s", "cpu.gb_per_s", "host.capacity_bytes", "drive")
"""Beginnings of settings that the GPUs of a machine share."""
_ANY = "h100"
"""A machine with all keys, in place of a base."""


def report(
    *,
    gpu: str = "",
    drive: Path | None = None,
    drive_bytes: int = 4 << 30,
    parameters: int = 1 << 26,
    repetitions: int = 9,
    threads: int | None = None,
    out: Path | None = None,
    watch: Watch = Watch(),
) -> Report:
    """Measure this machine and report its rates; write a machine file to ``out``.

    Parameters
    ----------
    gpu: the base's name, such as ``h100x8``; by default that of the measured GPU.
    drive: the folder in which a drive is measured (default: that of temporary files).
    parameters, repetitions, threads: those of :func:`~.adam.measure_cpu`; ``threads`` is by
        default one for each core.
    """
    check_memory(parameters)
    torch = _torch()
    has_gpu = torch is not None and torch.cuda.is_available()
    device = torch.cuda.get_device_name(0) if torch is not None and has_gpu else ""
    base, notes = _base(gpu, device)
    folder = drive or Path(gettempdir())
    if not folder.is_dir():
        raise InvalidArgumentError(f"--drive is {str(folder)!r}: expected a folder")
    is_memory = filesystem(folder)[1] in ("tmpfs", "ramfs")
    if is_memory and drive:
        raise InvalidArgumentError(f"--drive is {str(drive)!r}, in memory: give one on a drive")
    adam: list[dict[str, Any]] = []
    work: dict[str, Callable[[], Mapping[str, Figure]]] = {
        "products and copies on the CPU": lambda: cpu_rates(torch),
        "Adam on the CPU": lambda: _adam(adam, parameters, repetitions, threads or cores()),
        "the GPU": lambda: gpu_rates(torch) if has_gpu else {},
        "the drive": lambda: {} if is_memory else drive_rates(folder, drive_bytes),
    }
    if (load := os.getloadavg()[0]) > cores() / 2:
        notes.append(f"The machine is busy with other work, a load of {load:.1f}: measure again.")
    rates = {"host.capacity_bytes": measured(memory_bytes(), "as the system has it")}
    for name in watch.track(work, "measuring"):
        watch.say(f"measuring {name}")
        rates |= {key: _rounded(rate) for key, rate in work[name]().items()}
    tool = f"torch {torch.__version__}" if torch is not None else "numpy"
    title = f"{_cpu_name()}, {cores()} cores; {device or 'no GPU'}; {tool}"
    before = f"nearmem measure, {datetime.now(UTC).date().isoformat()}, {title}"
    made = settings(rates, base, is_known=device in CUDA_NAMES)
    figures = {
        key: _rounded(replace(figure, source=f"{before}: {figure.source}"))
        for key, figure in made.items()
    }
    if out is not None:
        file = MachineFile(path=out, base=base, figures=figures)
        file.applied(machine_of(base or _ANY, "bf16-mixed"))
        write_whole(out, file.text)
    if torch is None:
        notes.append("PyTorch was not measured, as it is not installed: pip install -e '.[torch]'")
    if is_memory:
        notes.append(f"No drive was measured, as {str(folder)!r} is in memory: give --drive DIR")
    columns = {
        "": lambda item: item[0],
        "rate": lambda item: f"{item[1].value:,}",
        "measured": lambda item: item[1].source,
    }
    rows = [
        [row["library"], str(row["threads"])]
        + [f"{row[name]:.2f}" for name in ("mparams_per_s", "gb_per_s")]
        for row in adam
    ]
    rows += [[], ["paper (AXDIMM): one core", "1", f"{PAPER_CPU_MPARAMS_PER_S:.2f}", ""]]
    table = Table(
        title=f"Adam in FP32, {parameters:,} parameters on the CPU, median of {repetitions}",
        headings=["", "threads", "MP/s", "GB/s"],
        rows=rows,
    )
    return Report(
        title=title,
        results={
            "base": base,
            "rates": {key: asdict(figure) for key, figure in rates.items()},
            "settings": {key: asdict(figure) for key, figure in figures.items()},
            "cpu": adam,
            "paper_mparams_per_s": PAPER_CPU_MPARAMS_PER_S,
        },
        parts=[Table.of("", rates.items(), columns, words=(0, 2)), table],
        notes=notes,
        machine={"name": title},
        workload={"parameters": parameters, "repetitions": repetitions},
        files=[out] if out else [],
    )


def settings(rates: Mapping[str, Figure], base: str, *, is_known: bool) -> dict[str, Figure]:
    """Return the settings of a machine that follow from rates.

    Those of the GPU are left out without a base. A GPU that ``is_known`` is that of the base: it
    keeps the peaks of its data sheet, and its shares of them are measured. Another one has the
    measured rates as peaks.
    """
    gpu, gpus = named(base)
    made, keys = dict(rates), machine_of(base or _ANY, "bf16-mixed").keys
    adam = rates["cpu.adam_gb_per_s"]
    best = max(rates["host.copy_gb_per_s"], adam, key=lambda rate: rate.value)
    made["cpu.gb_per_s"] = best
    made["cpu.memory_share"] = replace(adam, value=adam.value / best.value)
    products = [f"gpu.{dtype}tflop_per_s" for dtype in ("bf16_", "fp16_", "tf32_", "")]
    for share, group in (("product_share", products), ("memory_share", ["gpu.gb_per_s"])):
        group = [key for key in group if key in rates and key in keys]
        if not base or not group:
            continue
        first, rate = group[0], rates[group[0]]
        sheet = rate.value
        if is_known:
            sheet = getattr(GPUS[gpu].device, first.removeprefix("gpu.")).value
        value = min(rate.value / sheet, 1)
        source = f"{rate.value:g} of {sheet:g}, {rate.source}"
        made[f"gpu.{share}"] = replace(rate, value=value, source=source)
        for key in group:
            source = f"{rates[key].value:g} over {share}, {rates[key].source}"
            made[key] = replace(rates[key], value=rates[key].value / value, source=source)
        if value < 1:
            del made[first]  # the data sheet has it
    for key in [key for key in made if gpus > 1 and key.startswith(_SHARED)]:
        whole, source = made[key].value, f"{made[key].source}; one of {gpus} shares"
        part = whole // gpus if key.endswith("_bytes") else whole / gpus
        made[key] = replace(made[key], value=part, source=source)
    for key in [key for key in made if key.startswith("drive.")]:
        made[key.replace("drive", "nvme")] = made[key]
    mine = [key for key in made if key in keys and (base or not key.startswith(("gpu.", "pcie.")))]
    return {key: made[key] for key in mine}


def _rounded(figure: Figure) -> Figure:
    """Return a figure with four digits, unless it is a whole number."""
    value = figure.value
    return replace(figure, value=value if isinstance(value, int) else float(f"{value:.4g}"))


def _adam(
    rows: list[dict[str, Any]], parameters: int, repetitions: int, threads: int
) -> dict[str, Figure]:
    rows += measure_cpu(parameters, repetitions=repetitions, threads=threads)
    best = max(rows, key=lambda row: row["gb_per_s"])
    words = f"{best['library']} at {best['mparams_per_s']:.4g} MP/s of 28 bytes"
    return {"cpu.adam_gb_per_s": measured(best["gb_per_s"], words)}


def _base(given: str, device: str) -> tuple[str, list[str]]:
    """Return the base's name, and sentences about what is not measured or not known."""
    own = CUDA_NAMES.get(device, "")
    if given:
        if checked(given, "--gpu")[0] != own and own:
            raise InvalidArgumentError(f"--gpu is {given!r}, but this is the {own}: leave it out")
        return given, [] if device else [f"No GPU was measured; its figures are those of {given}."]
    if own:
        return own, []
    words = f"{device!r} is none of the known GPUs" if device else "No GPU was measured"
    return "", [f"{words}, so compare needs a base: give --gpu, one of {', '.join(GPUS)}"]


def _torch() -> Any:
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    return torch


def _cpu_name() -> str:
    """Return the model of this machine's CPU."""
    if os.path.exists("/proc/cpuinfo"):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
