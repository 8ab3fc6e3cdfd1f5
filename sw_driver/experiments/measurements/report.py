"""Report of the predictions of published measurements: tables, a page and a plot."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import join
from statistics import median
from typing import Any

from sw_driver.files import write_picture, write_whole
from sw_driver.report import Report, Table, Watch
from sw_driver.workload.loading import need_torch

from .predictions import GOOD, SPAN, Prediction, predict
from .rows import SHIPPED, Row, RowError, read_rows
from .steps import KINDS, LORA_RANK, gpu_of, is_range

__all__ = ["report"]

_INTRODUCTION = """\
# Held to measurements

For readers who ask how far predicted training steps are off. At the end you know the error of each
step that others measured and published, and what is fitted.

Each row of `{rows}` has a configuration, a metric, its
value and its source. This command writes the page; `--rows FILE.csv` reads rows of your own:

```
{command}
```

- **Error** is predicted over measured, less 1. A negative error of a rate is too slow; of a time or
  a memory, too little.
- **No prediction is adjusted to its row.** A GPU has its data sheet's rates, shares of them from
  published products, and one share that training sustains ({{py:mod}}`sw_driver.machine.gpus`).
  The products, kind *input*, count in no other line.
- **The shares are partly fitted.** Rows of llm-foundry, torchtune and DLPerf set the sustained
  shares of A100, H100 and V100. The shares of attention were chosen in view of them. Errors of
  these rows are smaller than those of unseen ones would be. The rest took no part.
- **Ranges**, marked *r*, are ratios of systems, single reports in issues and rows with an uncertain
  size. They lack facts: the same offload differs 1.3 times by the binding of cores alone. A range
  is met within a factor of {span:g}. Ranges count in no median.
- **Missing facts** are taken from the row's framework ([list](#what-is-assumed)). *FSDP* includes
  all data parallelism.
"""

_PICTURE = """\
![Predicted over measured](validation/validation.svg)

