"""``nearmem sim``: a real training job on the simulated module."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import Refusal, driving, integer, open_device, output_file, progress_console

if TYPE_CHECKING:
    from rich.console import Console

    from sw_driver.axdimm import Axdimm
    from sw_driver.axdimm.backends import BackendOptions
    from sw_driver.experiments.training.trainer import TrainingResult, TrainingSettings

__all__ = ["add_parser", "run"]

DEFAULT_STEPS = 50
KIB = 1024
MIB = 1024 * 1024


def add_parser(subparsers: Any) -> None:
    """Describes the options."""
    parser = subparsers.add_parser(
        "sim",
        help="train on handwritten digits, every optimizer step on the simulated module",
        description="Trains a perceptron of 102,090 parameters on scikit-learn's handwritten "
        "digits. Every Adam step runs on both channels of the simulated module; p, m and v of all "
        "parameters are compared with the golden model after each, bit for bit. Writes report.json "
        "and loss.png. The exit status is 1 if a bit differs or the device fails.",
    )
    parser.add_argument(
        "--backend",
        choices=("rtl", "cycles", "golden"),
        default="rtl",
        help="what executes the steps: the Verilated RTL; the golden model with the time of the "
        "cycle model; or the golden model alone, which has no clock (default: rtl)",
    )
    parser.add_argument(
        "--config", metavar="PRESET", help="configuration of the module (default: the paper's)"
    )
    parser.add_argument("--lanes", type=integer(1), metavar="N", help="functional units a channel")
    block = parser.add_mutually_exclusive_group()
    block.add_argument("--block-bytes", type=integer(1), metavar="N", help="bytes of a block")
    block.add_argument("--block-kib", type=integer(1), metavar="N", help="the same in KiB")
    parser.add_argument(
        "--capacity-mib", type=integer(1), metavar="N", help="DRAM of each channel in MiB"
    )
    parser.add_argument(
        "--steps",
        type=integer(1, 1_000_000),
        default=DEFAULT_STEPS,
        metavar="N",
        help=f"optimizer steps (default: {DEFAULT_STEPS})",
    )
    parser.add_argument(
        "--seed",
        type=integer(0, 2**63 - 1),
        default=1,
        metavar="N",
        help="of the first parameters and the order of the images (default: 1)",
    )
    parser.add_argument(
        "--wave", type=output_file, metavar="FILE", help="write a waveform (FST); slow and large"
    )
    parser.add_argument(
        "--dram-trace", type=output_file, metavar="FILE", help="write every DRAM command (CSV)"
    )
    parser.add_argument(
        "--timeline",
        type=output_file,
        metavar="FILE",
        help="write when every copy, mode switch and run was, in simulated time (JSON, which opens "
        "in ui.perfetto.dev; or a picture if the name ends in .svg or .png)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where report and curve go (default: build/sim)"
    )
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")
    parser.add_argument("--json", action="store_true", help="print the report, and only it")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the job and returns the exit status."""
    from sw_driver.experiments.training.trainer import TrainingSettings
    from sw_driver.simulator.buildcache import build_root

    progress = progress_console(arguments)
    folder = arguments.out if arguments.out is not None else build_root() / "sim"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refusal(
            f"cannot create the folder {str(folder)!r} ({error.strerror}): give another with --out"
        ) from error

    settings = TrainingSettings(steps=arguments.steps, seed=arguments.seed)
    options = _options(arguments, progress)
    with open_device(arguments.backend, options, timeline=arguments.timeline) as device:
        return _train(arguments, device, options, settings, folder, progress)


def _options(arguments: argparse.Namespace, progress: Console) -> BackendOptions:
    from sw_driver.axdimm.backends import BackendOptions

    block_bytes = arguments.block_bytes
    if arguments.block_kib is not None:
        block_bytes = arguments.block_kib * KIB
    capacity_bytes = None if arguments.capacity_mib is None else arguments.capacity_mib * MIB
    wanted = {
        "lanes": arguments.lanes,
        "block_bytes": block_bytes,
        "capacity_bytes": capacity_bytes,
    }
    return BackendOptions(
        preset=arguments.config,
        settings={name: value for name, value in wanted.items() if value is not None},
        wave=arguments.wave,
        dram_trace=arguments.dram_trace,
        announce=progress.print,
    )


def _refresh_note(efficiency: float | None, refresh_limit: float | None) -> str | None:
    """Why more was measured than refresh leaves; None if it was not."""
    if efficiency is None or refresh_limit is None or efficiency <= refresh_limit:
        return None
    return (
        f"More than the {100 * refresh_limit:.2f} % that refresh leaves in the long run: a step is "
        "so short that the DRAM controller gives most of its refreshes before or after it, as the "
        "standard allows. `nearmem bench` with as many --parameters as the memory holds shows a "
        "sustained figure."
    )


def _train(
    arguments: argparse.Namespace,
    device: Axdimm,
    options: BackendOptions,
    settings: TrainingSettings,
    folder: Path,
    progress: Console,
) -> int:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from sw_driver.axdimm.backends import module_config
    from sw_driver.experiments.training.data import load_split_digits
    from sw_driver.experiments.training.report import (
        activity_table,
        report,
        summary_table,
        write_loss_curve,
        write_report,
    )
    from sw_driver.experiments.training.trainer import MismatchError, Trainer

    trainer = Trainer(device, load_split_digits(), settings)
    mismatches = None
    try:
        with (
            driving(out_of_memory="give the channels more memory with --capacity-mib"),
            Progress(
                TextColumn("step"),
                MofNCompleteColumn(),
                BarColumn(),
                TextColumn("loss {task.fields[loss]:.3f}"),
                TimeElapsedColumn(),
                console=progress,
            ) as bar,
        ):
            task = bar.add_task("", total=settings.steps, loss=float("nan"))
            result: TrainingResult = trainer.train(
                lambda step, loss: bar.update(task, completed=step, loss=loss)
            )
    except MismatchError as error:
        result, mismatches = error.result, error.mismatches

    configuration = device.configuration(0)
    figures = report(
        result,
        fabric_mhz=device.transport.fabric_mhz,
        refresh_limit=module_config(options).refresh_efficiency,
        backend=device.transport.name,
        lanes=configuration.lanes,
        block_bytes=configuration.block_bytes,
        capacity_bytes=configuration.capacity_bytes,
        configuration=module_config(options).describe(),
        seed=settings.seed,
        copied_bytes=[asdict(device.copied_bytes(channel)) for channel in range(device.channels)],
        mismatches=[str(mismatch) for mismatch in mismatches or ()],
    )
    write_report(folder / "report.json", figures)
    write_loss_curve(folder / "loss.png", result.losses)
    if arguments.json:
        print(json.dumps(figures, indent=2))
    elif not arguments.quiet:
        console = Console()
        console.print(summary_table(figures))
        activity = activity_table(figures)
        if activity is not None:
            console.print(activity)
        note = _refresh_note(figures["efficiency"], figures["refresh_limit"])
        if note is not None:
            console.print(note, highlight=False)
        console.print(
            "Gradients and parameters went over the host link; the moments were read through the "
            f"backdoor to be compared.\nReport: {folder / 'report.json'}  Loss curve: "
            f"{folder / 'loss.png'}",
            highlight=False,
            soft_wrap=True,
        )
    for mismatch in mismatches or ():
        print(f"nearmem: {mismatch}", file=sys.stderr)
    return 1 if mismatches else 0
