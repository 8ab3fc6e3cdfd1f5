"""Training of the small network by the paper's runtime: a step is profiled on the host, operations
are ranked and chosen, and in the steps after it each runs where the scheduler sends it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from sw_driver.device.timeline import Timeline
from sw_driver.pim.descriptor import Opcode, Work
from sw_driver.pim.device import Pim
from sw_driver.pim.opencl import CommandQueue, Context, Event, Kernel, Platform, host_ns
from sw_driver.pim.placing import PlacedTensor, work_on
from sw_driver.pim.runtime import Scheduler
from sw_driver.report import Report, Table, Watch, count
from sw_driver.system.hetero_pim.ranking import Profiled, chosen, ranking

from . import training as cnn

__all__ = ["Ran", "ScheduledRun", "draw", "report", "train"]

_LINE_BYTES = 64


class Ran(NamedTuple):
    """An operation of a step, of which 0 is the profiled one, with where and when it ran, in cycles
    of the pool."""

    step: int
    operation: str
    place: str
    begin_cycle: int
    end_cycle: int


@dataclass(frozen=True, kw_only=True)
class ScheduledRun:
    """Steps by the runtime, behind the one that was profiled."""

    ranking: list[Profiled]
    """The operations of a step, on the paper's CPU: ns, and lines of 64 bytes."""
    candidates: list[str]
    ran: list[Ran]
    losses: list[float]
    """Mean over the samples, of all steps."""
    bounds: list[int]
    """The cycles at which the first step, which was profiled, began, and at which each was over."""
    compared_tensors: int
    """Tensors of all steps that were compared: parameters, which a step overwrites, at the end."""
    wrong_tensors: list[str]
    """Tensors that are not, bit for bit, the golden model's."""


class _Step(NamedTuple):
    """What a step needs."""

    tensors: dict[str, PlacedTensor]
    works: dict[str, list[Work]]
    """The products, by what they compute."""
    kernels: list[Kernel]
    """The operations by TensorFlow's names, in the order of the program."""


def _placed(context: Context, shapes: dict[str, tuple[int, ...]]) -> dict[str, PlacedTensor]:
    """Tensors; filters have rows and columns first in memory, as in TensorFlow."""
    found = {}
    for name, shape in shapes.items():
        is_turned = name.endswith("filters")
        found[name] = context.buffer(name, shape[::-1] if is_turned else shape)
        if is_turned:
            found[name] = found[name].view(3, 2, 0, 1)
    return found


