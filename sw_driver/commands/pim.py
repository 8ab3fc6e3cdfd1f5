"""``nearmem pim``: a layer on the fixed-function PIMs, or steps of training, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
class Options(MachineOptions):
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
    from sw_driver.numbers import check_name
    from sw_driver.pim.backends import PIM_BACKENDS

    if options.sequences and options.validate is None:
        raise Refusal("--sequences says what to compare: give --validate N, too")
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
    """Show progress, and raise what fails as :class:`Refusal` or :class:`Failure`."""
    try:
        with Screen(options) as watch, driving(out_of_memory=out_of_memory):
            yield watch
    except MemoryError as error:
        raise Failure(
            "this machine's memory does not hold the layer: take a smaller one, or --most-products"
        ) from error
    except ValueError as error:
        raise Refusal(str(error)) from error


def _refuse_others(options: Options, why: str, *names: str) -> None:
    """Raise :class:`Refusal`, which says ``why``, for the options of other jobs."""
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
    _refuse_others(options, "--train has a network of its own, and nothing random", *others)
    if options.backend not in (None, "rtl"):
        raise Refusal(
            f"--train is in RTL, since {options.backend} has no cores: leave --backend "
            f"{options.backend} out"
        )
    settings = options.settings(pim=True)
    if settings.keys() & {"cores", "rings"}:
        raise Refusal("--train sets cores and rings itself: say --cores N, not --set")
    folder = options.out and output_folder(options.out, "pim")
    steps = options.steps or 10
    with _running(options, "take fewer --steps, or larger banks: --set bank_bytes=262144") as watch:
        config = training.training_config(options.cores or 1, **settings)
        transport = open_pim("rtl", config, announce=watch.log, dram_trace=options.dram_trace)
        with Pim(transport) as device:
            if options.runtime is None:
                return training.report(device, steps, folder=folder, watch=watch)
            return scheduled.report(
                device,
                steps,
                principle=options.runtime,
                launch_ns=options.launch_ns or 0,
                folder=folder,
                watch=watch,
            )


def _run_pairs(options: Options) -> Report:
    from sw_driver.experiments.pim.networks import BATCH, MOST_PRODUCTS
    from sw_driver.experiments.pim.report import pairs

    _refuse_others(options, "--pairs has layers and passes of its own and no trace", "dram_trace")
    if options.backend in (None, "golden"):
        raise Refusal("--pairs needs a clock, which golden has not: add --backend cycles or rtl")
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
    most = MOST_PRODUCTS if options.most_products is None else options.most_products
    names = options.layer or ["conv1"]
    return scaled(options.network or "alexnet", names, options.images or BATCH, most)


def _validate(options: Options, runs: int) -> Report:
    from sw_driver.experiments.pim.validation import report

    others = "images", "backend", "pairs", "dram_trace"
    _refuse_others(options, "--validate has runs of its own, of all units", *others)
    with _running(options) as watch:
        return report(
            options.pim(),
            runs,
            seed=options.seed,
            most_products=options.most_products,
            sequences=options.sequences,
            watch=watch,
        )
