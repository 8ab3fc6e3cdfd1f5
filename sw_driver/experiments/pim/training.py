"""Training of a small network by cores and pools, without the host during a step.

The network has a convolution with bias, ReLU and max pooling, and a fully connected layer with
softmax and cross-entropy. The update is gradient descent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from golden.pim import Descriptor, compute, kernels
from golden.pim.arithmetic import place
from golden.rules import reference
from hw.pim.config import BEAT_BYTES, PimConfig, configure
from sw_driver.experiments.training.data import load_split_digits
from sw_driver.files import write_picture
from sw_driver.report import Report, Table, Watch, count, share

from ...pim.cores import KernelCounters, offset_in
from ...pim.descriptor import ELEMENT_BYTES, Opcode, Work
from ...pim.device import Pim
from ...pim.placing import PlacedTensor, StackMemory, work_on
from ...pim.planning import planned
from ...pim.programs import WINDOW_BYTES, Command, Firmware, Window, work_slots
from ...pim.ring import driver_place

__all__ = [
    "ACTIVATIONS",
    "CLASSES",
    "FILTERS",
    "OTHERS",
    "PARAMETERS",
    "PLANES",
    "POOLED",
    "RATE",
    "ROWS",
    "SAMPLES",
    "Batch",
    "TrainedStep",
    "Training",
    "compared_report",
    "digit_batches",
    "golden_step",
    "parameters_at_first",
    "product",
    "report",
    "seen",
    "training_config",
    "turned",
]

SAMPLES, FILTERS, CLASSES = 4, 4, 10
"""Sizes of a step; cores beyond the number of filters have no work."""
SIZE, FILTER, _WINDOW = 8, 5, 2
ROWS = SIZE - FILTER + 1
POOLED = ROWS // _WINDOW
_POOLING = kernels.Pooling(
    height=ROWS,
    width=ROWS,
    rows=POOLED,
    columns=POOLED,
    window_height=_WINDOW,
    window_width=_WINDOW,
    stride=_WINDOW,
)
PLANES = SAMPLES, ROWS, ROWS, POOLED, POOLED, _WINDOW, _WINDOW, _WINDOW, 0, 0
RATE, DECAY = np.float32(0.25), np.float32(0)

PARAMETERS = {
    "filters": (FILTERS, 1, FILTER, FILTER),
    "filter_bias": (FILTERS,),
    # The weights of a filter's features are contiguous, since they belong to one core.
    "weights": (FILTERS, CLASSES, POOLED, POOLED),
    "bias": (CLASSES,),
}
ACTIVATIONS = {
    "convolved": (FILTERS, SAMPLES, ROWS, ROWS),
    "pooled": (FILTERS, SAMPLES, POOLED, POOLED),
    "scores": (SAMPLES, CLASSES, 1, 1),
}
OTHERS = {
    "images": (1, SAMPLES, SIZE, SIZE),
    "labels": (SAMPLES,),
    "losses": (SAMPLES,),
}


Batch = tuple[NDArray[np.float32], NDArray[np.int64]]
"""Images of 8 x 8, one for each sample of a step, and their digits."""


def training_config(cores: int, **settings: Any) -> PimConfig:
    """Return the configuration of a small pool with ``cores``, changed by ``settings``."""
    options: dict[str, Any] = {"preset": "tiny", "bank_bytes": 1 << 17}
    options |= settings
    options |= {"cores": cores, "rings": cores + 1}
    return configure(**options)


@dataclass(frozen=True, kw_only=True)
class TrainedStep:
    """Results of a training step."""

    loss: float
    """Mean loss of the samples."""
    wrong_tensors: list[str]
    """Names of tensors that differ in a bit from the golden model's."""
    compared_tensors: int
    """Number of tensors compared with the golden model, all of the step."""
    cycles: int
    """Cycles from the first kernel's offer until the host saw the last one end."""
    counters: list[KernelCounters]
    """Counters of each core's program."""