def _step(context: Context, of: dict[str, PlacedTensor], *, recursive: bool) -> _Step:
    """Another step on the parameters ``of`` all."""
    samples, classes, filters = cnn.SAMPLES, cnn.CLASSES, cnn.FILTERS
    shapes = cnn.OTHERS | cnn.ACTIVATIONS
    shapes |= {f"d{name}": each for name, each in (cnn.ACTIVATIONS | cnn.PARAMETERS).items()}
    of = of | _placed(context, shapes | {"products": cnn.PARAMETERS["filters"]})
    kernel, add, turned = context.kernel, partial(cnn.product, context.pim.config), cnn.turned
    count = samples * cnn.ROWS * cnn.ROWS
    y, dy, scores, dscores = (of[n] for n in ("convolved", "dconvolved", "scores", "dscores"))
    weights, pooled = of["weights"], of["pooled"]
    backwards = weights[:, :, ::-1, ::-1]
    works = {
        "convolved": [add(turned(of["images"]), of["filters"], turned(y))],
        "scores": [add(turned(pooled), turned(weights), scores)],
        "dpooled": [add(dscores, backwards, turned(of["dpooled"]), pad=cnn.POOLED - 1)],
        "dweights": [add(pooled, turned(dscores), of["dweights"])],
        "dfilters": [add(of["images"], dy, turned(of["products"]))],
    }
    planes = filters * cnn.PLANES[0], *cnn.PLANES[1:]
    loss = scores, of["labels"], of["losses"], dscores, samples, classes, classes, 1, 1 / samples
    copied, target = of["products"], of["dfilters"]
    copy = [copied, target, *copied.shape, *copied.strides, *target.strides]

    def added(x: PlacedTensor, bias: PlacedTensor, *strides: int) -> list[Work]:
        repeated = replace(bias, shape=x.shape, strides=strides)
        return [work_on(Opcode.ADD, a=x, b=repeated, result=x)]

    rows = replace(scores, shape=(samples, classes), strides=(classes, 1))
    found = [
        kernel("Conv2D", works=works["convolved"]),
        kernel("BiasAdd", works=added(y.lines, of["filter_bias"], 1, 0)),
        kernel("Relu", "relu", (y, y, filters * count), "rw"),
        kernel("MaxPool", "max_pool", (y, pooled, *planes), "rb"),
        kernel("MatMul", works=works["scores"]),
        kernel("BiasAdd_1", works=added(rows, of["bias"], 0, 1)),
        kernel("SoftmaxCrossEntropy", "softmax_cross_entropy", loss, "rrwb"),
        kernel("MatMul_1", works=works["dpooled"]),
        kernel("MatMul_2", works=works["dweights"]),
        kernel("MaxPoolGrad", "max_pool_gradient", (y, of["dpooled"], dy, *planes), "rrw"),
        kernel("ReluGrad", "relu_gradient", (y, dy, dy, filters * count), "rrw"),
        kernel("BiasAddGrad", "bias_gradient", (dy, of["dfilter_bias"], 1, filters, count), "rw"),
        kernel("BiasAddGrad_1", "bias_gradient", (dscores, of["dbias"], samples, classes, 1), "rw"),
    ]
    name, gradient = "Conv2DBackpropFilter", works["dfilters"]
    if recursive:
        copies = [*2 * [0] * len(copy), *copy]
        found.append(kernel(name, "conv2d_backprop_filter", copies, "rw", works=gradient))
    else:
        found.append(kernel(f"{name}/Conv", works=gradient))
        found.append(kernel(f"{name}/copy", "copy", copy, "rw"))
    alpha_bits = int((-cnn.RATE).view(np.uint32))
    for number, name in enumerate(cnn.PARAMETERS):
        p, g = (_flat(of[each]) for each in (name, f"d{name}"))
        work = work_on(Opcode.SCALEADD, a=g, b=p, result=p, alpha_bits=alpha_bits)
        suffix = f"_{number}" if number else ""
        found.append(kernel(f"ApplyGradientDescent{suffix}", works=[work]))
    return _Step(of, works, found)


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
    """Trains on ``batches``, a step each, of which the first is profiled on the host.

    Parameters
    ----------
    launch_ns: what an operation takes on the host beside its computing.
    recursive: whether the gradient of the filters is one kernel, or its convolution and its change
        of layout are two.
    pipeline: whether operations of a step may begin before all of the one before it have ended.
    """
    context = Context(Platform(pim), cpu_ns=partial(host_ns, launch_ns=launch_ns))
    parameters = _placed(context, cnn.PARAMETERS)
    host = CommandQueue(context, "cpu")
    for name, values in cnn.parameters_at_first().items():
        host.enqueue_write(parameters[name], values)
    steps = [_step(context, parameters, recursive=recursive) for _ in batches]
    profile = [
        Profiled(
            operation=each.name,
            time=float(context.cpu_ns(each)),
            accesses=-(-each.nbytes // _LINE_BYTES),
            kind=each.name.split("_")[0],
        )
        for each in steps[0].kernels
    ]
    candidates = [each.operation for each in chosen(profile)]
    scheduler = Scheduler(context, candidates, principle=principle)
    queued: list[list[Event]] = []
    start = pim.transport.cycles()
    for step, (images, labels) in zip(steps, batches, strict=True):
        commands = scheduler if queued else host
        inputs = {"images": images, "labels": labels.astype(np.uint32).view(np.float32)}
        for name, values in inputs.items():
            commands.enqueue_write(step.tensors[name], values.reshape(cnn.OTHERS[name]))
        queued.append([commands.enqueue_kernel(each) for each in step.kernels])
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
            Ran(step, each.label, each.place, each.running, each.ended)
            for step, events in enumerate(queued)
            for each in events
        ],
        losses=losses,
        bounds=[start, *(max(each.ended for each in events) for events in queued)],
        wrong_tensors=wrong,
        compared_tensors=compared,
    )


