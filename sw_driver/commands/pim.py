"""``nearmem pim``: cycles of a network's layer, or of training steps, on the PIM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from cyclopts import Group, Parameter, Token

from . import (
    FLAT,
    Failure,
    MachineOptions,
    OutputFile,
    OutputFolder,
    Refusal,
    driving,
    integer,
    output_folder,
)
from .screen import Screen, show

if TYPE_CHECKING:
    from sw_driver.experiments.pim.networks import Scaled
    from sw_driver.report import Report

__all__ = ["Options", "run"]

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
    """Return the mark of an option with an integer for each name, or a single integer ``one``."""
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
class Options(MachineOptions):
    """Options of the command."""

    backend: Annotated[str | None, Parameter(metavar="NAME")] = None
    """simulator of the PIM: golden, cycles or rtl (default: golden; with --train rtl, the only one
    with cores)"""
    network: Annotated[str | None, _NAMED, Parameter(metavar="NAME")] = None
    """network: alexnet or vgg-19 (default: alexnet)"""
    layer: Annotated[tuple[str, ...] | None, _NAMED, Parameter(metavar="NAME")] = None
    """layer, such as conv1, conv3_1 or fc6 (default: conv1); several layers run side by side"""
    images: Annotated[int | None, _NAMED, integer(1, 65535)] = None
    """images of a batch (default: 32)"""
    most_products: Annotated[int | None, _NAMED, integer(0)] = None
    """multiplications of a forward pass, at most: larger layers are scaled down; 0 keeps the
    published size (default: 25000000)"""
    convolution: Annotated[
        tuple[int, ...] | None, _OWN, _sizes("IMAGES", "CHANNELS", "HEIGHT", "WIDTH")
    ] = None
    """images, channels, height and width of a convolution's input; needs --filters"""
    filters: Annotated[tuple[int, ...] | None, _OWN, _sizes("FILTERS", "HEIGHT", "WIDTH")] = None
    """number, height and width of the filters"""
    stride: Annotated[int | None, _OWN, integer(1, 65535)] = None
    """stride of the convolution (default: 1)"""
    dilation: Annotated[int | None, _OWN, integer(1, 65535)] = None
    """dilation of the filters (default: 1)"""
    padding: Annotated[
        int | tuple[int, ...] | None,
        _OWN,
        _sizes("TOP", "BOTTOM", "LEFT", "RIGHT", one="P"),
    ] = None
    """zeros around the input: one number for all sides, or one for each side (default: 0)"""
    groups: Annotated[int | None, _OWN, integer(1, 65535)] = None
    """groups of channels (default: 1)"""
    fully_connected: Annotated[
        tuple[int, ...] | None, _OWN, _sizes("SAMPLES", "INPUTS", "OUTPUTS")
    ] = None
    """samples, inputs and outputs of a fully connected layer"""
    pass_name: Annotated[Pass | None, Parameter(name="--pass")] = None
    """pass to run (default: forward); for a fully connected layer, backward-filter computes the
    gradient of the weights"""
    seed: Annotated[int, integer(0, 2**63 - 1)] = 1
    """seed of all random values"""
    validate: Annotated[int | None, integer(1, 10_000)] = None
    """compare the cycle model with RTL over N runs instead: passes of layers, scaled by
    --most-products, then random works; --seed changes the passes' start cycles, and the works; the
    exit status is 1 if cycles are off by more than 5 %, or by more than 2 % in the median"""
    sequences: bool = False
    """with --validate: compare N sequences of six small random works that overlap and wait for each
    other; only the median decides the exit status"""
    pairs: bool = False
    """run pairs of layers of AlexNet and VGG-19 side by side instead, forward and backward, on a
    backend with a clock; print the share of units held and their utilisation, until the first layer
    of a pair ends and over the whole run"""
    train: Annotated[bool, _TRAINING] = False
    """train a small CNN on handwritten digits instead, with cores, in RTL: the host only writes the
    images and rings the cores' doorbells; prints losses and how the cores spent their cycles"""
    cores: Annotated[int | None, _TRAINING, integer(1, 4)] = None
    """programmable cores (default: 1)"""
    steps: Annotated[int | None, _TRAINING, integer(1, 1000)] = None
    """training steps, 4 images each, alternating between two batches (default: 10)"""
    runtime: Annotated[Literal["literal", "earliest"] | None, _TRAINING] = None
    """with --train: let the paper's runtime place each operation on pools, a core or the CPU, after
    a step that it profiles on the CPU; a candidate that finds all PIMs busy goes to the CPU
    (literal), or where it ends first (earliest); prints the ranking and the placement"""
    launch_ns: Annotated[int | None, _TRAINING, integer(0, 10**9)] = None
    """with --runtime: ns of overhead of an operation on the CPU (default: 0)"""
    out: Annotated[OutputFolder, _TRAINING] = None
    """folder for a picture of the cores' cycles or, with --runtime, for a timeline of operations as
    picture and trace (default: none)"""
    dram_trace: OutputFile = None
    """write every DRAM command of the vaults to this file (CSV; backend rtl only)"""


