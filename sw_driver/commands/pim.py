"""``nearmem pim``: a layer on the fixed-function PIMs, and what it costs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import Failure, Refusal, integer, output_file, progress_console

if TYPE_CHECKING:
    from rich.console import Console

    from hw.pim.config import PimConfig
    from sw_driver.pim.device import Pim
    from sw_driver.pim.layers import Layer
    from sw_driver.pim.measure import Job
    from sw_driver.pim.transport import PimTransport
    from sw_driver.pim.validation import Comparison

__all__ = ["add_parser", "run"]

DEFAULT_MOST_PRODUCTS = 25_000_000
"""What RTL computes in some seconds."""

MOST_FOLLOWED_CYCLES = 10_000_000
"""Of a work of several layers in the cycle model."""

MOST_ERROR = 0.02
"""Of the cycle model, in cycles."""

_MOST_WORK_PRODUCTS = 200_000
"""Of a random work that RTL and the cycle model are compared on."""

_PASSES = ("forward", "backward-filter", "backward-input", "bias", "backward-bias", "descent")


def _sizes(*names: str) -> Callable[[str], list[int]]:
    """An option's type: as many integers, with commas between them."""

    def parse(text: str) -> list[int]:
        parts = text.split(",")
        if len(parts) != len(names) or not all(part.strip().isdecimal() for part in parts):
            raise argparse.ArgumentTypeError(
                f"got {text!r}, expected {len(names)} integers {','.join(names)}"
            )
        return [int(part) for part in parts]

    return parse


