"""``nearmem sim``: a training job with its optimizer on the simulated module."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from sw_driver.device.errors import InvalidArgumentError

from . import (
    FLAT,
    MachineOptions,
    OutputFile,
    OutputFolder,
    Refusal,
    backend_options,
    driving,
    exclusive,
    integer,
    open_device,
    output_folder,
    refuse_both,
)
from .screen import Screen, show

if TYPE_CHECKING:
    from sw_driver.axdimm.backends import BackendOptions

__all__ = ["Options", "run"]

DEFAULT_STEPS = {"digits": 50, "gpt": 200}
DEFAULT_BACKENDS = {"digits": "rtl", "gpt": "cycles"}
KIB = 1024
MIB = 1024 * 1024

_BLOCK = exclusive()


@dataclass(frozen=True, kw_only=True)
class Options(MachineOptions):
    """Options of the command."""

    model: Literal["digits", "gpt"] = "digits"
    """network to train; gpt needs PyTorch: pip install -e '.[torch]'"""
    optimizer: Annotated[str | None, Parameter(metavar="NAME")] = None
    """update rule, such as adamw; the same as --set rules=NAME (default: the paper's, adam)"""
    backend: Literal["rtl", "cycles", "golden"] | None = None
    """simulator of the module: the Verilated RTL; the golden model with times of the cycle model;
    or the golden model without times (default: rtl for digits, cycles for gpt)"""
    lanes: Annotated[int | None, integer(1)] = None
    """functional units of a channel"""
    block_bytes: Annotated[int | None, integer(1), _BLOCK] = None
    """bytes of a block"""
    block_kib: Annotated[int | None, integer(1), _BLOCK] = None
    """KiB of a block"""
    capacity_mib: Annotated[int | None, integer(1)] = None
    """DRAM of each channel in MiB"""
    steps: Annotated[int | None, integer(1, 1_000_000)] = None
    """optimizer steps (default: 50 for digits, 200 for gpt)"""
    seed: Annotated[int, integer(0, 2**63 - 1)] = 1
    """seed of the initial parameters and the batches"""
    wave: OutputFile = None
    """write a waveform (FST) of each channel, which is slow and large; it shows the inside of the
    first functional unit only"""
    wave_from: Annotated[int | None, integer(0, 2**62, metavar="CYCLE")] = None
    """first fabric cycle of the waveform (default: 0)"""
    wave_cycles: Annotated[int | None, integer(1, 2**62)] = None
    """fabric cycles of the waveform, without those in which an idle channel's clock stands still
    (default: all)"""
    dram_trace: OutputFile = None
    """write every DRAM command to this file (CSV)"""
    timeline: OutputFile = None
    """write the simulated times of all copies, mode switches and runs: JSON for ui.perfetto.dev, or
    a picture if the name ends in .svg or .png"""
    out: OutputFolder = None
    """folder for report.json and loss.png (default: build/sim)"""


def run(options: Annotated[Options, FLAT] = Options()) -> int:
    """Train a network with every optimizer step on the simulated module, and check each bit.

    Trains a perceptron of 102,090 parameters on scikit-learn's handwritten digits; or a GPT of
    1,032,576 parameters on the sources of Python's standard library, beside the same GPT in PyTorch
    alone. Both channels of the module run every optimizer step. After each step all updated tensors
    are compared with the golden model, bit for bit. Writes report.json and loss.png. The exit
    status is 1 if a bit differs or the device fails.

    Example: nearmem sim --steps 5 --backend cycles
    """
    from sw_driver.axdimm.backends import module_config
    from sw_driver.axdimm.backends.rtl import wave_files
    from sw_driver.experiments.training.report import report, trainer_of

    folder = output_folder(options.out, "sim")
    steps = options.steps or DEFAULT_STEPS[options.model]
    make = trainer_of(options.model, steps=steps, seed=options.seed)
    module = _module(options)
    backend = options.backend or DEFAULT_BACKENDS[options.model]
    files = [file for file in (options.dram_trace, options.timeline) if file is not None]
    try:
        with (
            open_device(backend, module, timeline=options.timeline) as device,
            Screen(options) as watch,
            driving(out_of_memory="give the channels more memory with --capacity-mib"),
        ):
            if options.wave is not None:
                files = wave_files(options.wave, device.channels) + files
            config = module_config(module)
            made = report(make(device), device, config, folder, files=files, watch=watch)
    except InvalidArgumentError as error:
        if "wave_window" not in error.details:
            raise
        raise Refusal(f"--wave-from is {options.wave_from or 0}: {error}") from error
    return show(made, options)


def _module(options: Options) -> BackendOptions:
    """Return the backend's options, with the settings and files of ``options``."""
    from sw_driver.experiments.settings import check_rule
    from sw_driver.experiments.training.trainer import TRAINING_RULES

    if options.optimizer is not None:
        check_rule("--optimizer", options.optimizer, TRAINING_RULES)
    capacity_bytes = options.capacity_mib and options.capacity_mib * MIB
    wanted = [
        ("rules", "--optimizer", options.optimizer),
        ("lanes", "--lanes", options.lanes),
        ("block_bytes", "--block-bytes", options.block_bytes),
        ("block_bytes", "--block-kib", options.block_kib and options.block_kib * KIB),
        ("capacity_bytes", "--capacity-mib", capacity_bytes),
    ]
    own = {name: value for name, _, value in wanted if value is not None}
    given = {name: option for name, option, value in wanted if value is not None}
    if capacity_bytes is not None:
        given["rows"] = given["capacity_bytes"]
    refuse_both(options.set, given)
    window = None
    if options.wave_from is not None or options.wave_cycles is not None:
        if options.wave is None:
            raise Refusal("--wave-from and --wave-cycles need a waveform: add --wave FILE")
        begin = options.wave_from or 0
        window = (begin, begin + (options.wave_cycles or 2**62))
    module = backend_options(options, **own)
    return replace(module, wave=options.wave, wave_window=window, dram_trace=options.dram_trace)
