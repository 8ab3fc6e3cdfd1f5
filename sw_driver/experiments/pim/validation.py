"""Comparison of the PIM's cycle model with RTL, over passes of scaled layers and random works."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from math import prod
from statistics import fmean
from typing import TYPE_CHECKING, Any

from golden.pim import Cause, check
from golden.pim import Descriptor as GoldenDescriptor
from golden.pim.stack import StackMap
from hw.pim.work.descriptor import ELEMENTWISE_OPCODES
from sw_driver.device.errors import OutOfMemoryError
from sw_driver.report import Report, Table, Watch
from sw_driver.report import count as shown

from ...pim.backends import SIMULATED_BANK_BYTES
from ...pim.backends.cycles import CyclesPim
from ...pim.descriptor import Opcode, StridedTensor, Work
from ...pim.device import Counters, Pim
from ...pim.ring import ring_place
from .measure import Job, run_jobs
from .networks import MOST_PRODUCTS, named_layer

if TYPE_CHECKING:
    from hw.pim.config import PimConfig

    from ...pim.backends import Announce
    from ...pim.transport import PimTransport

__all__ = [
    "MOST_SEQUENCE_PRODUCTS",
    "PASSES",
    "Comparison",
    "Figures",
    "compare",
    "compare_jobs",
    "compare_sequences",
    "compare_works",
    "draw",
    "jobs",
    "report",
    "run_at_once",
    "starts",
]

_REDUCTIONS = (Opcode.SUM, Opcode.DOT, Opcode.MATVEC)
_ALPHA_BITS = 0xBF8CCCCD
_PLACE_ATTEMPTS = 50

_MOST_WORK_PRODUCTS = 200_000
"""Products of a random work, at most."""
MOST_SEQUENCE_PRODUCTS = 8000
"""Products of a work in a sequence, at most; sequences are to end soon."""
_SEQUENCE_WORKS = 6
_SEQUENCE_BEGIN_CYCLES = 2000
"""Cycle of a sequence's first offer: the RTL's memory is ready by then, the model's always."""


MOST_ERROR, MOST_MEDIAN_ERROR = 0.05, 0.02
"""Allowed errors of the model's cycles, as shares: of each run, and the median of all runs."""

PASSES = (
    ("alexnet", "conv1", "forward"),
    ("vgg-19", "conv3_2", "forward"),
    ("alexnet", "conv3", "backward-filter"),
    ("alexnet", "conv3", "backward-input"),
    ("alexnet", "fc7", "forward"),
    ("alexnet", "fc7", "backward-filter"),
    ("alexnet", "fc7", "backward-input"),
    ("vgg-19", "conv1_1", "forward"),
    ("vgg-19", "conv5_1", "backward-filter"),
    ("alexnet", "conv1", "backward-filter"),
    ("alexnet", "conv2", "forward"),
    ("vgg-19", "conv3_2", "backward-input"),
    ("vgg-19", "fc8", "forward"),
    ("alexnet", "conv1", "backward-bias"),
    ("vgg-19", "conv1_2", "bias"),
    ("vgg-19", "fc6", "descent"),
    ("alexnet", "conv1", "backward-input"),
)
"""Passes to compare before random works: network, layer, pass."""

_REFRESH_CYCLES = 2400
"""Cycles from one refresh of a vault to the next, or a little less."""
_START_STEP_CYCLES = 300
_SEED_STEP_CYCLES = 37
"""Cycles between the starts of two seeds; it has no divisor in common with the starts' step."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Cost of a run, in RTL or in the model."""

    cycles: int
    bytes_read: int
    bytes_written: int
    multiplications: int
    additions: int


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Costs of a layer's pass, a work or a sequence, in RTL and in the model."""

    name: str
    sizes: str
    rtl: Figures
    model: Figures

    @property
    def error(self) -> float:
        """Error of the model's cycles, as a share of the RTL's."""
        return self.model.cycles / self.rtl.cycles - 1

    @property
    def bytes_error(self) -> float:
        """Error of the model's bytes, as a share of the RTL's.

        The distribution of tiles over the banks changes the bytes a little.
        """
        rtl, model = (run.bytes_read + run.bytes_written for run in (self.rtl, self.model))
        return model / rtl - 1


