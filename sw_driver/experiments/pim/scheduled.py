"""Training of the small network by the paper's runtime.

The first step is profiled on the host; operations are ranked and candidates for the PIMs chosen. In
later steps the scheduler places each operation on the pools, a core or the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Literal, NamedTuple

import numpy as np

from sw_driver.device.timeline import Timeline
from sw_driver.pim.descriptor import Opcode, Work
from sw_driver.pim.device import Pim
from sw_driver.pim.opencl import CommandQueue, Context, Event, Kernel, Platform, host_ns
from sw_driver.pim.pass_cycles import work_cycles
from sw_driver.pim.placing import PlacedTensor, work_on
from sw_driver.pim.runtime import Scheduler
from sw_driver.predict.pim.core import KERNELS, kernel_cycles
from sw_driver.report import Report, Table, Watch, count
from sw_driver.system.hetero_pim.costs import CORE_CYCLES, OFFER_CYCLES
from sw_driver.system.hetero_pim.ranking import Profiled, chosen, ranking

from . import training as cnn

__all__ = ["Ran", "ScheduledRun", "draw", "modelled_cycles", "report", "train"]

_LINE_BYTES = 64
_READ_CYCLES = 40
"""Cycles of a core's read, as in the system's model."""
_COPY_WORDS = 14
"""Arguments of the kernel ``copy``, the last ones of a recursive gradient."""


class Ran(NamedTuple):
    """Place and time of an operation, in cycles of the pool; step 0 is the profiled one."""

    step: int
    operation: str
    place: str
    begin_cycle: int
    end_cycle: int


@dataclass(frozen=True, kw_only=True)
class ScheduledRun:
    """Results of the profiled step and the scheduled steps."""

    ranking: list[Profiled]
    """Operations of a step by rank, with the paper's CPU: ns, and accesses in lines of 64 bytes."""
    candidates: list[str]
    ran: list[Ran]
    losses: list[float]
    """Mean loss of the samples, by step."""
    modelled: dict[tuple[str, str], float]
    """Cycles by the system's model of an operation on a device, where it has them."""
    bounds: list[int]
    """Cycle in which the profiled step began, then the cycle in which each step ended."""
    compared_tensors: int
    """Number of compared tensors in all steps; parameters, which steps overwrite, at the end."""
    wrong_tensors: list[str]
    """Names of tensors that differ in a bit from the golden model's."""


class _Step(NamedTuple):
    """Tensors and operations of a step."""

    tensors: dict[str, PlacedTensor]
    works: dict[str, list[Work]]
    """Works of convolutions and matrix products, by the name of the result."""
    kernels: list[Kernel]
    """Operations, with TensorFlow's names, in program order."""


def _placed(context: Context, shapes: dict[str, tuple[int, ...]]) -> dict[str, PlacedTensor]:
    """Place tensors; filters have rows and columns first in memory, as in TensorFlow."""
    tensors = {}
    for name, shape in shapes.items():
        is_turned = name.endswith("filters")
        tensors[name] = context.buffer(name, shape[::-1] if is_turned else shape)
        if is_turned:
            tensors[name] = tensors[name].view(3, 2, 0, 1)
    return tensors