def add_parser(subparsers: Any) -> None:
    """Describes the options."""
    parser = subparsers.add_parser(
        "pim",
        help="run a layer of a network on the fixed-function PIMs",
        description="Runs a pass of a layer, by name or of your own sizes, as works on the banks "
        "of the stack. Prints cycles, utilisation of the units, bytes, GFLOP/s, the shares of what "
        "units and memory could do at best, and which banks were busy. Results of a backend with "
        "a clock are compared with the golden model, bit for bit; the exit status is 1 if one "
        "differs.",
    )
    parser.add_argument(
        "--backend", default="golden", metavar="NAME", help="what executes (default: golden)"
    )
    parser.add_argument(
        "--config", default="paper", metavar="PRESET", help="configuration of the stack"
    )
    named = parser.add_argument_group("a layer by name")
    named.add_argument("--network", metavar="NAME", help="alexnet or vgg-19 (default: alexnet)")
    named.add_argument(
        "--layer",
        action="append",
        metavar="NAME",
        help="such as conv1, conv3_1 or fc6 (default: conv1); several run side by side",
    )
    named.add_argument("--images", type=integer(1, 65535), metavar="N", help="batch (default: 32)")
    named.add_argument(
        "--most-products",
        type=integer(0),
        metavar="N",
        help="scale the layer down until its forward pass has at most so many multiplications; 0 "
        f"leaves it as published (default: {DEFAULT_MOST_PRODUCTS})",
    )
    own = parser.add_argument_group("a layer of your own sizes")
    own.add_argument(
        "--convolution",
        type=_sizes("IMAGES", "CHANNELS", "HEIGHT", "WIDTH"),
        metavar="N,C,H,W",
        help="images, channels, height, width; with --filters",
    )
    own.add_argument(
        "--filters",
        type=_sizes("FILTERS", "HEIGHT", "WIDTH"),
        metavar="F,H,W",
        help="number, height and width of the filters",
    )
    own.add_argument("--stride", type=integer(1, 65535), metavar="N", help="default: 1")
    own.add_argument("--padding", type=integer(0, 65535), metavar="N", help="default: 0")
    own.add_argument("--groups", type=integer(1, 65535), metavar="N", help="default: 1")
    own.add_argument(
        "--fully-connected",
        type=_sizes("SAMPLES", "INPUTS", "OUTPUTS"),
        metavar="N,I,O",
        help="samples, inputs, outputs",
    )
    parser.add_argument(
        "--pass",
        dest="pass_name",
        choices=_PASSES,
        default="forward",
        help="default: forward; of a fully connected layer backward-filter is the weights'",
    )
    parser.add_argument(
        "--parts",
        type=integer(1, 4096),
        metavar="N",
        help="cut each work into so many, which run side by side (default: as suits the pass)",
    )
    parser.add_argument(
        "--seed", type=integer(0, 2**63 - 1), default=1, metavar="N", help="of the values"
    )
    parser.add_argument(
        "--validate",
        type=integer(1, 10_000),
        metavar="N",
        help="instead compare N runs in RTL and in the cycle model: passes of layers, scaled by "
        "--most-products, then random works drawn by --seed; the exit status is 1 if the model's "
        "cycles are off by more than 2 %%",
    )
    parser.add_argument(
        "--dram-trace",
        type=output_file,
        metavar="FILE",
        help="write every command to a vault's DRAM (CSV; backend rtl)",
    )
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the layers and prints."""
    from rich.console import Console

    from hw.pim.config import configure
    from sw_driver.errors import AxdimmError, NoSuchDeviceError, OutOfMemoryError
    from sw_driver.pim.backends import open_pim
    from sw_driver.pim.device import Pim
    from sw_driver.pim.errors import LayerError
    from sw_driver.pim.report import bank_map, layer_table, notes
    from sw_driver.transport import DeviceFault, DeviceTimeout

    progress = progress_console(arguments)
    if arguments.validate is not None:
        if arguments.dram_trace is not None:
            raise Refusal("--validate runs many devices, --dram-trace is of one: give either")
        return _validate(arguments, progress)
    try:
        config, jobs = _placed(_layers(arguments), arguments, configure(arguments.config))
        transport = open_pim(
            arguments.backend,
            config,
            announce=progress.print,
            dram_trace=arguments.dram_trace,
        )
        long = _are_long(transport, jobs)
        with Pim(transport) as device:
            figures = _measure(device, jobs, arguments.seed, progress, long=long)
    except OutOfMemoryError as error:
        raise Refusal(f"{error}: take a smaller layer or batch, or --most-products") from error
    except (LayerError, NoSuchDeviceError) as error:
        raise Refusal(str(error)) from error
    except (AxdimmError, DeviceFault, DeviceTimeout) as error:
        raise Failure(f"the device failed: {error}") from error
    except MemoryError as error:
        raise Failure(
            "this machine's memory does not hold the layer: take a smaller one, or --most-products"
        ) from error
    except ValueError as error:
        raise Refusal(str(error)) from error
    except OSError as error:
        raise Failure(str(error)) from error
    if arguments.json:
        print(json.dumps(figures, indent=2))
    elif not arguments.quiet:
        # Wide enough for all columns where nobody looks at a window.
        console = Console(width=None if sys.stdout.isatty() else 160)
        console.print(layer_table(figures))
        grid = bank_map(figures)
        if grid is not None:
            console.print(grid)
        for note in notes(figures):
            console.print(note, highlight=False)
    if figures["wrong_results"]:
        raise Failure(f"{figures['wrong_results']} results differ from the golden model's")
    return 0


def _layers(arguments: argparse.Namespace) -> list[tuple[str, Layer, Layer]]:
    """The layers to run: name, as it runs, as it was before it was scaled."""
    from sw_driver.pim.layers import Convolution, FullyConnected
    from sw_driver.pim.networks import BATCH, named_layer

    given = {
        name: getattr(arguments, name.replace("-", "_"))
        for name in ("convolution", "filters", "stride", "padding", "groups", "fully-connected")
    }
    own = {name: value for name, value in given.items() if value is not None}
    if own:
        by_name = ("network", "layer", "images", "most_products")
        if any(getattr(arguments, name) is not None for name in by_name):
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
        images, channels, height, width = own["convolution"]
        filters, filter_height, filter_width = own["filters"]
        layer = Convolution(
            images=images,
            channels=channels,
            height=height,
            width=width,
            filters=filters,
            filter_height=filter_height,
            filter_width=filter_width,
            stride=own.get("stride", 1),
            padding=own.get("padding", 0),
            groups=own.get("groups", 1),
        )
        return [("convolution", layer, layer)]
    network = arguments.network or "alexnet"
    most = DEFAULT_MOST_PRODUCTS if arguments.most_products is None else arguments.most_products
    layers: list[tuple[str, Layer, Layer]] = []
    for name in arguments.layer or ["conv1"]:
        published = named_layer(network, name, images=arguments.images or BATCH)
        layers.append(
            (f"{network} {name}", published.scaled(most) if most else published, published)
        )
    return layers


def _placed(
    layers: list[tuple[str, Layer, Layer]], arguments: argparse.Namespace, config: PimConfig
) -> tuple[PimConfig, list[Job]]:
    """The jobs in a stack that is as large as simulation needs it, or else as configured."""
    from dataclasses import replace

    from sw_driver.errors import OutOfMemoryError
    from sw_driver.pim.backends import SIMULATED_BANK_BYTES

    if config.bank_bytes > SIMULATED_BANK_BYTES:
        smaller = replace(config, bank_bytes=SIMULATED_BANK_BYTES)
        try:
            return smaller, _jobs(layers, arguments, smaller)
        except OutOfMemoryError:
            pass
    return config, _jobs(layers, arguments, config)


def _jobs(
    layers: list[tuple[str, Layer, Layer]], arguments: argparse.Namespace, config: PimConfig
) -> list[Job]:
    from sw_driver.pim.lowering import lower
    from sw_driver.pim.measure import Job
    from sw_driver.pim.placing import StripedMemory

    memory = StripedMemory(config)
    return [
        Job(
            name=name,
            pass_name=arguments.pass_name,
            layer=layer,
            published=published,
            program=lower(
                layer,
                arguments.pass_name,
                config,
                parts=arguments.parts,
                memory=memory,
            ),
        )
        for name, layer, published in layers
    ]


def _are_long(transport: PimTransport, jobs: list[Job]) -> bool:
    """Whether the cycle model should shorten the job's sums; of several jobs it follows all, and
    refuses what would take hours."""
    from sw_driver.pim.backends.cycles import CyclesPim
    from sw_driver.pim.shortening import followed_cycles, is_long

    if not isinstance(transport, CyclesPim):
        return False
    if len(jobs) == 1:
        return is_long(transport, jobs[0])
    for job in jobs:
        if followed_cycles(transport, job) > MOST_FOLLOWED_CYCLES:
            raise Refusal(
                f"{job.name} {job.pass_name}: its sums are too long for the cycle model to follow "
                "beside another layer: take it alone, fewer --images or --most-products"
            )
    return False


def _measure(
    device: Pim, jobs: list[Job], seed: int, progress: Console, *, long: bool
) -> dict[str, Any]:
    """Runs the jobs, compares the results where there is something to compare, and reports."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from sw_driver.pim.measure import check_bits, figures, run_jobs
    from sw_driver.pim.shortening import run_shortened

    def completed() -> None:
        bar.advance(task)

    with Progress(
        TextColumn("{task.description}"),
        MofNCompleteColumn(),
        BarColumn(),
        TimeElapsedColumn(),
        console=progress,
        transient=True,
    ) as bar:
        works = sum(len(job.program.works) for job in jobs)
        task = bar.add_task("works", total=2 * works if long else works)
        if long:
            done = run_shortened(device.config, jobs[0], completed=completed)
        else:
            done = run_jobs(device, jobs, seed=seed, completed=completed)
        report = figures(device, jobs, done)
        report["wrong_results"] = None
        if device.transport.timed and device.transport.computes:
            task = bar.add_task("golden model", total=None)
            report["wrong_results"] = check_bits(device, jobs, seed=seed)
    return report