def _compared(
    context: Context, steps: Sequence[_Step], batches: Sequence[cnn.Batch]
) -> tuple[list[float], list[str], int]:
    """The losses, tensors that are not the golden model's, and how many were compared."""
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
                continue  # what it was then is overwritten, and shows in the next step's
            found = context.pim.read_tensor(tensor)
            compared += 1
            if found.tobytes() != cnn.seen(memory, tensor).tobytes():
                wrong.append(f"{name} of step {number}")
            if name == "losses":
                losses.append(float(found.mean()))
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
    """Train so many steps by the runtime, behind one that is profiled; return what ran where.

    ``folder``: for ``timeline.svg`` and ``timeline.json``; others are of :func:`train`. The report
    is not good if a tensor is not the golden model's.
    """
    watch.say("training")
    run = train(device, cnn.digit_batches(steps + 1), principle=principle, launch_ns=launch_ns)
    files = [folder / name for name in ("timeline.svg", "timeline.json")] if folder else []
    for path in files:
        draw(run, device).write(path)
    results = {
        "ranking": [
            {
                "operation": each.operation,
                "time_ns": each.time,
                "accesses": each.accesses,
                "chosen": each.operation in run.candidates,
            }
            for each in run.ranking
        ],
        "operations": [each._asdict() for each in run.ran],
        "steps": [
            {"loss": loss, "cycles": end - before}
            for loss, (before, end) in zip(run.losses, pairwise(run.bounds), strict=True)
        ],
    }
    columns: dict[str, Callable[[Profiled], str]] = {
        "operation": lambda each: each.operation,
        "ns on CPU": lambda each: count(int(each.time)),
        "accesses": lambda each: count(each.accesses),
        "chosen": lambda each: "yes" if each.operation in run.candidates else "",
        "ran on": lambda each: _places(run, each.operation),
    }
    title = "Operations by rank, and where they ran: times, cycles"
    return cnn.compared_report(
        device,
        results,
        run.compared_tensors,
        run.wrong_tensors,
        tables=[Table.of(title, run.ranking, columns, words=(0, 4))],
        notes=[
            "A row of the first table is a step, of which step 0 is profiled on the CPU: its loss, "
            "before it changes the parameters, and its cycles, from the end of the step before. A "
            "row of the second is an operation of a step: what it takes on the CPU, its accesses "
            "to memory, whether it is a candidate for the PIMs, and how often it ran on which "
            "device behind step 0, with the cycles of the last time.",
        ],
        workload={"steps": steps, "principle": principle, "launch_ns": launch_ns},
        files=files,
    )


def _places(run: ScheduledRun, operation: str) -> str:
    """Return how often an operation ran where, and its cycles there the last time."""
    mine = [each for each in run.ran if each.step and each.operation == operation]
    cycles: dict[str, list[int]] = {}
    for each in sorted(mine, key=lambda each: each.place):
        device = "cores" if each.place.startswith("core ") else each.place
        cycles.setdefault(device, []).append(each.end_cycle - each.begin_cycle)
    return ", ".join(f"{name} {len(of)}: {count(of[-1])}" for name, of in cycles.items())


def draw(run: ScheduledRun, pim: Pim) -> Timeline:
    """When each operation of the scheduled steps ran, a track for each core, for the host, and as
    many for the pools as they had operations at once."""
    timeline = Timeline(backend="the runtime", fabric_mhz=pim.config.clock_mhz)
    shown = sorted((each for each in run.ran if each.step), key=lambda each: each.begin_cycle)
    start, pools = run.bounds[1], list[int]()
    for place in sorted({each.place for each in shown} - {"pools"}):
        timeline.track(place)
    for each in shown:
        track = each.place
        if track == "pools":
            number = next((n for n, end in enumerate(pools) if end <= each.begin_cycle), len(pools))
            pools[number : number + 1] = [each.end_cycle]
            track += f", {number + 1}" if number else ""
            timeline.track(track)
        begin, end = each.begin_cycle - start, each.end_cycle - start
        timeline.add(track, each.operation, begin, end, f"step {each.step}")
    return timeline
