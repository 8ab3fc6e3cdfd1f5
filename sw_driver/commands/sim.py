"""``nearmem sim``: a real training job on the simulated module."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import (
    Names,
    Refusal,
    add_configuration_options,
    add_output_options,
    backend_options,
    driving,
    integer,
    open_device,
    output_file,
    output_folder,
    print_files,
    progress_console,
)

if TYPE_CHECKING:
    from rich.console import Console

    from sw_driver.axdimm import Axdimm
    from sw_driver.axdimm.backends import BackendOptions
    from sw_driver.experiments.training.gpt import GptTrainer
    from sw_driver.experiments.training.trainer import Trainer, TrainingResult

__all__ = ["add_parser", "run"]

DEFAULT_STEPS = {"digits": 50, "gpt": 200}
DEFAULT_BACKENDS = {"digits": "rtl", "gpt": "cycles"}
KIB = 1024
MIB = 1024 * 1024


def _by_model(values: Mapping[str, object]) -> str:
    return ", ".join(f"{value} for {model}" for model, value in values.items())


def _rules() -> Iterable[str]:
    from sw_driver.experiments.training.trainer import TRAINING_RULES

    return TRAINING_RULES


def add_parser(subparsers: Any) -> None:
    """Describes the options."""
    parser = subparsers.add_parser(
        "sim",
        help="train a network, every optimizer step on the simulated module",
        description="Trains a perceptron of 102,090 parameters on scikit-learn's handwritten "
        "digits, or a GPT of 1,032,576 on the sources of Python's standard library, beside the "
        "same GPT trained by PyTorch alone. Every step of the optimizer runs on both channels of "
        "the simulated module; all that it updates is compared with the golden model after each, "
        "bit for bit. Writes report.json and loss.png. The exit status is 1 if a bit differs or "
        "the device fails.",
    )
    parser.add_argument(
        "--model",
        choices=tuple(DEFAULT_STEPS),
        default="digits",
        help="what is trained; gpt needs PyTorch, pip install -e '.[torch]' (default: digits)",
    )
    optimizer: Any = parser.add_argument(
        "--optimizer",
        metavar="NAME",
        help="update rule that trains, one of %(rules)s; the same as --set rules=NAME (default: "
        "the paper's)",
    )
    optimizer.rules = Names(_rules)
    parser.add_argument(
        "--backend",
        choices=("rtl", "cycles", "golden"),
        help="what executes the steps: the Verilated RTL; the golden model with the time of the "
        "cycle model; or the golden model alone, which has no clock "
        f"(default: {_by_model(DEFAULT_BACKENDS)})",
    )
    add_configuration_options(parser)
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
        metavar="N",
        help=f"optimizer steps (default: {_by_model(DEFAULT_STEPS)})",
    )
    parser.add_argument(
        "--seed",
        type=integer(0, 2**63 - 1),
        default=1,
        metavar="N",
        help="of the first parameters and the batches (default: 1)",
    )
    parser.add_argument(
        "--wave",
        type=output_file,
        metavar="FILE",
        help="write a waveform of each channel (FST); slow and large. Of the functional units it "
        "has the inside of the first",
    )
    parser.add_argument(
        "--wave-from",
        type=integer(0),
        metavar="CYCLE",
        help="fabric cycle of the simulated time with which the waveform begins (default: 0)",
    )
    parser.add_argument(
        "--wave-cycles",
        type=integer(1),
        metavar="N",
        help="fabric cycles that the waveform is of, less those in which a channel is idle and its "
        "clock stands still (default: all)",
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
    add_output_options(parser, "the report")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the job and returns the exit status."""
    progress = progress_console(arguments)
    folder = output_folder(arguments.out, "sim")
    _choose_rule(arguments)
    arguments.steps = arguments.steps or DEFAULT_STEPS[arguments.model]
    arguments.backend = arguments.backend or DEFAULT_BACKENDS[arguments.model]
    make = _maker(arguments)
    options = _options(arguments, progress)
    with open_device(arguments.backend, options, timeline=arguments.timeline) as device:
        channels = device.channels
        status = _train(arguments, device, options, make, folder, progress)
    if not arguments.json:
        print_files(arguments, _files(arguments, folder, channels))
    return status