*Predicted over measured, both axes logarithmic. The band is 15 % on either side.*
"""

_MARKERS = "osD^vPX"
"""Markers of kinds in the plot."""

_ASSUMPTIONS = (
    "A peak of memory is that of tensors, without the CUDA context and gaps of the allocator, "
    "which torchtitan and DLPerf count.",
    "TFLOPS are those of products and attention, recomputation included.",
    "Element-wise operations are fused if the row names a compiler. Kernels of Megatron, NeMo and "
    "OneFlow fuse them, too; torchtune's tables say that all are compiled.",
    "torchtune computes the loss in 8 chunks in steps with checkpoints.",
    "Steps of llm-foundry have PyTorch's cross entropy. With its default, a fused one, the "
    "smallest, m01 and m20, come out 22 and 32 % too fast. The others are at most 7 % "
    "faster than here. Something else is missing there.",
    "Attention is fused, except for Megatron, OneFlow, any V100 and rows with math attention.",
    f"Adapters have the rank {LORA_RANK}. Plain bf16 means parameters in BF16.",
    "Hosts are those sold with a GPU. A row may give PCIe, the network of a host, and the number "
    "of drives, which share one x16 link.",
    "With context parallelism a GPU has samples of its own, of equal work.",
    "A GPT without layers and width has a width of 64 times its layers.",
)


def report(
    file: Path | None = None, *, folder: Path | None = None, watch: Watch = Watch()
) -> Report:
    """Predict the rows of a file, by default the shipped ones, and report the errors.

    With a ``folder``, ``validation.md`` is written and, unless no row counts in a median,
    ``validation/validation.svg``. Raises
    :class:`RowError` if no row can be predicted, ``TraceError`` without PyTorch, and ``OSError``
    for a file.
    """
    rows, bad = read_rows(file or SHIPPED)
    if rows:
        need_torch("a row's step", "captured")
    predictions, others = predict(rows, watch)
    left_out = bad + others
    if not predictions:
        name, reason = left_out[0]
        raise RowError(f"no row of {len(left_out)} can be predicted; {name}: {reason}")
    tables, texts = _tables(predictions), [f"{name} is left out: {why}." for name, why in left_out]
    made = Report(
        results=_results(predictions, left_out),
        parts=[*tables, *([] if file else texts)],
        notes=[*_impossible(predictions), _summary(predictions, left_out)],
        assumptions=_ASSUMPTIONS,
        complaints=texts if file else (),
    )
    if folder is None:
        return made
    folder.mkdir(parents=True, exist_ok=True)
    counted = [one for one in predictions if one.is_counted]
    pictures = []
    if counted:
        (folder / "validation").mkdir(exist_ok=True)
        pictures = [_draw(counted, folder / "validation" / "validation.svg")]
    page = folder / "validation.md"
    write_whole(page, _page(made, tables, texts, file, has_picture=bool(counted)))
    return replace(made, files=(page, *pictures))


def _tables(predictions: Sequence[Prediction]) -> list[Table]:
    columns: dict[str, Callable[[Prediction], str]] = {
        "id": lambda one: one.row.id,
        "model": lambda one: re.sub(r" ?\(.*", "", one.row.model),
        "on": lambda one: _machine(one.row),
        "metric": lambda one: _metric(one.row),
        "measured": lambda one: _number(*one.row.span),
        "predicted": lambda one: _number(one.value),
        "error": lambda one: f"{one.error:+.1%}{' r' * is_range(one.row)}",
    }
    by_kind = {kind: [one for one in predictions if one.kind == kind] for kind in KINDS}
    tables = [
        Table.of(kind, own, columns, words=(0, 1, 2, 3), is_dense=True)
        for kind, own in by_kind.items()
        if own
    ]
    times = [one for one in predictions if one.kind not in ("peak memory", "input")]
    by_source: dict[str, list[Prediction]] = {}
    for one in [one for one in predictions if one.kind != "input"]:
        by_source.setdefault(_source(one.row), []).append(one)
    tables.append(_errors("By kind", {**by_kind, "all times and rates": times}))
    tables.append(_errors("By source", by_source))
    return tables


def _errors(title: str, groups: Mapping[str, Sequence[Prediction]]) -> Table:
    rows = []
    for name, own in groups.items():
        errors = [abs(one.error) for one in own if one.is_counted or name == "input"]
        ranges = [one.is_good for one in own if is_range(one.row)]
        rows += [[
            name, str(len(own)),
            *([f"{median(errors):.1%}", f"{max(errors):.1%}"] if errors else ["", ""]),
            f"{sum(error <= GOOD for error in errors)} of {len(errors)}" if errors else "",
            f"{sum(ranges)} of {len(ranges)}" if ranges else "",
        ]] * bool(own)  # fmt: skip
    headings = title.split()[-1], "rows", "median", "largest", f"in {GOOD:.0%}", "ranges met"
    return Table(title=title, headings=headings, rows=rows)


def _summary(predictions: Sequence[Prediction], left_out: Sequence[object]) -> str:
    counted = [one for one in predictions if one.is_counted]
    parts = []
    for name, is_memory in (("times and rates", False), ("peaks of memory", True)):
        if own := [one for one in counted if (one.kind == "peak memory") == is_memory]:
            good = sum(one.is_good for one in own)
            middle = median(abs(one.error) for one in own)
            parts.append(
                f"{len(own)} {name}: median error {middle:.1%}, {good} of {len(own)} at most "
                f"{GOOD:.0%} off"
            )
    rows = f"{len(predictions)} of {len(predictions) + len(left_out)} rows are predicted"
    if left_out:
        rows += f", {len(left_out)} left out"
    return f"{'; '.join([rows, *parts])}."


def _impossible(predictions: Sequence[Prediction]) -> list[str]:
    return [
        f"{one.row.id} was measured beyond what public measurements of {gpu_of(one.row)} allow: "
        f"its products alone, at the rate of large ones, give {_number(one.bound)} {one.row.unit}."
        for one in predictions
        if not one.is_possible
    ]


def _results(
    predictions: Sequence[Prediction], left_out: Sequence[tuple[str, str]]
) -> dict[str, Any]:
    return {
        "rows": [
            {
                "id": one.row.id, "kind": one.kind, "metric": one.row.metric, "unit": one.row.unit,
                "measured": one.row.span, "predicted": one.value, "error": one.error,
                "is_range": is_range(one.row), "is_good": one.is_good, "source": one.row.source,
            }
            for one in predictions
        ],
        "left_out": [{"id": name, "reason": reason} for name, reason in left_out],
    }  # fmt: skip


def _page(
    made: Report,
    tables: Sequence[Table],
    left_out: Sequence[str],
    file: Path | None,
    *,
    has_picture: bool,
) -> str:
    command = "nearmem validate training --out docs"
    if file:
        command = join(["nearmem", "validate", "training", "--rows", str(file), "--out", "DIR"])
    rows = str(file or "sw_driver/experiments/measurements/training.csv")
    sections = [_INTRODUCTION.format(span=SPAN, command=command, rows=rows), *made.notes]
    sections += [_PICTURE] * has_picture
    for table in tables:
        sections += [f"## {table.title}", table.markdown, table.caption]
    if left_out:
        sections += ["## Left out", "\n".join(f"- {text}" for text in left_out)]
    sections.append(replace(made, title="", parts=(), notes=()).markdown)
    return "\n\n".join(section.strip() for section in sections if section) + "\n"


def _machine(row: Row) -> str:
    gpus = row.number("gpus") or 1
    return f"{gpus} x {gpu_of(row)}" if gpus > 1 else gpu_of(row)


def _metric(row: Row) -> str:
    """Return a short name of a metric with its unit."""
    for pattern, text in {"memory": "peak {}", "speedup": "speedup", "share": "share, {}",
                          "iter": "{}/step", "gpu": "{}/GPU"}.items():  # fmt: skip
        if pattern in row.metric.lower():
            return text.format(row.unit)
    return row.unit


def _number(low: float, high: float | None = None) -> str:
    if high not in (None, low):
        return f"{_number(low)} to {_number(high)}"
    return f"{low:,.0f}" if low >= 1000 else f"{low:.3g}"


def _source(row: Row) -> str:
    """Return the repository, paper or site of a row's source."""
    address = row.source.partition(" ")[0].rstrip(":,;")
    if match := re.match(r"https?://([^/]+)/(.*)", address):
        site, path = match[1].removeprefix("www."), match[2].split("/")
        return "/".join(path[:2]) if site == "github.com" else "/".join([site, *path[:2]])
    return address or "unknown"


def _draw(predictions: Sequence[Prediction], path: Path) -> Path:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 6), layout="constrained")
    axes = figure.subplots()
    for kind, marker in zip(KINDS, _MARKERS, strict=False):
        points = [one for one in predictions if one.kind == kind]
        if points:
            measured = [sum(one.row.span) / 2 for one in points]
            axes.plot(measured, [one.value for one in points], marker, label=kind, alpha=0.8)
    ends = [min(min(one.value, one.row.span[0]) for one in predictions) / 2,
            max(max(one.value, one.row.span[1]) for one in predictions) * 2]  # fmt: skip
    low, high = ([factor * end for end in ends] for factor in (0.85, 1.15))
    axes.fill_between(ends, low, high, color="#bab0ac", alpha=0.4, label="within 15 %")
    axes.plot(ends, ends, color="#666666", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    axes.set_xlabel("measured, in the unit of the row")
    axes.set_ylabel("predicted")
    axes.legend(frameon=False)
    return write_picture(path, figure)
