"""``nearmem pim``: a layer on the fixed-function PIMs, or steps of training, and what it costs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from cyclopts import Group, Parameter, Token

from . import (
    FLAT,
    Failure,
    MachineOptions,
    OutputFile,
    OutputFolder,
    OutputOptions,
    Refusal,
    build_console,
    driving,
    integer,
    output_folder,
    print_files,
    progress_console,
)
from .screen import print_prose, print_table

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from hw.pim.config import PimConfig
    from sw_driver.experiments.pim.measure import Job
    from sw_driver.experiments.pim.training import Batch
    from sw_driver.pim.device import Pim
    from sw_driver.pim.layers import Layer

__all__ = ["Options", "run"]

DEFAULT_MOST_PRODUCTS = 25_000_000
"""What RTL computes in some seconds."""

MOST_ERROR = 0.05
MOST_MEDIAN_ERROR = 0.02
"""Of the cycle model, in cycles: of each run, and the median of all."""

Pass: TypeAlias = Literal[
    "forward", "backward-filter", "backward-input", "bias", "backward-bias", "descent"
]

_NAMED = Parameter(group=Group("A layer by name", sort_key=1))
_TRAINING = Parameter(group=Group("Training", sort_key=1))
_OWN = Parameter(group=Group("A layer of your own sizes", sort_key=1))
_OWN_SIZES = (
    *("convolution", "filters", "stride", "dilation", "padding", "groups"),
    "fully_connected",
)


def _sizes(*names: str, one: str = "") -> Parameter:
    """Marks an option that is as many integers, with commas between them, or ``one``."""
    metavar = f"{one and one + '|'}{','.join(name[0] for name in names)}"
    expected = f"{one and 'an integer, or '}{len(names)} integers {','.join(names)}"

    def convert(_: Any, tokens: Sequence[Token]) -> int | tuple[int, ...]:
        from sw_driver.numbers import parse_integer

        text = tokens[0].value
        values = map(parse_integer, text.split(","))
        parts = [value for value in values if value is not None and value >= 0]
        if text.count(",") + 1 == len(parts) == len(names):
            return tuple(parts)
        if not one or text.count(",") or not parts:
            raise ValueError(f"got {text!r}, expected {expected}")
        return parts[0]

    return Parameter(converter=convert, n_tokens=1, metavar=metavar, allow_repeating=False)


@dataclass(frozen=True, kw_only=True)
class Options(MachineOptions, OutputOptions):
    """Options of the command."""

    backend: Annotated[str | None, Parameter(metavar="NAME")] = None
    """what executes (default: golden; with --train rtl, which alone has cores)"""
    network: Annotated[str | None, _NAMED, Parameter(metavar="NAME")] = None
    """alexnet or vgg-19 (default: alexnet)"""
    layer: Annotated[tuple[str, ...] | None, _NAMED, Parameter(metavar="NAME")] = None
    """such as conv1, conv3_1 or fc6 (default: conv1); several run side by side"""
    images: Annotated[int | None, _NAMED, integer(1, 65535)] = None
    """batch (default: 32)"""
    most_products: Annotated[int | None, _NAMED, integer(0)] = None
    """scale the layer down until its forward pass has at most so many multiplications; 0 leaves it
    as published (default: 25000000)"""
    convolution: Annotated[
        tuple[int, ...] | None, _OWN, _sizes("IMAGES", "CHANNELS", "HEIGHT", "WIDTH")
    ] = None
    """images, channels, height, width; with --filters"""
    filters: Annotated[tuple[int, ...] | None, _OWN, _sizes("FILTERS", "HEIGHT", "WIDTH")] = None
    """number, height and width of the filters"""
    stride: Annotated[int | None, _OWN, integer(1, 65535)] = None
    """default: 1"""
    dilation: Annotated[int | None, _OWN, integer(1, 65535)] = None
    """default: 1"""
    padding: Annotated[
        int | tuple[int, ...] | None,
        _OWN,
        _sizes("TOP", "BOTTOM", "LEFT", "RIGHT", one="P"),
    ] = None
    """of all sides, or of each (default: 0)"""
    groups: Annotated[int | None, _OWN, integer(1, 65535)] = None
    """default: 1"""
    fully_connected: Annotated[
        tuple[int, ...] | None, _OWN, _sizes("SAMPLES", "INPUTS", "OUTPUTS")
    ] = None
    """samples, inputs, outputs"""
    pass_name: Annotated[Pass | None, Parameter(name="--pass")] = None
    """default: forward; of a fully connected layer backward-filter is the weights'"""
    seed: Annotated[int, integer(0, 2**63 - 1)] = 1
    """of all that is random"""
    validate: Annotated[int | None, integer(1, 10_000)] = None
    """instead compare N runs in RTL and in the cycle model: passes of layers, scaled by
    --most-products, then random works; --seed changes in which cycles the passes begin, and the
    works; the exit status is 1 if the model's cycles are off by more than 5 %, or by more than 2 %
    in the median"""
    sequences: bool = False
    """with --validate, compare N sequences of six small random works that overlap and wait for each
    other; of these only the median decides"""
    pairs: bool = False
    """instead run pairs of layers of AlexNet and VGG-19 side by side, forward and backward, on a
    backend with a clock, and print how many units were held, and their utilisation, until the first
    layer of each pair was done and in the whole run"""
    train: Annotated[bool, _TRAINING] = False
    """instead train a small CNN on handwritten digits with programmable PIMs, in RTL: the host only
    gives the images and rings the cores; prints losses, and where the cores' cycles went"""
    cores: Annotated[int | None, _TRAINING, integer(1, 4)] = None
    """programmable PIMs (default: 1)"""
    steps: Annotated[int | None, _TRAINING, integer(1, 1000)] = None
    """steps of training, of 4 images each, 8 in turn (default: 10)"""
    runtime: Annotated[Literal["literal", "earliest"] | None, _TRAINING] = None
    """with --train, have the paper's runtime send each operation to the pools, a core or the CPU,
    behind a step that it profiles there: a candidate that finds all PIMs busy goes to the CPU, or
    goes where it ends first; prints ranking and places"""
    launch_ns: Annotated[int | None, _TRAINING, integer(0, 10**9)] = None
    """with --runtime, what an operation takes on the CPU beside its computing (default: 0)"""
    out: Annotated[OutputFolder, _TRAINING] = None
    """folder for a picture of where the cores' cycles went or, with --runtime, of what ran where,
    and a trace of that (default: none)"""
    dram_trace: OutputFile = None
    """write every command to a vault's DRAM (CSV; backend rtl)"""