def _validate(arguments: argparse.Namespace, progress: Console) -> int:
    """Compares RTL and cycle model, and prints."""
    import statistics
    from dataclasses import asdict, replace
    from itertools import chain

    from rich.console import Console
    from rich.progress import track

    from hw.pim.config import configure
    from sw_driver.errors import AxdimmError
    from sw_driver.pim.backends import SIMULATED_BANK_BYTES
    from sw_driver.pim.report import comparison_table
    from sw_driver.pim.validation import compare_jobs, compare_works, draw, jobs
    from sw_driver.transport import DeviceFault, DeviceTimeout

    count, most = arguments.validate, arguments.most_products
    try:
        config = configure(arguments.config)
        config = replace(config, bank_bytes=min(config.bank_bytes, SIMULATED_BANK_BYTES))
        passes = list(jobs(config, count, most_products=most or DEFAULT_MOST_PRODUCTS))
        works = draw(
            config,
            count - len(passes),
            seed=arguments.seed,
            most_products=_MOST_WORK_PRODUCTS,
        )
        compared: list[Comparison] = list(
            track(
                chain(
                    compare_jobs(config, passes, announce=progress.print),
                    compare_works(config, works, announce=progress.print),
                ),
                description="comparing",
                total=count,
                console=progress,
                transient=True,
            )
        )
    except (AxdimmError, DeviceFault, DeviceTimeout) as error:
        raise Failure(f"the device failed: {error}") from error
    except ValueError as error:
        raise Refusal(str(error)) from error
    except OSError as error:
        raise Failure(str(error)) from error
    errors = [abs(each.error) for each in compared]
    largest = max(errors)
    if arguments.json:
        report = {
            "config": arguments.config,
            "bank_bytes": config.bank_bytes,
            "median_error": statistics.median(errors),
            "largest_error": largest,
            "compared": [{**asdict(each), "error": each.error} for each in compared],
        }
        print(json.dumps(report, indent=2))
    elif not arguments.quiet:
        console = Console(width=None if sys.stdout.isatty() else 160)
        console.print(comparison_table(compared))
        console.print(
            f"Error of the cycle model: median {statistics.median(errors):.2%}, largest "
            f"{largest:.2%}.",
            highlight=False,
        )
    if largest > MOST_ERROR:
        raise Failure(f"the cycle model is off by {largest:.2%}, more than {MOST_ERROR:.0%}")
    return 0