def run(options: Annotated[Options, FLAT] = Options()) -> int:
    """Measure how fast a network's layer runs on the PIM's fixed-function units.

    Runs a pass of a layer, by name or with your own sizes, as works on the banks of the stack.
    Prints cycles, utilisation of units, bytes, GFLOP/s, the shares of the compute and memory
    bounds, and how busy the banks were. A backend with a clock compares its results with the golden
    model, bit for bit; the exit status is 1 if one differs. --train does so, too; it has a small
    pool unless --config or --set change that.

    Example: nearmem pim --layer conv3 --backend cycles
    """
    from sw_driver.numbers import check_name
    from sw_driver.pim.backends import PIM_BACKENDS

    if options.sequences and options.validate is None:
        raise Refusal("--sequences is for a comparison: add --validate N")
    if options.runtime is None and options.launch_ns is not None:
        raise Refusal("--launch-ns is for the runtime: add --runtime")
    if options.backend is not None:
        check_name("--backend", options.backend, PIM_BACKENDS)
    if options.train:
        made = _train(options)
    elif options.cores or options.steps or options.out or options.runtime:
        raise Refusal("--cores, --steps, --out and --runtime are for training: add --train")
    elif options.validate is not None:
        made = _validate(options, options.validate)
    else:
        made = _run_pairs(options) if options.pairs else _run_layers(options)
    return show(made, options)


@contextmanager
def _running(
    options: Options, out_of_memory: str = "take a smaller layer or batch, or --most-products"
) -> Iterator[Screen]:
    """Show progress; turn errors into :class:`Refusal` or :class:`Failure`."""
    try:
        with Screen(options) as watch, driving(out_of_memory=out_of_memory):
            yield watch
    except MemoryError as error:
        raise Failure(
            "this machine's memory is too small for the layer: take a smaller one, or "
            "--most-products"
        ) from error
    except ValueError as error:
        raise Refusal(str(error)) from error


def _refuse_others(options: Options, why: str, *names: str) -> None:
    """Raise :class:`Refusal` with the reason ``why`` if options of another job are given."""
    for name in (*_OWN_SIZES, "network", "layer", "pass_name", *names):
        if getattr(options, name) != getattr(Options, name):
            option = name.removesuffix("_name").replace("_", "-")
            raise Refusal(f"{why}: leave --{option} out")


def _run_layers(options: Options) -> Report:
    from sw_driver.experiments.pim.report import report

    with _running(options) as watch:
        return report(
            _layers(options),
            options.pass_name or "forward",
            options.pim(),
            backend=options.backend or "golden",
            seed=options.seed,
            dram_trace=options.dram_trace,
            watch=watch,
        )


def _train(options: Options) -> Report:
    from sw_driver.experiments.pim import scheduled, training
    from sw_driver.pim.backends import open_pim
    from sw_driver.pim.device import Pim

    others = "images", "most_products", "pairs", "validate", "seed"
    _refuse_others(options, "--train has its own network and no random values", *others)
    if options.backend not in (None, "rtl"):
        raise Refusal(
            f"--train runs in RTL, as {options.backend} has no cores: leave --backend "
            f"{options.backend} out"
        )
    settings = options.settings(pim=True)
    if settings.keys() & {"cores", "rings"}:
        raise Refusal("--train sets cores and rings itself: give --cores N, not --set")
    folder = options.out and output_folder(options.out, "pim")
    steps = options.steps or 10
    with _running(options, "take fewer --steps, or larger banks: --set bank_bytes=262144") as watch:
        config = training.training_config(options.cores or 1, **settings)
        transport = open_pim("rtl", config, announce=watch.log, dram_trace=options.dram_trace)
        with Pim(transport) as device:
            if options.runtime is None:
                made = training.report(device, steps, folder=folder, watch=watch)
            else:
                made = scheduled.report(
                    device,
                    steps,
                    principle=options.runtime,
                    launch_ns=options.launch_ns or 0,
                    folder=folder,
                    watch=watch,
                )
        traces = [options.dram_trace] if options.dram_trace else []
        return replace(made, files=[*traces, *made.files])


def _run_pairs(options: Options) -> Report:
    from sw_driver.experiments.pim.networks import BATCH, MOST_PRODUCTS
    from sw_driver.experiments.pim.report import pairs

    _refuse_others(options, "--pairs has its own layers and passes, and no trace", "dram_trace")
    if options.backend in (None, "golden"):
        raise Refusal("--pairs needs a clock, and golden has none: add --backend cycles or rtl")
    most = MOST_PRODUCTS if options.most_products is None else options.most_products
    with _running(options) as watch:
        return pairs(
            options.pim(),
            images=options.images or BATCH,
            most_products=most,
            backend=options.backend,
            seed=options.seed,
            watch=watch,
        )


def _layers(options: Options) -> list[Scaled]:
    """Return the layers to run."""
    from sw_driver.experiments.pim.networks import BATCH, MOST_PRODUCTS, scaled
    from sw_driver.pim.layers import Convolution, FullyConnected

    given = {name.replace("_", "-"): getattr(options, name) for name in _OWN_SIZES}
    own = {name: value for name, value in given.items() if value is not None}
    if own:
        by_name = ("network", "layer", "images", "most_products")
        if any(getattr(options, name) is not None for name in by_name):
            raise Refusal(
                f"--{next(iter(own))} is for a layer of your own sizes, but --network, --layer, "
                "--images and --most-products are for a layer by name: give one kind of these"
            )
        if "fully-connected" in own:
            if len(own) > 1:
                raise Refusal("--fully-connected excludes other sizes: leave these out")
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
    most = MOST_PRODUCTS if options.most_products is None else options.most_products
    names = options.layer or ["conv1"]
    return scaled(options.network or "alexnet", names, options.images or BATCH, most)


def _validate(options: Options, runs: int) -> Report:
    from sw_driver.experiments.pim.validation import report

    others = "images", "backend", "pairs", "dram_trace"
    _refuse_others(options, "--validate has its own runs, on all units", *others)
    with _running(options) as watch:
        return report(
            options.pim(),
            runs,
            seed=options.seed,
            most_products=options.most_products,
            sequences=options.sequences,
            watch=watch,
        )