def turned(tensor: PlacedTensor) -> PlacedTensor:
    """Return the tensor with its first two indices exchanged."""
    return tensor.view(1, 0, 2, 3)


def product(
    config: PimConfig, a: PlacedTensor, b: PlacedTensor, y: PlacedTensor, *, pad: int = 0
) -> Work:
    """Return the work for the convolution of ``a`` with the filters ``b``, on all units."""
    settings: dict[str, Any] = {"stride": 1, "dilation": 1, "pad_top": pad, "pad_left": pad}
    work = work_on(Opcode.CONV2D, a=a, b=b, result=y, units=config.units, **settings)
    return planned(work, config)


def parameters_at_first() -> dict[str, NDArray[np.float32]]:
    """Return the initial parameters, which are always the same."""
    rng = np.random.default_rng(1)
    parameters = {name: np.zeros(shape, np.float32) for name, shape in PARAMETERS.items()}
    for name in ("filters", "weights"):
        parameters[name][...] = 1 / FILTER * rng.standard_normal(PARAMETERS[name])
    return parameters


def digit_batches(steps: int) -> list[Batch]:
    """Return batches of handwritten digits for ``steps``, alternating between two."""
    digits = load_split_digits()
    parts = [slice(SAMPLES * (step % 2), SAMPLES * (step % 2 + 1)) for step in range(steps)]
    return [(digits.train_images[part], digits.train_labels[part]) for part in parts]


def report(
    device: Pim, steps: int, *, folder: Path | None = None, watch: Watch = Watch()
) -> Report:
    """Train on ``device`` without the host; report losses and the use of the cores' cycles.

    ``folder`` receives ``cores.svg``, a picture of that use. The report is not good if a tensor
    differs from the golden model's.
    """
    training = Training(device)
    done: list[dict[str, Any]] = []
    begin_s = perf_counter()
    for batch in watch.track(digit_batches(steps), "training"):
        step = asdict(training.step(*batch))
        done.append(step | {"cores": [core._asdict() for core in step.pop("counters")]})
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    speed = device.transport.cycles() / (perf_counter() - begin_s)
    wrong = sorted({name for step in done for name in step["wrong_tensors"]})
    cycles = [*_core_cycles(done)]
    rows = [
        [str(core), count(sum(parts)), *(share(part / sum(parts)) for part in parts)]
        for core, parts in enumerate(cycles)
    ]
    headings = ["core", "cycles", *_CORE_PARTS]
    return compared_report(
        device,
        {"steps": done},
        sum(step["compared_tensors"] for step in done),
        wrong,
        tables=[Table(title="Cycles of cores, all steps", headings=headings, rows=rows, words=())],
        notes=[
            "The first table has a row for each step. Losses are from before the step's update; "
            "cycles count from the first core's doorbell until the last core has ended. The second "
            "table has a row for each core: its cycles in all steps, and the shares in which it "
            "computed or waited.",
            f"Simulated {speed:,.0f} cycles per second of host time.",
        ],
        workload={"steps": steps},
        files=[_draw_cores(cycles, steps, folder / "cores.svg")] if folder else [],
    )


def compared_report(
    device: Pim,
    results: dict[str, Any],
    compared: int,
    wrong: list[str],
    *,
    tables: Sequence[Table],
    notes: Sequence[str],
    **others: Any,
) -> Report:
    """Return the report of a training, with a first table of its steps.

    ``compared`` is the number of tensors compared with the golden model; ``wrong`` has the names of
    those that differ.
    """
    steps = results["steps"]
    rows = [
        [str(number), f"{step['loss']:.4f}", count(step["cycles"])]
        for number, step in enumerate(steps)
    ]
    table = Table(
        title="Steps of training", headings=["step", "loss", "cycles"], rows=rows, words=()
    )
    equal = (
        f"All tensors of all steps were compared with the golden model's, {compared} in "
        f"{len(steps)} steps: they are equal, bit for bit."
    )
    differ = f"tensors differ from the golden model's: {', '.join(wrong)}"
    return Report(
        results=results | {"compared_tensors": compared, "wrong_tensors": wrong},
        parts=[table, *tables],
        notes=[*notes, *[equal] * (not wrong)],
        machine=asdict(device.config),
        complaints=[differ] * bool(wrong),
        is_good=not wrong,
        **others,
    )


