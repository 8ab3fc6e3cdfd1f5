"""What the baseline is reported as: plain values for JSON, and tables."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich import box
from rich.table import Table

from sw_driver.axdimm.runs import PARAMETER_BYTES
from sw_driver.experiments.figures import fitting_mparams_per_s

from .machine import Machine
from .measure import CpuFigures, Loop, ceiling_of, working_set_bytes
from .traffic import ADAM, COPY

__all__ = [
    "PAPER_ROWS",
    "figures",
    "notes",
    "tables",
]

PAPER_ROWS = (
    {
        "name": "paper: CPU, 6.4 GB/s",
        "threads": 1,
        "ceiling_mparams_per_s": 228.57,
        "mparams_per_s": 140.32,
        "efficiency": 0.614,
    },
    {
        "name": "paper: AXDIMM, 25.6 GB/s",
        "threads": None,
        "ceiling_mparams_per_s": 914.29,
        "mparams_per_s": 789.38,
        "efficiency": 0.863,
    },
)
"""Table 5: one core of a Xeon E5-2698 v4 on DDR4-800, and the module's two channels."""

PAPER_HOST_GB_PER_S = 6.4
"""DDR4-800, 64 bits (Table 3)."""

_MIB = 1 << 20


def _row(row: Loop, ceiling: float) -> dict[str, Any]:
    low, high = row.mparams_per_s_quartiles
    return {
        "name": row.name,
        "threads": row.threads,
        "mparams_per_s": row.mparams_per_s,
        "mparams_per_s_quartiles": [low, high],
        "gb_per_s": row.moved_gb_per_s,
        "ceiling_mparams_per_s": ceiling,
        "efficiency": row.mparams_per_s / ceiling,
        "bit_exact": row.bit_exact,
        "seconds": row.seconds,
    }


def _bandwidth_row(row: Loop) -> dict[str, Any]:
    return {
        "name": row.name,
        "threads": row.threads,
        "gb_per_s": row.moved_gb_per_s,
        "counted_gb_per_s": row.counted_gb_per_s,
        "moved_bytes_per_value": row.traffic.moved_bytes(streaming=row.streaming),
        "counted_bytes_per_value": row.traffic.counted_bytes,
        "seconds": row.seconds,
    }


def _ceiling(loop: Loop) -> dict[str, Any]:
    return {
        "loop": loop.name,
        "threads": loop.threads,
        "gb_per_s": loop.moved_gb_per_s,
        "mparams_per_s": fitting_mparams_per_s(loop.moved_gb_per_s),
    }


def figures(
    cpu: CpuFigures, machine: Machine, module: dict[str, Any] | None, *, threads: int
) -> dict[str, Any]:
    """All figures, ready for JSON.

    ``ceiling``: the machine's: the fastest loop whose traffic is certain, in 10^9 bytes a second,
    and the parameters that fit into it at ``bytes_per_parameter``; ``copy_ceiling``: the same of
    the copies alone. ``beyond_last_level_cache``:
    None where the operating system does not tell the cache's size.
    """
    parameters = cpu.adam[0].values
    fastest_loop = ceiling_of(cpu.bandwidth)
    fastest_copy = ceiling_of(row for row in cpu.bandwidth if row.traffic == COPY)
    ceiling = fitting_mparams_per_s(fastest_loop.moved_gb_per_s)
    exact = [row for row in cpu.adam if row.bit_exact]
    best = {
        count: max((row for row in exact if row.threads == count), key=lambda r: r.mparams_per_s)
        for count in sorted({1, threads})
    }
    smallest = working_set_bytes(parameters)
    cache = machine.last_level_cache_bytes
    values: dict[str, Any] = {
        "machine": asdict(machine),
        "parameters": parameters,
        "repetitions": len(cpu.adam[0].seconds),
        "threads": threads,
        "working_set_bytes": (ADAM.reads * PARAMETER_BYTES) * parameters,
        "smallest_working_set_bytes": smallest,
        "beyond_last_level_cache": smallest > cache if cache else None,
        "bytes_per_parameter": {
            "read": ADAM.read_bytes,
            "written": ADAM.written_bytes,
            "write_allocate": ADAM.moved_bytes(streaming=False) - ADAM.counted_bytes,
            "total": ADAM.moved_bytes(streaming=False),
        },
        "vector_bytes": cpu.vector_bytes,
        "compared_with_golden": cpu.checked_values,
        "torch": cpu.torch,
        "fast_pays": cpu.fast_pays,
        "ceiling": _ceiling(fastest_loop),
        "copy_ceiling": _ceiling(fastest_copy),
        "cpu": [_row(row, ceiling) for row in cpu.adam],
        "bandwidth": [_bandwidth_row(row) for row in cpu.bandwidth],
        "paper": [dict(row) for row in PAPER_ROWS],
        "paper_ratio": PAPER_ROWS[1]["mparams_per_s"] / PAPER_ROWS[0]["mparams_per_s"],
    }
    if module is not None:
        values["module"] = module
        values["module_ratio"] = {
            str(count): module["mparams_per_s"] / row.mparams_per_s for count, row in best.items()
        }
    return values


def _exactness(row: dict[str, Any]) -> str:
    return {True: "yes", False: "no", None: ""}[row.get("bit_exact")]