def _choose_rule(arguments: argparse.Namespace) -> None:
    """Makes ``--set rules=`` of ``--optimizer``."""
    if arguments.optimizer is None:
        return
    from sw_driver.experiments.settings import Key, SweepError, split_entry
    from sw_driver.experiments.training.trainer import TRAINING_RULES

    try:
        Key(name="--optimizer", kind=str, choices=TRAINING_RULES).parse(arguments.optimizer)
        given = [entry for entry in arguments.set if split_entry(entry)[0] == "rules"]
    except SweepError as error:
        raise Refusal(str(error)) from error
    if given:
        raise Refusal(
            f"--optimizer is {arguments.optimizer!r} and --set is {given[0]!r}, which is the same "
            "setting: give one of them"
        )
    arguments.set = [*arguments.set, f"rules={arguments.optimizer}"]


def _maker(arguments: argparse.Namespace) -> Callable[[Axdimm], Trainer | GptTrainer]:
    """What makes the trainer, when all that it needs is there."""
    from sw_driver.experiments.training.data import load_library_text, load_split_digits
    from sw_driver.experiments.training.trainer import Trainer, TrainingSettings

    job = {"steps": arguments.steps, "seed": arguments.seed}
    if arguments.model == "digits":
        return lambda device: Trainer(device, load_split_digits(), TrainingSettings(**job))
    try:
        import sw_driver.torch  # noqa: F401

        text = load_library_text()
    except (ImportError, FileNotFoundError) as error:
        raise Refusal(f"--model is 'gpt': {error}") from error
    from sw_driver.experiments.training.gpt import GptSettings, GptTrainer

    return lambda device: GptTrainer(device, text, GptSettings(**job))


def _files(arguments: argparse.Namespace, folder: Path, channels: int) -> list[Path]:
    files = [folder / "report.json", folder / "loss.png"]
    if arguments.wave is not None:
        from sw_driver.axdimm.backends.rtl import wave_files

        files += wave_files(arguments.wave, channels)
    return files + [each for each in (arguments.dram_trace, arguments.timeline) if each is not None]


def _options(arguments: argparse.Namespace, progress: Console) -> BackendOptions:
    options = backend_options(arguments, progress)
    block_kib, capacity_mib = arguments.block_kib, arguments.capacity_mib
    wanted = {
        "lanes": arguments.lanes,
        "block_bytes": arguments.block_bytes if block_kib is None else block_kib * KIB,
        "capacity_bytes": None if capacity_mib is None else capacity_mib * MIB,
    }
    own = {name: value for name, value in wanted.items() if value is not None}
    window = None
    if arguments.wave_from is not None or arguments.wave_cycles is not None:
        if arguments.wave is None:
            raise Refusal("--wave-from and --wave-cycles are of a waveform: give --wave FILE, too")
        begin = arguments.wave_from or 0
        window = (begin, begin + (arguments.wave_cycles or 1 << 62))
    return replace(
        options,
        settings={**options.settings, **own},
        wave=arguments.wave,
        wave_window=window,
        dram_trace=arguments.dram_trace,
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
    make: Callable[[Axdimm], Trainer | GptTrainer],
    folder: Path,
    progress: Console,
) -> int:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from sw_driver.axdimm.backends import module_config
    from sw_driver.errors import InvalidArgumentError
    from sw_driver.experiments.training.report import (
        activity_table,
        report,
        summary_table,
        write_loss_curve,
    )
    from sw_driver.experiments.training.trainer import MismatchError
    from sw_driver.runtime.files import write_whole

    try:
        trainer = make(device)
    except InvalidArgumentError as error:
        raise Refusal(f"rules is {','.join(device.rules(0))!r}: {error}") from None
    mismatches = None
    try:
        with (
            driving(out_of_memory="give the channels more memory with --capacity-mib"),
            Progress(
                TextColumn("step"),
                MofNCompleteColumn(),
                BarColumn(),
                TextColumn("{task.fields[loss]}"),
                TimeElapsedColumn(),
                console=progress,
            ) as bar,
        ):
            task = bar.add_task("", total=arguments.steps, loss="")
            result: TrainingResult = trainer.train(
                lambda step, loss: bar.update(task, completed=step, loss=f"loss {loss:.3f}")
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
        seed=arguments.seed,
        copied_bytes=[asdict(device.copied_bytes(channel)) for channel in range(device.channels)],
        mismatches=[str(mismatch) for mismatch in mismatches or ()],
        **trainer.context(),
    )
    text = json.dumps(figures, indent=2)
    write_whole(folder / "report.json", text + "\n")
    curves = figures.get("losses", {"module": result.losses})
    write_loss_curve(folder / "loss.png", trainer.title, curves)
    if arguments.json:
        print(text)
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
            "Gradients and parameters went over the host link; other state was read through the "
            "backdoor to be compared.",
            highlight=False,
            soft_wrap=True,
        )
    for mismatch in mismatches or ():
        print(f"nearmem: {mismatch}", file=sys.stderr)
    return 1 if mismatches else 0