def run(options: Annotated[Options, FLAT] = Options()) -> int:
    """Run a layer of a network on the fixed-function PIMs.

    Runs a pass of a layer, by name or of your own sizes, as works on the banks of the stack. Prints
    cycles, utilisation of the units, bytes, GFLOP/s, the shares of what units and memory could do
    at best, and which banks were busy. Results of a backend with a clock are compared with the
    golden model, bit for bit; the exit status is 1 if one differs. So are those of --train, which
    has a small pool unless --config or --set say otherwise.
    """
    progress = progress_console(options)
    if options.sequences and options.validate is None:
        raise Refusal("--sequences says what to compare: give --validate N, too")
    if options.runtime is None and options.launch_ns is not None:
        raise Refusal("--launch-ns is for the runtime: add --runtime")
    if options.backend is not None:
        from sw_driver.numbers import check_name
        from sw_driver.pim.backends import PIM_BACKENDS

        check_name("--backend", options.backend, PIM_BACKENDS, Refusal)
    if options.train:
        return _train(options, progress)
    if options.cores or options.steps or options.out or options.runtime:
        raise Refusal("--cores, --steps, --out and --runtime are for training: add --train")
    if options.validate is not None:
        return _validate(options, options.validate, progress)
    if options.pairs:
        return _run_pairs(options, progress)
    return _run_layers(options, progress)