_CORE_PARTS = ("computes", "waits for pools", "for memory", "for cores")
"""Parts of a core's cycles."""


def _core_cycles(steps: Sequence[Mapping[str, Any]]) -> Iterator[list[int]]:
    """Yield each core's cycles in all steps, by :data:`_CORE_PARTS`."""
    names = "cycles", "pool_cycles", "memory_cycles", "barrier_cycles"
    for core in range(len(steps[0]["cores"])):
        whole, *waits = (sum(step["cores"][core][name] for step in steps) for name in names)
        yield [whole - sum(waits), *waits]


def _draw_cores(cycles: Sequence[Sequence[int]], steps: int, path: Path) -> Path:
    """Draw a bar for each core, with the parts of its cycles in a mean step."""
    from matplotlib.figure import Figure

    names = [f"core {core}" for core in range(len(cycles))]
    figure = Figure(figsize=(8, 1.4 + 0.4 * len(names)), layout="constrained")
    axes = figure.subplots()
    for number, part in enumerate(_CORE_PARTS):
        begins = [sum(parts[:number]) / steps for parts in cycles]
        axes.barh(names, [parts[number] / steps for parts in cycles], left=begins, label=part)
    axes.invert_yaxis()
    axes.set_xlabel("cycles of a step (mean)")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return write_picture(path, figure)


