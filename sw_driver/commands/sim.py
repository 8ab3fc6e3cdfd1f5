"""``nearmem sim``: a real training job on the simulated module."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from sw_driver.device.errors import InvalidArgumentError

from . import (
    FLAT,
    MachineOptions,
    OutputFile,
    OutputFolder,
    OutputOptions,
    Refusal,
    backend_options,
    driving,
    exclusive,
    integer,
    open_device,
    output_folder,
    print_files,
    progress_console,
    refresh_note,
    refuse_both,
)
from .screen import print_prose, print_table

if TYPE_CHECKING:
    from rich.console import Console

    from sw_driver.axdimm import Axdimm
    from sw_driver.axdimm.backends import BackendOptions
    from sw_driver.experiments.training.gpt import GptTrainer
    from sw_driver.experiments.training.trainer import Trainer, TrainingResult

__all__ = ["Options", "run"]

DEFAULT_STEPS = {"digits": 50, "gpt": 200}
DEFAULT_BACKENDS = {"digits": "rtl", "gpt": "cycles"}
KIB = 1024
MIB = 1024 * 1024

_BLOCK = exclusive()


@dataclass(frozen=True, kw_only=True)
class Options(MachineOptions, OutputOptions):
    """Options of the command."""

    model: Literal["digits", "gpt"] = "digits"
    """what is trained; gpt needs PyTorch, pip install -e '.[torch]'"""
    optimizer: Annotated[str | None, Parameter(metavar="NAME")] = None
    """update rule that trains, such as adamw; the same as --set rules=NAME (default: the
    paper's)"""
    backend: Literal["rtl", "cycles", "golden"] | None = None
    """what executes the steps: the Verilated RTL; the golden model with the time of the cycle
    model; or the golden model alone, which has no clock (default: rtl for digits, cycles for
    gpt)"""
    lanes: Annotated[int | None, integer(1)] = None
    """functional units a channel"""
    block_bytes: Annotated[int | None, integer(1), _BLOCK] = None
    """bytes of a block"""
    block_kib: Annotated[int | None, integer(1), _BLOCK] = None
    """the same in KiB"""
    capacity_mib: Annotated[int | None, integer(1)] = None
    """DRAM of each channel in MiB"""
    steps: Annotated[int | None, integer(1, 1_000_000)] = None
    """optimizer steps (default: 50 for digits, 200 for gpt)"""
    seed: Annotated[int, integer(0, 2**63 - 1)] = 1
    """of the first parameters and the batches"""
    wave: OutputFile = None
    """write a waveform of each channel (FST); slow and large. Of the functional units it has the
    inside of the first"""
    wave_from: Annotated[int | None, integer(0, 2**62, metavar="CYCLE")] = None
    """fabric cycle of the simulated time with which the waveform begins (default: 0)"""
    wave_cycles: Annotated[int | None, integer(1, 2**62)] = None
    """fabric cycles that the waveform is of, less those in which a channel is idle and its clock
    stands still (default: all)"""
    dram_trace: OutputFile = None
    """write every DRAM command (CSV)"""
    timeline: OutputFile = None
    """write when every copy, mode switch and run was, in simulated time (JSON, which opens in
    ui.perfetto.dev; or a picture if the name ends in .svg or .png)"""
    out: OutputFolder = None
    """where report and curve go (default: build/sim)"""


def run(options: Annotated[Options, FLAT] = Options()) -> int:
    """Train a network, every optimizer step on the simulated module.

    Trains a perceptron of 102,090 parameters on scikit-learn's handwritten digits, or a GPT of
    1,032,576 on the sources of Python's standard library, beside the same GPT trained by PyTorch
    alone. Every step of the optimizer runs on both channels of the simulated module; all that it
    updates is compared with the golden model after each, bit for bit. Writes report.json and
    loss.png. The exit status is 1 if a bit differs or the device fails.
    """
    progress = progress_console(options)
    folder = output_folder(options.out, "sim")
    options = _with_rule(options)
    steps = options.steps or DEFAULT_STEPS[options.model]
    make = _maker(options, steps)
    module = _module(options, progress)
    backend = options.backend or DEFAULT_BACKENDS[options.model]
    try:
        with open_device(backend, module, timeline=options.timeline) as device:
            channels = device.channels
            status = _train(options, steps, device, module, make, folder, progress)
    except InvalidArgumentError as error:
        if "wave_window" not in error.details:
            raise
        raise Refusal(f"--wave-from is {options.wave_from or 0}: {error}") from error
    if not options.json:
        print_files(options, _files(options, folder, channels))
    return status


def _with_rule(options: Options) -> Options:
    """``options`` with a ``--set rules=`` for ``--optimizer``."""
    if options.optimizer is None:
        return options
    from sw_driver.experiments.settings import check_rule
    from sw_driver.experiments.training.trainer import TRAINING_RULES
    from sw_driver.numbers import split_entry

    check_rule("--optimizer", options.optimizer, TRAINING_RULES)
    if given := [entry for entry in options.set if split_entry(entry)[0] == "rules"]:
        raise Refusal(
            f"--optimizer is {options.optimizer!r} and --set is {given[0]!r}, which is the same "
            "setting: give one of them"
        )
    return replace(options, set=(*options.set, f"rules={options.optimizer}"))


def _maker(options: Options, steps: int) -> Callable[[Axdimm], Trainer | GptTrainer]:
    """What makes the trainer, when all that it needs is there."""
    from sw_driver.experiments.training.data import load_library_text, load_split_digits
    from sw_driver.experiments.training.trainer import Trainer, TrainingSettings

    job: dict[str, Any] = {"steps": steps, "seed": options.seed}
    if options.model == "digits":
        return lambda device: Trainer(device, load_split_digits(), TrainingSettings(**job))
    try:
        import sw_driver.torch  # noqa: F401

        text = load_library_text()
    except (ImportError, FileNotFoundError) as error:
        raise Refusal(f"--model is 'gpt': {error}") from error
    from sw_driver.experiments.training.gpt import GptSettings, GptTrainer

    return lambda device: GptTrainer(device, text, GptSettings(**job))


def _files(options: Options, folder: Path, channels: int) -> list[Path]:
    files = [folder / "report.json", folder / "loss.png"]
    if options.wave is not None:
        from sw_driver.axdimm.backends.rtl import wave_files

        files += wave_files(options.wave, channels)
    return files + [each for each in (options.dram_trace, options.timeline) if each is not None]


def _module(options: Options, progress: Console) -> BackendOptions:
    module = backend_options(options, progress)
    block_kib, capacity_mib = options.block_kib, options.capacity_mib
    wanted = {
        "lanes": options.lanes,
        "block_bytes": options.block_bytes if block_kib is None else block_kib * KIB,
        "capacity_bytes": None if capacity_mib is None else capacity_mib * MIB,
    }
    own = {name: value for name, value in wanted.items() if value is not None}
    names = {
        "lanes": "--lanes",
        "block_bytes": "--block-bytes" if block_kib is None else "--block-kib",
        "capacity_bytes": "--capacity-mib",
    }
    names["rows"] = names["capacity_bytes"]
    given = own if capacity_mib is None else [*own, "rows"]
    refuse_both(options.set, {name: names[name] for name in given})
    window = None
    if options.wave_from is not None or options.wave_cycles is not None:
        if options.wave is None:
            raise Refusal("--wave-from and --wave-cycles are of a waveform: give --wave FILE, too")
        begin = options.wave_from or 0
        window = (begin, begin + (options.wave_cycles or 2**62))
    return replace(
        module,
        settings={**module.settings, **own},
        wave=options.wave,
        wave_window=window,
        dram_trace=options.dram_trace,
    )


def _train(
    options: Options,
    steps: int,
    device: Axdimm,
    module: BackendOptions,
    make: Callable[[Axdimm], Trainer | GptTrainer],
    folder: Path,
    progress: Console,
) -> int:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from sw_driver.axdimm.backends import module_config
    from sw_driver.experiments.training.report import (
        activity_table,
        report,
        summary_table,
        write_loss_curve,
    )
    from sw_driver.experiments.training.trainer import MismatchError
    from sw_driver.files import write_whole

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
            task = bar.add_task("", total=steps, loss="")
            result: TrainingResult = trainer.train(
                lambda step, loss: bar.update(task, completed=step, loss=f"loss {loss:.3f}")
            )
    except MismatchError as error:
        result, mismatches = error.result, error.mismatches

    configuration = device.configuration(0)
    figures = report(
        result,
        fabric_mhz=device.transport.fabric_mhz,
        refresh_limit=module_config(module).refresh_efficiency,
        backend=device.transport.name,
        lanes=configuration.lanes,
        block_bytes=configuration.block_bytes,
        capacity_bytes=configuration.capacity_bytes,
        configuration=module_config(module).describe(),
        seed=options.seed,
        copied_bytes=[asdict(device.copied_bytes(channel)) for channel in range(device.channels)],
        mismatches=[str(mismatch) for mismatch in mismatches or ()],
        **trainer.context(),
    )
    text = json.dumps(figures, indent=2)
    write_whole(folder / "report.json", text + "\n")
    curves = figures.get("losses", {"module": result.losses})
    write_loss_curve(folder / "loss.png", trainer.title, curves)
    if options.json:
        print(text)
    elif not options.quiet:
        print_table(summary_table(figures))
        activity = activity_table(figures)
        if activity is not None:
            print_table(activity)
        if (note := refresh_note(figures)) is not None:
            print_prose(note)
        print_prose(
            "Gradients and parameters went over the host link; other state was read through the "
            "backdoor to be compared."
        )
    for mismatch in mismatches or ():
        print(f"nearmem: {mismatch}", file=sys.stderr)
    return 1 if mismatches else 0