def _step(context: Context, parameters: dict[str, PlacedTensor], *, recursive: bool) -> _Step:
    """Return a step on the shared ``parameters``, with its own other tensors."""
    samples, classes, filters = cnn.SAMPLES, cnn.CLASSES, cnn.FILTERS
    shapes = cnn.OTHERS | cnn.ACTIVATIONS
    shapes |= {f"d{name}": shape for name, shape in (cnn.ACTIVATIONS | cnn.PARAMETERS).items()}
    ts = parameters | _placed(context, shapes | {"products": cnn.PARAMETERS["filters"]})
    kernel, add, turned = context.kernel, partial(cnn.product, context.pim.config), cnn.turned
    count = samples * cnn.ROWS * cnn.ROWS
    y, dy, scores, dscores = (ts[n] for n in ("convolved", "dconvolved", "scores", "dscores"))
    weights, pooled = ts["weights"], ts["pooled"]
    backwards = weights[:, :, ::-1, ::-1]
    works = {
        "convolved": [add(turned(ts["images"]), ts["filters"], turned(y))],
        "scores": [add(turned(pooled), turned(weights), scores)],
        "dpooled": [add(dscores, backwards, turned(ts["dpooled"]), pad=cnn.POOLED - 1)],
        "dweights": [add(pooled, turned(dscores), ts["dweights"])],
        "dfilters": [add(ts["images"], dy, turned(ts["products"]))],
    }
    planes = filters * cnn.PLANES[0], *cnn.PLANES[1:]
    loss = scores, ts["labels"], ts["losses"], dscores, samples, classes, classes, 1, 1 / samples
    copied, target = ts["products"], ts["dfilters"]
    copy = [copied, target, *copied.shape, *copied.strides, *target.strides]

    def added(x: PlacedTensor, bias: PlacedTensor, *strides: int) -> list[Work]:
        repeated = replace(bias, shape=x.shape, strides=strides)
        return [work_on(Opcode.ADD, a=x, b=repeated, result=x)]

    rows = replace(scores, shape=(samples, classes), strides=(classes, 1))
    kernels = [
        kernel("Conv2D", works=works["convolved"]),
        kernel("BiasAdd", works=added(y.lines, ts["filter_bias"], 1, 0)),
        kernel("Relu", "relu", (y, y, filters * count), "rw"),
        kernel("MaxPool", "max_pool", (y, pooled, *planes), "rb"),
        kernel("MatMul", works=works["scores"]),
        kernel("BiasAdd_1", works=added(rows, ts["bias"], 0, 1)),
        kernel("SoftmaxCrossEntropy", "softmax_cross_entropy", loss, "rrwb"),
        kernel("MatMul_1", works=works["dpooled"]),
        kernel("MatMul_2", works=works["dweights"]),
        kernel("MaxPoolGrad", "max_pool_gradient", (y, ts["dpooled"], dy, *planes), "rrw"),
        kernel("ReluGrad", "relu_gradient", (y, dy, dy, filters * count), "rrw"),
        kernel("BiasAddGrad", "bias_gradient", (dy, ts["dfilter_bias"], 1, filters, count), "rw"),
        kernel("BiasAddGrad_1", "bias_gradient", (dscores, ts["dbias"], samples, classes, 1), "rw"),
    ]
    name, gradient = "Conv2DBackpropFilter", works["dfilters"]
    if recursive:
        copies = [*2 * [0] * len(copy), *copy]
        kernels.append(kernel(name, "conv2d_backprop_filter", copies, "rw", works=gradient))
    else:
        kernels.append(kernel(f"{name}/Conv", works=gradient))
        kernels.append(kernel(f"{name}/copy", "copy", copy, "rw"))
    alpha_bits = int((-cnn.RATE).view(np.uint32))
    for number, name in enumerate(cnn.PARAMETERS):
        p, g = _flat(ts[name]), _flat(ts[f"d{name}"])
        work = work_on(Opcode.SCALEADD, a=g, b=p, result=p, alpha_bits=alpha_bits)
        suffix = f"_{number}" if number else ""
        kernels.append(kernel(f"ApplyGradientDescent{suffix}", works=[work]))
    return _Step(ts, works, kernels)


def modelled_cycles(kernel: Kernel, device: str) -> float | None:
    """Return the cycles of a kernel by the model of whole networks; None if it has none there."""
    config, command = kernel.context.pim.config, kernel.on_core()
    name, arguments = command.kernel, tuple(command.arguments)
    works = sum(work_cycles(work, config, config.banks, 1) for work in kernel.works)
    if device == "pools":
        return OFFER_CYCLES + works
    if device != "cores" or kernel.command is None:
        return None
    if kernel.works:
        name, arguments = "copy", arguments[-_COPY_WORDS:]
        works += (OFFER_CYCLES + CORE_CYCLES) * len(kernel.works)
    if name not in KERNELS:
        return None
    return works + kernel_cycles(name, arguments, read_cycles=_READ_CYCLES)


def _flat(tensor: PlacedTensor) -> PlacedTensor:
    return replace(tensor, shape=(1, tensor.elements), strides=(tensor.elements, 1))