class Training:
    """Network on ``device``, with a program for each core that is the same in every step.

    Each core has a part of the filters, with all tensors that depend on these filters only, and a
    part of the samples of the scores.
    """

    def __init__(self, device: Pim) -> None:
        config = device.config
        self._device = device
        self._cores = range(config.cores)
        start = config.striped_start_bytes
        # All memory that the driver does not use.
        size = min(driver_place(config).start - start, WINDOW_BYTES)
        self._window = Window(start, size)
        self._memory = memory = StackMemory(config)
        shapes = OTHERS | PARAMETERS | ACTIVATIONS
        self._tensors = {name: memory.place(name, shape) for name, shape in shapes.items()}
        for name, shape in (PARAMETERS | ACTIVATIONS).items():
            self._tensors[f"d{name}"] = memory.place(name, shape)
        self._barrier = memory.place("barrier", (len(self._cores), BEAT_BYTES // ELEMENT_BYTES))
        self._works = self._all_works()
        self._words: list[tuple[PlacedTensor, list[int]]] = []
        firmware = Firmware.of()
        self._programs = []
        for core in self._cores:
            commands = list(self._commands(core))
            at = self._stored(f"the program of core {core}", firmware.program(commands))
            self._programs.append((at, len(commands)))
        self._golden = np.zeros(memory.place("the end", (1,)).address_bytes, np.uint8)
        for name, values in parameters_at_first().items():
            self.golden(name)[...] = values
        for tensor, words in self._words:
            seen(self._golden, tensor).view(np.uint32)[...] = words
        device.write_memory(start, self._golden[start:])

    def step(self, images: NDArray[np.float32], labels: NDArray[np.int64]) -> TrainedStep:
        """Run a step on :data:`SAMPLES` images of 8 x 8 and their digits.

        The host writes these, rings the cores' doorbells, and waits. The golden model runs the same
        step.
        """
        device = self._device
        self.golden("images")[...] = images.reshape(OTHERS["images"])
        self.golden("labels").view(np.uint32)[...] = labels
        for name in ("images", "labels"):
            device.write_tensor(self._tensors[name], self.golden(name))
        before = device.transport.cycles()
        # Ring core 0 last, since the others wait for it, but wait for it first.
        ids = [
            device.pim_prog(
                device.config.banks + core,
                "program",
                self._programs[core],
                windows=[self._window],
            )
            for core in reversed(self._cores)
        ][::-1]
        for kernel_id in ids:
            device.wait(kernel_id)
        cycles = device.transport.cycles() - before
        counters = [device.kernel_counters(kernel_id) for kernel_id in ids]
        golden_step(self._golden, self._tensors, self._works)
        values = {name: device.read_tensor(tensor) for name, tensor in self._tensors.items()}
        return TrainedStep(
            loss=float(values["losses"].mean()),
            wrong_tensors=[
                name for name in values if values[name].tobytes() != self.golden(name).tobytes()
            ],
            compared_tensors=len(values),
            cycles=cycles,
            counters=counters,
        )

    def golden(self, name: str) -> NDArray[np.float32]:
        """Return the golden model's values of a tensor, as a view."""
        return seen(self._golden, self._tensors[name])

    # Programs.

    def _samples(self, core: int) -> slice:
        return slice(*(SAMPLES * n // len(self._cores) for n in (core, core + 1)))

    def _all_works(self) -> dict[str, list[Work]]:
        """Return the pools' works by result, one for each filter or for each core."""
        tensors = self._tensors
        images, weights, dscores = tensors["images"], tensors["weights"], tensors["dscores"]
        works: dict[str, list[Work]] = {}

        def add(name: str, a: PlacedTensor, b: PlacedTensor, y: PlacedTensor, pad: int = 0) -> None:
            works.setdefault(name, []).append(product(self._device.config, a, b, y, pad=pad))

        for core in self._cores:
            mine = self._samples(core)
            add(
                "scores",
                turned(tensors["pooled"][:, mine]),
                turned(weights),
                tensors["scores"][mine],
            )
        for number in range(FILTERS):
            one = slice(number, number + 1)
            add(
                "convolved",
                turned(images),
                tensors["filters"][one],
                turned(tensors["convolved"][one]),
            )
            backwards = weights[one, :, ::-1, ::-1]
            add("dpooled", dscores, backwards, turned(tensors["dpooled"][one]), pad=POOLED - 1)
            add("dweights", tensors["pooled"][one], turned(dscores), tensors["dweights"][one])
            add("dfilters", images, tensors["dconvolved"][one], tensors["dfilters"][one])
        return works

    def _commands(self, core: int) -> Iterator[Command]:
        """Yield a core's commands for a step."""
        together = [Command("barrier", (self._at(self._barrier), len(self._cores)))]
        together *= len(self._cores) > 1
        filters = [slice(n, n + 1) for n in range(core, FILTERS, len(self._cores))]
        mine = self._samples(core)
        count, at = SAMPLES * ROWS * ROWS, self._part

        def descent(name: str, part: slice, elements: int) -> Command:
            places = at(name, part), at(f"d{name}", part)
            return Command("sgd", (*places, elements, DECAY, RATE))

        yield from together
        for one in filters:
            y = at("convolved", one)
            yield self._work("convolved", one.start)
            yield Command("bias", (y, at("filter_bias", one), y, 1, 1, count))
            yield Command("relu", (y, y, count))
            yield Command("max_pool", (y, at("pooled", one), *PLANES))
        yield from together
        scores, samples = at("scores", mine), mine.stop - mine.start
        yield self._work("scores", core)
        yield Command("bias", (scores, at("bias"), scores, samples, CLASSES, 1))
        places = scores, at("labels", mine), at("losses", mine), at("dscores", mine)
        sizes = samples, CLASSES, CLASSES, 1, 1 / SAMPLES
        yield Command("softmax_cross_entropy", (*places, *sizes))
        yield from together
        for one in filters:
            y, dy = at("convolved", one), at("dconvolved", one)
            yield self._work("dpooled", one.start)
            yield self._work("dweights", one.start)
            yield Command("max_pool_gradient", (y, at("dpooled", one), dy, *PLANES))
            yield Command("relu_gradient", (y, dy, dy, count))
            yield self._work("dfilters", one.start)
            yield Command("bias_gradient", (dy, at("dfilter_bias", one), 1, 1, count))
            yield descent("filters", one, FILTER**2)
            yield descent("filter_bias", one, 1)
            yield descent("weights", one, CLASSES * POOLED**2)
        if core == 0:
            yield Command("bias_gradient", (at("dscores"), at("dbias"), SAMPLES, CLASSES, 1))
            yield descent("bias", slice(None), CLASSES)
        yield from together

    def _work(self, name: str, number: int) -> Command:
        words = work_slots([self._works[name][number]])
        return Command("works", (self._stored(f"a work for {name}", words), 1))

    def _part(self, name: str, part: slice = slice(None)) -> int:
        return self._at(self._tensors[name][part])

    def _at(self, tensor: PlacedTensor) -> int:
        return offset_in(tensor, [self._window])

    def _stored(self, name: str, words: list[int]) -> int:
        """Reserve memory for ``words``; return its address as a program's argument."""
        tensor = self._memory.place(name, (len(words),))
        self._words.append((tensor, words))
        return self._at(tensor)


# The golden model.


def seen(memory: NDArray[np.uint8], tensor: PlacedTensor) -> NDArray[np.float32]:
    """Return a view of a tensor in ``memory``, which is the stack's memory or its beginning."""
    first = memory.view(np.float32)[tensor.address_bytes // ELEMENT_BYTES :]
    return as_strided(first, tensor.shape, [ELEMENT_BYTES * stride for stride in tensor.strides])


def golden_step(
    memory: NDArray[np.uint8],
    tensors: Mapping[str, PlacedTensor],
    works: Mapping[str, Sequence[Work]],
) -> None:
    """Run a step of the golden model; ``works`` are those of the products, by result."""
    see = {name: seen(memory, tensor) for name, tensor in tensors.items()}

    def run(*names: str) -> None:
        for name in names:
            for work in works[name]:
                descriptor = Descriptor.decode(work.encode_bytes())
                place(descriptor, memory, compute(descriptor, memory))

    y, scores = see["convolved"], see["scores"].reshape(SAMPLES, CLASSES)
    planes = -1, ROWS, ROWS
    run("convolved")
    y[...] = kernels.relu(kernels.bias(y.reshape(1, FILTERS, -1), see["filter_bias"])).reshape(
        y.shape
    )
    see["pooled"][...] = kernels.max_pool(y.reshape(planes), _POOLING).reshape(see["pooled"].shape)
    run("scores")
    scores[...] = kernels.bias(scores[:, :, None], see["bias"])[:, :, 0]
    labels = see["labels"].view(np.uint32).astype(np.int64)
    scale = np.float32(1 / SAMPLES)
    see["losses"][...], dscores = kernels.softmax_cross_entropy(scores, labels, scale)
    see["dscores"][...] = dscores.reshape(see["dscores"].shape)
    run("dpooled", "dweights")
    dpooled = see["dpooled"].reshape(-1, POOLED, POOLED)
    dy = kernels.max_pool_gradient(y.reshape(planes), dpooled, _POOLING)
    see["dconvolved"][...] = kernels.relu_gradient(y, dy.reshape(y.shape))
    run("dfilters")
    if "products" in see:
        see["dfilters"][...] = see["products"]
    dy = see["dconvolved"].reshape(1, FILTERS, -1)
    see["dfilter_bias"][...] = kernels.bias_gradient(dy)
    see["dbias"][...] = kernels.bias_gradient(dscores[:, :, None])
    rule, constants = reference("sgd"), {"lam": DECAY, "lr": RATE}
    for name in PARAMETERS:
        see[name][...] = rule.step({"p": see[name], "g": see[f"d{name}"]}, constants)["p"]