def report(
    config: PimConfig,
    runs: int,
    *,
    seed: int,
    most_products: int | None = None,
    sequences: bool = False,
    watch: Watch = Watch(),
) -> Report:
    """Compare RTL and cycle model over ``runs``, or over sequences of works that overlap.

    The report is not good if cycles are off by more than ``MOST_ERROR`` (except for sequences),
    or by more than ``MOST_MEDIAN_ERROR`` in the median.
    """
    config = replace(config, bank_bytes=min(config.bank_bytes, SIMULATED_BANK_BYTES))
    most = most_products or (MOST_SEQUENCE_PRODUCTS if sequences else MOST_PRODUCTS)
    compare_runs = compare_sequences if sequences else compare
    comparisons = compare_runs(config, runs, seed=seed, most_products=most, announce=watch.log)
    compared = list(watch.track(comparisons, "comparing", runs))
    errors = [abs(run.error) for run in compared]
    median, largest = statistics.median(errors), max(errors)
    complaints = []
    if largest > MOST_ERROR and not sequences:
        complaints.append(f"the cycle model is off by {largest:.2%}, more than {MOST_ERROR:.0%}")
    if median > MOST_MEDIAN_ERROR:
        complaints.append(
            f"the cycle model is off by {median:.2%} in the median, more than "
            f"{MOST_MEDIAN_ERROR:.0%}"
        )
    columns: dict[str, Callable[[Comparison], str]] = {
        "": lambda run: run.name,
        "sizes": lambda run: run.sizes,
        "operations": lambda run: shown(run.rtl.multiplications + run.rtl.additions),
        "RTL": lambda run: shown(run.rtl.cycles),
        "model": lambda run: shown(run.model.cycles),
        "error": lambda run: f"{run.error:+.2%}",
        "error of bytes": lambda run: f"{run.bytes_error:+.2%}",
    }
    return Report(
        results={
            "median_error": median,
            "largest_error": largest,
            "compared": [{**asdict(run), "error": run.error} for run in compared],
        },
        parts=[Table.of("Cycles in RTL and in the cycle model", compared, columns, words=(0, 1))],
        notes=[f"Error of the cycle model: median {median:.2%}, largest {largest:.2%}."],
        machine=asdict(config),
        workload={"runs": runs, "sequences": sequences, "seed": seed, "most_products": most},
        complaints=complaints,
        is_good=not complaints,
    )


def compare(
    config: PimConfig,
    count: int,
    *,
    seed: int,
    most_products: int,
    announce: Announce | None = None,
) -> Iterator[Comparison]:
    """Compare the first ``count`` passes, scaled; add random works if there are too few passes.

    ``seed`` sets the start cycles of the passes and draws the works.
    """
    passes = list(jobs(config, count, most_products=most_products))
    yield from compare_jobs(config, passes, seed=seed, announce=announce)
    works = draw(config, count - len(passes), seed=seed, most_products=_MOST_WORK_PRODUCTS)
    yield from compare_works(config, works, announce=announce)


def jobs(config: PimConfig, count: int, *, most_products: int) -> Iterator[Job]:
    """Yield the first ``count`` of :data:`PASSES`, scaled; skip those that do not fit."""
    for network, name, pass_name in PASSES[:count]:
        published = named_layer(network, name)
        layer = published.scaled(most_products)
        try:
            job = Job.of(f"{network} {name}", pass_name, layer, config, published=published)
        except OutOfMemoryError:
            continue
        yield job


def draw(config: PimConfig, works: int, *, seed: int, most_products: int) -> Iterator[Work]:
    """Yield random works of ``most_products`` down to a thirtieth of it; a seed repeats them.

    They run on one bank, some or all. Tensors are dense, spread over the stack, or repeated along
    an index.
    """
    rng = random.Random(seed)
    for _ in range(works):
        placed = None
        while placed is None:
            drawn = _sizes(rng, most_products)
            placed = drawn and _placed(drawn, config, rng)
        yield placed