def train(
    pim: Pim,
    batches: Sequence[cnn.Batch],
    *,
    principle: Literal["literal", "earliest"] = "earliest",
    launch_ns: int = 0,
    recursive: bool = True,
    pipeline: bool = True,
) -> ScheduledRun:
    """Train a step on each of ``batches``; profile the first step on the host.

    Parameters
    ----------
    launch_ns: overhead of an operation on the host, in ns.
    recursive: True for the filters' gradient as one kernel; False for two kernels, the convolution
        and the change of layout.
    pipeline: True if operations may begin before the previous step has ended.
    """
    context = Context(Platform(pim), cpu_ns=partial(host_ns, launch_ns=launch_ns))
    parameters = _placed(context, cnn.PARAMETERS)
    host = CommandQueue(context, "cpu")
    for name, values in cnn.parameters_at_first().items():
        host.enqueue_write(parameters[name], values)
    steps = [_step(context, parameters, recursive=recursive) for _ in batches]
    profile = [
        Profiled(
            operation=kernel.name,
            time=float(context.cpu_ns(kernel)),
            accesses=-(-kernel.nbytes // _LINE_BYTES),
            kind=kernel.name.split("_")[0],
        )
        for kernel in steps[0].kernels
    ]
    candidates = [candidate.operation for candidate in chosen(profile)]
    scheduler = Scheduler(context, candidates, principle=principle)
    queued: list[list[Event]] = []
    start = pim.transport.cycles()
    for step, (images, labels) in zip(steps, batches, strict=True):
        commands = scheduler if queued else host
        inputs = {"images": images, "labels": labels.astype(np.uint32).view(np.float32)}
        for name, values in inputs.items():
            commands.enqueue_write(step.tensors[name], values.reshape(cnn.OTHERS[name]))
        queued.append([commands.enqueue_kernel(kernel) for kernel in step.kernels])
        if commands is host:
            host.finish()
        elif not pipeline:
            scheduler.enqueue_barrier()
    scheduler.finish()
    losses, wrong, compared = _compared(context, steps, batches)
    return ScheduledRun(
        ranking=ranking(profile),
        candidates=candidates,
        ran=[
            Ran(step, event.label, event.place, event.running, event.ended)
            for step, events in enumerate(queued)
            for event in events
        ],
        losses=losses,
        modelled={
            (kernel.name, device): cycles
            for kernel in steps[0].kernels
            for device in ("pools", "cores")
            if device in kernel.devices
            if (cycles := modelled_cycles(kernel, device)) is not None
        },
        bounds=[start, *(max(event.ended for event in events) for events in queued)],
        wrong_tensors=wrong,
        compared_tensors=compared,
    )


def _compared(
    context: Context, steps: Sequence[_Step], batches: Sequence[cnn.Batch]
) -> tuple[list[float], list[str], int]:
    """Return the losses, the names of wrong tensors, and the number of compared tensors."""
    memory = np.zeros(context.buffer("the end", (1,)).address_bytes, np.uint8)
    for name, values in cnn.parameters_at_first().items():
        cnn.seen(memory, steps[0].tensors[name])[...] = values
    losses, wrong, compared = [], [], 0
    for number, ((tensors, works, _), (images, labels)) in enumerate(
        zip(steps, batches, strict=True)
    ):
        cnn.seen(memory, tensors["images"])[...] = images.reshape(cnn.OTHERS["images"])
        cnn.seen(memory, tensors["labels"]).view(np.uint32)[...] = labels
        cnn.golden_step(memory, tensors, works)
        for name, tensor in tensors.items():
            if name in cnn.PARAMETERS and number < len(steps) - 1:
                continue  # overwritten since; a mistake shows in the next step
            values = context.pim.read_tensor(tensor)
            compared += 1
            if values.tobytes() != cnn.seen(memory, tensor).tobytes():
                wrong.append(f"{name} of step {number}")
            if name == "losses":
                losses.append(float(values.mean()))
    return losses, wrong, compared


def report(
    device: Pim,
    steps: int,
    *,
    principle: Literal["literal", "earliest"] = "earliest",
    launch_ns: int = 0,
    folder: Path | None = None,
    watch: Watch = Watch(),
) -> Report:
    """Train ``steps`` by the runtime, after a profiled step; report the place of each operation.

    ``folder`` receives ``timeline.svg`` and ``timeline.json``; other parameters are those of
    :func:`train`. The report is not good if a tensor differs from the golden model's.
    """
    watch.say("training")
    run = train(device, cnn.digit_batches(steps + 1), principle=principle, launch_ns=launch_ns)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    files = [folder / name for name in ("timeline.svg", "timeline.json")] if folder else []
    for path in files:
        draw(run, device).write(path)
    results = {
        "ranking": [
            {
                "operation": ranked.operation,
                "time_ns": ranked.time,
                "accesses": ranked.accesses,
                "chosen": ranked.operation in run.candidates,
            }
            for ranked in run.ranking
        ],
        "operations": [ran._asdict() for ran in run.ran],
        "steps": [
            {"loss": loss, "cycles": end - before}
            for loss, (before, end) in zip(run.losses, pairwise(run.bounds), strict=True)
        ],
    }
    columns: dict[str, Callable[[Profiled], str]] = {
        "operation": lambda ranked: ranked.operation,
        "ns on CPU": lambda ranked: count(int(ranked.time)),
        "accesses": lambda ranked: count(ranked.accesses),
        "candidate": lambda ranked: "yes" if ranked.operation in run.candidates else "",
        "runs: cycles": lambda ranked: _places(run, ranked.operation),
    }
    title = "Operations by rank, with devices, number of runs and cycles"
    kinds = _kinds(run)
    results["model"] = [dict(zip(_KIND_COLUMNS, row, strict=True)) for row in kinds]
    errors = [abs(error) for *_, error in kinds]
    beside = [[*row[:2], *map(count, row[2:5]), f"{row[5]:+.0%}"] for row in kinds]
    tables = [Table.of(title, run.ranking, columns, words=(0, 4))]
    note = "No operation ran on pools or cores after step 0."
    if errors:
        note = (
            "The last table has the model of whole networks beside RTL, in median cycles of a kind "
            f"of operation: its error is {median(errors):.0%} in the median, {max(errors):.0%} at "
            "most."
        )
        tables.append(Table(title="The model beside RTL", headings=_KIND_COLUMNS, rows=beside))
    return cnn.compared_report(
        device,
        results,
        run.compared_tensors,
        run.wrong_tensors,
        tables=tables,
        notes=[
            "The first table has a row for each step; step 0 is profiled on the CPU. Losses are "
            "from before the step's update; cycles count from the end of the previous step. The "
            "second table has a row for each operation of a step: its time on the CPU, its memory "
            "accesses, whether it is a candidate for the PIMs, and, by device, the number of runs "
            "after step 0 and the cycles of the last one.",
            note,
        ],
        workload={"steps": steps, "principle": principle, "launch_ns": launch_ns},
        files=files,
    )


_KIND_COLUMNS = ("kind", "device", "runs", "RTL", "model", "error")


def _kinds(run: ScheduledRun) -> list[tuple[str, str, int, float, float, float]]:
    """Return rows of kinds of operations by device, with cycles in RTL and by the model."""
    both: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for ran in run.ran:
        device = "cores" if ran.place.startswith("core ") else ran.place
        if ran.step and (ran.operation, device) in run.modelled:
            cycles = ran.end_cycle - ran.begin_cycle, run.modelled[ran.operation, device]
            both.setdefault((ran.operation.split("_")[0], device), []).append(cycles)
    rows = []
    for (kind, device), cycles in sorted(both.items()):
        rtl, model = map(median, zip(*cycles, strict=True))
        rows.append((kind, device, len(cycles), rtl, model, model / rtl - 1))
    return rows


def _places(run: ScheduledRun, operation: str) -> str:
    """Return an operation's number of runs and the cycles of the last run, by device."""
    mine = [ran for ran in run.ran if ran.step and ran.operation == operation]
    cycles: dict[str, list[int]] = {}
    for ran in sorted(mine, key=lambda ran: ran.place):
        device = "cores" if ran.place.startswith("core ") else ran.place
        cycles.setdefault(device, []).append(ran.end_cycle - ran.begin_cycle)
    return ", ".join(f"{name} {len(runs)}: {count(runs[-1])}" for name, runs in cycles.items())


def draw(run: ScheduledRun, pim: Pim) -> Timeline:
    """Return a timeline of the scheduled steps' operations.

    Each core and the host have a track. The pools have one for each operation that runs at once.
    """
    timeline = Timeline(backend="the runtime", fabric_mhz=pim.config.clock_mhz)
    shown = sorted((ran for ran in run.ran if ran.step), key=lambda ran: ran.begin_cycle)
    start = run.bounds[1]
    for place in sorted({ran.place for ran in shown} - {"pools"}):
        timeline.track(place)
    for ran in shown:
        track = ran.place
        if track == "pools":
            number = timeline.lane(track, ran.begin_cycle, ran.end_cycle)
            track += f", {number + 1}" if number else ""
            timeline.track(track)
        begin, end = ran.begin_cycle - start, ran.end_cycle - start
        timeline.add(track, ran.operation, begin, end, f"step {ran.step}")
    return timeline