@contextmanager
def _reported(
    out_of_memory: str = "take a smaller layer or batch, or --most-products",
) -> Iterator[None]:
    """Raises what fails as :class:`Refusal` or :class:`Failure`."""
    from sw_driver.device.errors import InvalidArgumentError

    try:
        with driving(out_of_memory=out_of_memory):
            try:
                yield
            except InvalidArgumentError as error:
                raise Refusal(str(error)) from error
    except MemoryError as error:
        raise Failure(
            "this machine's memory does not hold the layer: take a smaller one, or --most-products"
        ) from error
    except ValueError as error:
        raise Refusal(str(error)) from error


def _configured(options: Options) -> PimConfig:
    from hw.pim.config import configure

    return configure(**options.settings(pim=True))


def _run_layers(options: Options, progress: Console) -> int:
    from sw_driver.experiments.pim.report import bank_map, layer_table, notes

    with _reported():
        figures = _run_jobs(options, _layers(options), options.pass_name or "forward", progress)
    if options.json:
        print(json.dumps(figures, indent=2))
    elif not options.quiet:
        print_table(layer_table(figures))
        grid = bank_map(figures)
        if grid is not None:
            print_table(grid)
        for note in notes(figures):
            print_prose(note)
        if options.dram_trace is not None:
            print_files(options, [options.dram_trace])
    if figures["wrong_results"]:
        raise Failure(f"{figures['wrong_results']} results differ from the golden model's")
    return 0


def _train(options: Options, progress: Console) -> int:
    """Trains, and prints what each step was."""
    from sw_driver.experiments.pim.training import SAMPLES, training_config
    from sw_driver.experiments.training.data import load_split_digits
    from sw_driver.pim.backends import open_pim
    from sw_driver.pim.device import Pim

    alone = "validate", *_OWN_SIZES, "network", "layer", "images", "most_products", "pass_name"
    others = options.pairs, options.seed != Options.seed
    if any(others) or any(getattr(options, name) is not None for name in alone):
        raise Refusal(
            "--train has a network of its own, and nothing random: leave layers, --pairs, "
            "--validate and --seed out"
        )
    if options.backend not in (None, "rtl"):
        raise Refusal(
            f"--train is in RTL, since {options.backend} has no cores: leave --backend "
            f"{options.backend} out"
        )
    settings = options.settings(pim=True)
    if settings.keys() & {"cores", "rings"}:
        raise Refusal("--train sets cores and rings itself: say --cores N, not --set")
    folder = options.out and output_folder(options.out, "pim")
    digits = load_split_digits()
    parts = (slice(0, SAMPLES), slice(SAMPLES, 2 * SAMPLES))
    two = [(digits.train_images[part], digits.train_labels[part]) for part in parts]
    batches = [two[number % 2] for number in range((options.steps or 10) + bool(options.runtime))]
    with _reported("take fewer --steps, or larger banks: --set bank_bytes=262144"):
        config = training_config(options.cores or 1, **settings)
        announce = build_console(progress)
        transport = open_pim("rtl", config, announce=announce, dram_trace=options.dram_trace)
        with Pim(transport) as device:
            train = _by_runtime if options.runtime else _by_cores
            report = train(options, device, batches, folder, progress)
    if wrong := report["wrong_tensors"]:
        raise Failure(f"tensors differ from the golden model's: {', '.join(wrong)}")
    return 0