def _spread(row: dict[str, Any]) -> str:
    """Half the distance of the quartiles, as a share of the median."""
    if "mparams_per_s_quartiles" not in row:
        return ""
    low, high = row["mparams_per_s_quartiles"]
    return f"± {(high - low) / 2 / row['mparams_per_s']:.1%}"


def _table(title: str, columns: tuple[str, ...]) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def tables(values: dict[str, Any]) -> list[Table]:
    """The updates beside each other, then the memory's bandwidth."""
    adam = _table(
        f"Adam in FP32, {values['parameters']:,} parameters, median of {values['repetitions']}",
        ("threads", "MP/s", "spread", "ceiling", "share", "exact"),
    )

    def add(row: dict[str, Any]) -> None:
        threads = row.get("threads")
        adam.add_row(
            row["name"],
            "" if threads is None else str(threads),
            f"{row['mparams_per_s']:.2f}",
            _spread(row),
            f"{row['ceiling_mparams_per_s']:.2f}",
            f"{row['efficiency']:.1%}",
            _exactness(row),
        )

    for row in values["cpu"]:
        add(row)
    module = values.get("module")
    if module is not None:
        add({**module, "name": f"simulated AXDIMM ({module['backend']})"})
    adam.add_section()
    for row in values["paper"]:
        add(row)

    bandwidth = _table(
        "Bandwidth of this machine's memory in the same run, GB/s",
        ("threads", "moved", "bytes a value", "without write-allocate"),
    )
    for row in values["bandwidth"]:
        bandwidth.add_row(
            row["name"],
            str(row["threads"]),
            f"{row['gb_per_s']:.1f}",
            str(row["moved_bytes_per_value"]),
            f"{row['counted_gb_per_s']:.1f}",
        )
    return [adam, bandwidth]


def notes(values: dict[str, Any]) -> list[str]:
    """What to know about the figures."""
    machine, ceiling, copies, traffic = (
        values[key] for key in ("machine", "ceiling", "copy_ceiling", "bytes_per_parameter")
    )
    lines = [
        f"{machine['cpu']}, {machine['cores']} cores for this process, load {machine['load']:.1f} "
        "before the run.",
        f"A parameter moves {traffic['total']} bytes: {traffic['read']} read, "
        f"{traffic['written']} written. p, m and v are read anyway, so no store allocates a line.",
        f"This machine's ceiling: {ceiling['gb_per_s']:.1f} GB/s measured ({ceiling['loop']}, "
        f"threads: {ceiling['threads']}) / {traffic['total']} bytes = "
        f"{ceiling['mparams_per_s']:.2f} MP/s; that of copies alone ({copies['loop']}, threads: "
        f"{copies['threads']}): {copies['gb_per_s']:.1f} GB/s, {copies['mparams_per_s']:.2f} MP/s. "
        "The paper divides by the theoretical bandwidth, which makes its share the smaller.",
    ]
    cache = machine["last_level_cache_bytes"] / _MIB
    sizes = (
        f"The arrays of a loop take {values['smallest_working_set_bytes'] / _MIB:,.0f} MiB (copy) "
        f"to {values['working_set_bytes'] / _MIB:,.0f} MiB (Adam)"
    )
    if values["beyond_last_level_cache"] is None:
        lines.append(f"{sizes}; the size of the last-level cache is not known.")
    elif values["beyond_last_level_cache"]:
        lines.append(f"{sizes}, the last-level cache at most {cache:,.0f} MiB.")
    else:
        lines.append(
            f"{sizes}, and the last-level cache up to {cache:,.0f} MiB: these may be figures of "
            "the cache. Give more --parameters."
        )
    width = values["vector_bytes"]
    lines.append(
        f"The kernel was compared with the golden model on {values['compared_with_golden']:,} "
        "parameters, special values among them, before it was timed: no bit differs. "
        + (f"Its vectors have {width} bytes." if width else "The compiler did NOT vectorise it.")
    )
    if not values["fast_pays"]:
        lines.append(
            "Fused multiply-adds and reordering, which would not be bit-exact, do not make it "
            "faster by more than the repetitions vary."
        )
    if not values["torch"]:
        from .frameworks import NO_TORCH

        lines.append(NO_TORCH + ".")
    if any(row["efficiency"] > 1 for row in values["cpu"]):
        lines.append(
            "A share above 100 % says that the kernel moves its bytes faster than any of the loops."
        )
    module = values.get("module")
    if module is None:
        return lines
    for count, ratio in values["module_ratio"].items():
        lines.append(
            f"The simulated module's throughput is {ratio:.2f} times that of this CPU on {count} "
            f"{'core' if count == '1' else 'cores'} (paper: {values['paper_ratio']:.2f} times, one "
            "core)."
        )
    module_gb_per_s = module["ceiling_mparams_per_s"] * traffic["total"] / 1e3
    lines.append(
        f"The memory here is {ceiling['gb_per_s'] / PAPER_HOST_GB_PER_S:.1f} times as fast as that "
        f"of the paper's host ({PAPER_HOST_GB_PER_S} GB/s) and "
        f"{ceiling['gb_per_s'] / module_gb_per_s:.1f} times as fast as the module's "
        f"({module_gb_per_s:.1f} GB/s)."
    )
    return lines