def _sizes(rng: random.Random, most_products: int) -> Work | None:
    def some(low: int, high: int) -> int:
        return round(low * (high / low) ** rng.random())

    opcode = rng.choice([*Opcode, *[Opcode.CONV2D] * 4, *[Opcode.MATMUL] * 2])
    if opcode in ELEMENTWISE_OPCODES:
        sizes = {"rows": some(1, 200), "columns": some(1, 5000)}
        products = 16 * prod(sizes.values())
    elif opcode in _REDUCTIONS:
        sizes = {"rows": some(1, 100), "columns": some(1, 100), "length": some(1, 5000)}
        if opcode != Opcode.MATVEC:
            sizes["images"] = rng.choice((1, 1, 1, 2, 3))
        products = 4 * prod(sizes.values())
    elif opcode == Opcode.MATMUL:
        sizes = {"rows": some(1, 300), "columns": some(1, 300), "length": some(1, 2000)}
        products = prod(sizes.values())
    else:
        filter_size, stride = rng.choice((1, 2, 3, 3, 3, 5, 7, 11)), rng.choice((1, 1, 1, 2, 4))
        dilation, pad = rng.choice((*[1] * 6, 2, 3)), rng.choice((0, filter_size // 2, 1))
        outputs = {"rows": some(1, 30), "columns": some(1, 60)}
        height, width = (
            (size - 1) * stride + (filter_size - 1) * dilation + 1 - 2 * pad
            for size in outputs.values()
        )
        sizes = {
            **outputs,
            "channels": some(1, 60),
            "filters": some(1, 100),
            "images": rng.choice((1, 1, 2, 3)),
            "height": height,
            "width": width,
            "filter_height": filter_size,
            "filter_width": filter_size,
            "stride": stride,
            "dilation": dilation,
            "pad_top": pad,
            "pad_left": pad,
        }
        if min(height, width) < 1:
            return None
        factors = ("rows", "columns", "channels", "filters", "images")
        products = prod(sizes[name] for name in factors) * filter_size**2
    if not most_products / 30 <= products <= most_products:
        return None
    changes: dict[str, Any] = sizes
    alpha_bits = _ALPHA_BITS if opcode == Opcode.SCALEADD else 0
    return Work(opcode=opcode, alpha_bits=alpha_bits, **changes)


def _placed(work: Work, config: PimConfig, rng: random.Random) -> Work | None:
    """Return the work with random banks or units and tensor places; None if there is no room."""
    kind = rng.random()
    if kind < 0.25:
        work = replace(work, banks=1 << rng.randrange(config.banks))
    elif kind < 0.4:
        work = replace(work, banks=rng.randrange(1, 1 << config.banks))
    else:
        units = config.units if rng.random() < 0.7 else rng.randint(1, config.units)
        work = replace(work, units=units)
    local = rng.random() < 0.5
    start = 0 if local else config.striped_start_bytes // 4
    words = (config.local_bytes if local else ring_place(config).start) // 4 - start
    stack = StackMap(banks=config.banks, bank_bytes=config.bank_bytes)
    tensors = (*work.operands, "result")
    for _ in range(_PLACE_ATTEMPTS):
        tried = work
        for name in tensors:
            extents = work.extents(name)
            order = list(range(len(extents)))
            if name != "result" and rng.random() < 0.25:
                rng.shuffle(order)
            strides, size = [0] * len(extents), 1
            for index in reversed(order):
                strides[index] = size
                size *= extents[index]
            outer = order[0]
            # Spread the tensor over the stack, so that several vaults have a part.
            room = words // len(tensors) // extents[outer] // 8 * 8
            if extents[outer] > 1 and room > strides[outer] and rng.random() < 0.6:
                strides[outer] = max(strides[outer], int(room * rng.uniform(0.3, 1)) // 8 * 8)
            if name != "result" and rng.random() < 0.15:
                strides[rng.randrange(len(strides))] = 0
            reach = sum(s * (extent - 1) for s, extent in zip(strides, extents, strict=True))
            first = rng.randrange(max(1, (words - reach - 1) // 8)) * 8
            tensor = StridedTensor(address_bytes=4 * (start + first), strides=tuple(strides))
            tried = replace(tried, **{name: tensor})
        descriptor = GoldenDescriptor.decode(tried.encode_bytes())
        if check(descriptor, stack=stack, units=config.units) == Cause.NONE:
            return tried
    return None


def starts(seed: int) -> range:
    """Return the start cycles of a pass, one for each run.

    They are spread evenly over the time between two refreshes of a vault. Seeds close to each other
    have different starts.
    """
    first = (seed - 1) * _SEED_STEP_CYCLES % _START_STEP_CYCLES
    return range(first, first + _REFRESH_CYCLES, _START_STEP_CYCLES)


def compare_jobs(
    config: PimConfig, jobs: Iterable[Job], *, seed: int, announce: Announce | None = None
) -> Iterator[Comparison]:
    """Run each job alone in RTL and in the model, from reset.

    The times of refreshes decide which bank takes which tile, so a start one cycle later may change
    a job's time by some per cent. So each job runs from several start cycles (:func:`starts`), and
    the means are compared. The memory holds zeros: values do not change the time, and writing them
    would take long. Raise :class:`~sw_driver.simulator.runtime.BuildError` if the simulator cannot
    be built.
    """
    from ...pim.backends.rtl import RtlPim

    def once(transport: PimTransport, job: Job, start: int) -> Figures:
        with Pim(transport) as device:
            transport.advance(start)
            run = run_jobs(device, [job], inputs=False)
        names = ("bytes_read", "bytes_written", "multiplications", "additions")
        sums = {name: sum(getattr(record, name) for record in run.records) for name in names}
        return Figures(cycles=run.cycles([0]), **sums)

    def mean(made: Callable[[], PimTransport], job: Job) -> Figures:
        runs = [asdict(once(made(), job, start)) for start in starts(seed)]
        return Figures(**{name: round(fmean(run[name] for run in runs)) for name in runs[0]})

    for job in jobs:
        yield Comparison(
            name=f"{job.name} {job.pass_name}",
            sizes=job.layer.describe(),
            rtl=mean(lambda: RtlPim(config, announce=announce), job),
            model=mean(lambda: CyclesPim(config, computes=False), job),
        )


def compare_works(
    config: PimConfig, works: Iterable[Work], *, announce: Announce | None = None
) -> Iterator[Comparison]:
    """Run the works one after the other in RTL and in the model; else as :func:`compare_jobs`.

    RTL and model get each work in the same cycle, so that refreshes come at the same time.
    """
    from ...pim.backends.rtl import RtlPim

    def cost(device: Pim, work: Work) -> Figures:
        ((_, counters),) = run_at_once(device, [work])
        return Figures(
            cycles=counters.cycles or 0,
            bytes_read=counters.bytes_read,
            bytes_written=counters.bytes_written,
            multiplications=counters.multiplications_done,
            additions=counters.additions_done,
        )

    with (
        Pim(RtlPim(config, announce=announce)) as rtl,
        Pim(CyclesPim(config, computes=False)) as model,
    ):
        for work in works:
            ahead = rtl.transport.cycles() - model.transport.cycles()
            (model if ahead > 0 else rtl).transport.advance(abs(ahead))
            place = f"banks {work.banks:#x}" if work.banks else f"{work.units} units"
            yield Comparison(
                name=f"{Opcode(work.opcode).name} on {place}",
                sizes=f"{work.results} results, {max(work.operations)} operations",
                rtl=cost(rtl, work),
                model=cost(model, work),
            )


def compare_sequences(
    config: PimConfig,
    count: int,
    *,
    seed: int,
    most_products: int = MOST_SEQUENCE_PRODUCTS,
    announce: Announce | None = None,
) -> Iterator[Comparison]:
    """Run sequences of six random works in RTL and in the model, each from reset.

    The pool gets works as fast as it takes them, so they overlap, wait for each other and grow. The
    cycles count from the first offer to the last completion; else as :func:`compare_jobs`.
    """
    from ...pim.backends.rtl import RtlPim

    works = draw(config, _SEQUENCE_WORKS * count, seed=seed, most_products=most_products)

    def cost(transport: PimTransport, sequence: list[Work]) -> Figures:
        with Pim(transport) as device:
            transport.advance(_SEQUENCE_BEGIN_CYCLES - transport.cycles())
            counters = [counters for _, counters in run_at_once(device, sequence)]
            cycles = transport.cycles() - _SEQUENCE_BEGIN_CYCLES
        return Figures(
            cycles=cycles,
            bytes_read=sum(work.bytes_read for work in counters),
            bytes_written=sum(work.bytes_written for work in counters),
            multiplications=sum(work.multiplications_done for work in counters),
            additions=sum(work.additions_done for work in counters),
        )

    for number in range(count):
        sequence = list(islice(works, _SEQUENCE_WORKS))
        yield Comparison(
            name=f"sequence {number + 1}",
            sizes=" ".join(Opcode(work.opcode).name for work in sequence),
            rtl=cost(RtlPim(config, announce=announce), sequence),
            model=cost(CyclesPim(config, computes=False), sequence),
        )


def run_at_once(device: Pim, works: Iterable[Work]) -> list[tuple[list[int], Counters]]:
    """Offer works as fast as the pool takes them; return the banks and counters of each."""
    running: list[int] = []
    seen: dict[int, tuple[list[int], Counters]] = {}
    offered: list[int] = []

    def look() -> None:
        for number in [work_id for work_id in running if device.work_query(work_id)]:
            seen[number] = device.work_info(number)[0], device.counters(number)
            running.remove(number)

    for work in works:
        if len(running) == device.config.works:
            device.wait_any(running)
        look()
        banks = [bank for bank in range(device.config.banks) if work.banks >> bank & 1]
        count = len(banks) or work.units
        offered.append(device.pim_fix(banks or None, work, work.result, count))
        running.append(offered[-1])
    while running:
        device.wait_any(running)
        look()
    return [seen[number] for number in offered]