def _by_cores(
    options: Options, device: Pim, batches: Sequence[Batch], folder: Path | None, progress: Console
) -> dict[str, Any]:
    """Steps without the host; returns what is printed."""
    from dataclasses import asdict
    from time import perf_counter

    from rich.progress import track

    from sw_driver.experiments.pim.report import core_table, step_table
    from sw_driver.experiments.pim.training import Training

    training = Training(device)
    steps, begin_s = [], perf_counter()
    for batch in track(batches, "training", console=progress, transient=True):
        step = training.step(*batch)
        steps.append(asdict(step) | {"cores": [each._asdict() for each in step.counters]})
        del steps[-1]["counters"]
    speed = device.transport.cycles() / (perf_counter() - begin_s)
    files = [_draw_cores(steps, folder / "cores.svg")] if folder else []
    report = {
        "cores": device.config.cores,
        "steps": steps,
        "compared_tensors": sum(step["compared_tensors"] for step in steps),
        "wrong_tensors": sorted({name for step in steps for name in step["wrong_tensors"]}),
        "files": list(map(str, files)),
    }
    if options.json:
        print(json.dumps(report, indent=2))
    elif not options.quiet:
        print_table(step_table(steps))
        print_table(core_table(steps))
        print_prose(
            "A row of the first table is a step: its loss, before it changes the parameters, and "
            "its cycles, from when the first core is rung until the last one has ended. A row of "
            "the second is a core: its cycles in all steps, and the shares in which it computed, "
            "or waited."
        )
        _print_compared(report)
        print_prose(f"Simulated {speed:,.0f} cycles a second of this machine.")
        if files:
            print_files(options, files)
    return report


def _by_runtime(
    options: Options, device: Pim, batches: Sequence[Batch], folder: Path | None, _: Console
) -> dict[str, Any]:
    """Steps by the paper's runtime; returns what is printed."""
    from itertools import pairwise

    from sw_driver.experiments.pim.report import schedule_table, step_table
    from sw_driver.experiments.pim.scheduled import draw, train

    launch_ns = options.launch_ns or 0
    run = train(device, batches, principle=options.runtime or "earliest", launch_ns=launch_ns)
    report = {
        "cores": device.config.cores,
        "principle": options.runtime,
        "launch_ns": launch_ns,
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
        "compared_tensors": run.compared_tensors,
        "wrong_tensors": run.wrong_tensors,
    }
    files = [folder / name for name in ("timeline.svg", "timeline.json")] if folder else []
    for path in files:
        draw(run, device).write(path)
    report["files"] = list(map(str, files))
    if options.json:
        print(json.dumps(report, indent=2))
    elif not options.quiet:
        print_table(schedule_table(report["ranking"], [*report["operations"]][len(run.ranking) :]))
        print_table(step_table(report["steps"]))
        print_prose(
            "A row of the first table is an operation of a step: what it takes on the CPU, its "
            "accesses to memory, whether it is a candidate for the PIMs, and how often it ran on "
            "which device behind step 0, with the cycles of the last time. A row of the second is "
            "a step, of which step 0 is profiled on the CPU: its loss, before it changes the "
            "parameters, and its cycles, from the end of the step before."
        )
        _print_compared(report)
        if files:
            print_files(options, files)
    return report


def _print_compared(report: Mapping[str, Any]) -> None:
    """Print what came of the comparison with the golden model, unless that is an error."""
    if not report["wrong_tensors"]:
        print_prose(
            "All tensors of all steps were compared with the golden model's, "
            f"{report['compared_tensors']} in {len(report['steps'])} steps: they are equal, bit "
            "for bit."
        )


def _draw_cores(steps: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """A bar for each core, of where its cycles went in a step, in the mean."""
    from matplotlib.figure import Figure

    from sw_driver.experiments.pim.report import CORE_PARTS, core_cycles
    from sw_driver.system.plotting import save

    means = [[cycles / len(steps) for cycles in parts] for parts in core_cycles(steps)]
    names = [f"core {core}" for core in range(len(means))]
    figure = Figure(figsize=(8, 1.4 + 0.4 * len(names)), layout="constrained")
    axes = figure.subplots()
    for number, part in enumerate(CORE_PARTS):
        begins = [sum(parts[:number]) for parts in means]
        axes.barh(names, [parts[number] for parts in means], left=begins, label=part)
    axes.invert_yaxis()
    axes.set_xlabel("cycles of a step, in the mean")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return save(figure, path)


def _run_pairs(options: Options, progress: Console) -> int:
    """Measures pairs of layers, and prints a row for each."""
    from sw_driver.experiments.pim.networks import PAIRS
    from sw_driver.experiments.pim.report import pair_table

    own = {name: name.replace("_", "-") for name in (*_OWN_SIZES, "network", "layer", "dram_trace")}
    for name, option in (own | {"pass_name": "pass"}).items():
        if getattr(options, name) is not None:
            raise Refusal(
                f"--pairs has layers and passes of its own and no trace: leave --{option} out"
            )
    if options.backend in (None, "golden"):
        raise Refusal("--pairs needs a clock, which golden has not: add --backend cycles or rtl")
    measured = []
    with _reported():
        for network, *names, pass_name in PAIRS:
            layers = _named(options, network, names)
            measured.append(_run_jobs(options, layers, pass_name, progress))
    if options.json:
        print(json.dumps(measured, indent=2))
    elif not options.quiet:
        print_table(pair_table(measured))
    wrong = sum(figures["wrong_results"] or 0 for figures in measured)
    if wrong:
        raise Failure(f"{wrong} results differ from the golden model's")
    return 0


def _run_jobs(
    options: Options,
    layers: list[tuple[str, Layer, Layer]],
    pass_name: str,
    progress: Console,
) -> dict[str, Any]:
    """The figures of a pass of layers side by side, on a device of its own."""
    from sw_driver.experiments.pim.measure import place_jobs
    from sw_driver.pim.backends import open_pim
    from sw_driver.pim.device import Pim

    config, jobs = place_jobs(layers, pass_name, _configured(options))
    transport = open_pim(
        options.backend or "golden",
        config,
        announce=build_console(progress),
        dram_trace=options.dram_trace,
    )
    with Pim(transport) as device:
        return _measure(device, jobs, options.seed, progress)


def _layers(options: Options) -> list[tuple[str, Layer, Layer]]:
    """The layers to run: name, as it runs, as it was before it was scaled."""
    from sw_driver.pim.layers import Convolution, FullyConnected

    given = {name.replace("_", "-"): getattr(options, name) for name in _OWN_SIZES}
    own = {name: value for name, value in given.items() if value is not None}
    if own:
        by_name = ("network", "layer", "images", "most_products")
        if any(getattr(options, name) is not None for name in by_name):
            raise Refusal(
                f"--{next(iter(own))} is for a layer of your own sizes, --network, --layer, "
                "--images and --most-products are for one by name: give either"
            )
        if "fully-connected" in own:
            if len(own) > 1:
                raise Refusal("--fully-connected goes with no other size: leave these out")
            samples, inputs, outputs = own["fully-connected"]
            layer = FullyConnected(samples=samples, inputs=inputs, outputs=outputs)
            return [("fully connected", layer, layer)]
        if not own.keys() >= {"convolution", "filters"}:
            raise Refusal(
                "a convolution of your own needs --convolution N,C,H,W and --filters F,H,W"
            )
        image = zip(("images", "channels", "height", "width"), own.pop("convolution"), strict=True)
        filters = zip(("filters", "filter_height", "filter_width"), own.pop("filters"), strict=True)
        layer = Convolution(**dict(image), **dict(filters), **own)
        return [("convolution", layer, layer)]
    return _named(options, options.network or "alexnet", options.layer or ["conv1"])


def _named(options: Options, network: str, names: Sequence[str]) -> list[tuple[str, Layer, Layer]]:
    """Layers of a network, as :func:`_layers` returns them."""
    from sw_driver.experiments.pim.networks import BATCH, named_layer

    most = DEFAULT_MOST_PRODUCTS if options.most_products is None else options.most_products
    found = [named_layer(network, name, images=options.images or BATCH) for name in names]
    return [
        (f"{network} {name}", published.scaled(most) if most else published, published)
        for name, published in zip(names, found, strict=True)
    ]


def _measure(device: Pim, jobs: list[Job], seed: int, progress: Console) -> dict[str, Any]:
    """Runs the jobs, compares the results where there is something to compare, and reports."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from sw_driver.experiments.pim.measure import check_bits, figures, run_jobs
    from sw_driver.experiments.pim.shortening import run_shortened, worth_shortening

    long = worth_shortening(device.transport, jobs)
    works = sum(len(job.program.works) for job in jobs)
    with Progress(
        TextColumn("{task.description}"),
        MofNCompleteColumn(),
        BarColumn(),
        TimeElapsedColumn(),
        console=progress,
        transient=True,
    ) as bar:
        task = bar.add_task("works", total=2 * works if long else works)
        if long:
            done = run_shortened(device.config, jobs[0], completed=lambda: bar.advance(task))
        else:
            done = run_jobs(device, jobs, seed=seed, completed=lambda: bar.advance(task))
        report = figures(device, jobs, done)
        report["wrong_results"] = None
        if device.transport.timed and device.transport.computes:
            task = bar.add_task("golden model", total=None)
            report["wrong_results"] = check_bits(device, jobs, seed=seed)
    return report


def _validate(options: Options, runs: int, progress: Console) -> int:
    """Compares RTL and cycle model, and prints."""
    import statistics
    from dataclasses import asdict, replace

    from rich.progress import track

    from sw_driver.experiments.pim.report import comparison_table
    from sw_driver.experiments.pim.validation import (
        MOST_SEQUENCE_PRODUCTS,
        compare,
        compare_sequences,
    )
    from sw_driver.pim.backends import SIMULATED_BANK_BYTES

    if options.dram_trace is not None:
        raise Refusal("--validate runs many devices, --dram-trace is of one: give either")
    if options.pairs:
        raise Refusal("--validate has passes of its own, --pairs too: give either")
    if options.backend is not None:
        raise Refusal("--validate compares RTL and the cycle model: leave --backend out")
    own = {name: name.replace("_", "-") for name in (*_OWN_SIZES, "network", "layer", "images")}
    for name, option in (own | {"pass_name": "pass"}).items():
        if getattr(options, name) is not None:
            raise Refusal(f"--validate has layers and passes of its own: leave --{option} out")
    with _reported():
        config = _configured(options)
        config = replace(config, bank_bytes=min(config.bank_bytes, SIMULATED_BANK_BYTES))
        usual, compared_by = DEFAULT_MOST_PRODUCTS, compare
        if options.sequences:
            usual, compared_by = MOST_SEQUENCE_PRODUCTS, compare_sequences
        comparisons = compared_by(
            config,
            runs,
            seed=options.seed,
            most_products=options.most_products or usual,
            announce=progress.print,
        )
        compared = list(
            track(
                comparisons,
                description="comparing",
                total=runs,
                console=progress,
                transient=True,
            )
        )
    errors = [abs(each.error) for each in compared]
    median, largest = statistics.median(errors), max(errors)
    if options.json:
        report = {
            "config": options.config or "paper",
            "bank_bytes": config.bank_bytes,
            "median_error": median,
            "largest_error": largest,
            "compared": [{**asdict(each), "error": each.error} for each in compared],
        }
        print(json.dumps(report, indent=2))
    elif not options.quiet:
        print_table(comparison_table(compared))
        print_prose(f"Error of the cycle model: median {median:.2%}, largest {largest:.2%}.")
    if largest > MOST_ERROR and not options.sequences:
        raise Failure(f"the cycle model is off by {largest:.2%}, more than {MOST_ERROR:.0%}")
    if median > MOST_MEDIAN_ERROR:
        raise Failure(
            f"the cycle model is off by {median:.2%} in the median, more than "
            f"{MOST_MEDIAN_ERROR:.0%}"
        )
    return 0
