"""Report of a training job: figures, tables and the loss curve."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hw.rules import rule
from sw_driver.axdimm import Axdimm
from sw_driver.axdimm.figures import (
    PAPER_EFFICIENCY,
    PAPER_FABRIC_MHZ,
    PAPER_MPARAMS_PER_S,
    ceiling_mparams_per_s,
    mparams_per_s,
)
from sw_driver.axdimm.measure import refresh_note
from sw_driver.device.errors import InvalidArgumentError
from sw_driver.files import write_picture, write_whole
from sw_driver.report import Report, Table, Watch

from ..provenance import provenance
from .data import load_library_text, load_split_digits
from .trainer import (
    ChannelFigures,
    MismatchError,
    Share,
    Trainer,
    TrainingResult,
    TrainingSettings,
)

if TYPE_CHECKING:
    from hw.axdimm.config import ModuleConfig

    from .gpt import GptTrainer

__all__ = [
    "activity_table",
    "figures",
    "report",
    "summary_table",
    "trainer_of",
    "write_loss_curve",
]


def trainer_of(model: str, **job: Any) -> Callable[[Axdimm], Trainer | GptTrainer]:
    """Return a function that makes the trainer of ``digits`` or ``gpt`` on a device.

    ``job``: see :class:`~sw_driver.experiments.training.trainer.TrainingSettings`. Raise
    :class:`~sw_driver.device.errors.InvalidArgumentError` if PyTorch or the text is missing.
    """
    if model == "digits":
        return lambda device: Trainer(device, load_split_digits(), TrainingSettings(**job))
    try:
        import sw_driver.torch  # noqa: F401

        text = load_library_text()
    except (ImportError, FileNotFoundError) as error:
        raise InvalidArgumentError(f"--model is {model!r}: {error}") from error
    from .gpt import GptSettings, GptTrainer

    return lambda device: GptTrainer(device, text, GptSettings(**job))


def report(
    trainer: Trainer | GptTrainer,
    device: Axdimm,
    config: ModuleConfig,
    folder: Path,
    *,
    files: Sequence[Path] = (),
    watch: Watch = Watch(),
) -> Report:
    """Train on ``device``, which has the configuration ``config``, and report the results.

    ``folder`` receives ``report.json``, the same report, and ``loss.png``. ``files`` are others
    that the device writes. The report is not good if a bit is wrong. Errors are those of the
    driver.
    """
    mismatches = []
    try:
        result = trainer.train(watch)
    except MismatchError as error:
        result, mismatches = error.result, [*map(str, error.mismatches)]
    made = figures(
        result,
        fabric_mhz=device.transport.fabric_mhz,
        refresh_limit=config.refresh_efficiency,
        backend=device.transport.name,
        copied_bytes=[asdict(device.copied_bytes(channel)) for channel in range(device.channels)],
        mismatches=mismatches,
        **trainer.context(),
    )
    activity, note = activity_table(made), refresh_note(made)
    read_back = device.configuration(0)
    names = ("lanes", "block_bytes", "capacity_bytes")
    whole = Report(
        results=made,
        parts=[summary_table(made), *([activity] if activity else [])],
        notes=[
            *([note] if note else []),
            "Gradients and parameters went over the host link; the comparison read other state "
            "through the backdoor.",
        ],
        machine=config.describe() | {name: getattr(read_back, name) for name in names},
        workload=trainer.workload(),
        files=[folder / "report.json", folder / "loss.png", *files],
        complaints=mismatches,
        is_good=not mismatches,
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "report.json", json.dumps(whole.describe(), indent=2) + "\n")
    curves = made.get("losses", {"module": result.losses})
    write_loss_curve(folder / "loss.png", trainer.title, curves)
    return whole


def _figures(
    result: TrainingResult, share: Share, *, channels: int, fabric_mhz: float
) -> dict[str, Any]:
    speed = None
    if result.timed and share.fabric_cycles:
        speed = mparams_per_s(share.params * result.steps, share.fabric_cycles, fabric_mhz)
    return {
        "bit_exact": share.bit_exact,
        "params": share.params,
        "steps": result.steps,
        "loss_first": result.losses[0] if result.losses else None,
        "loss_last": result.losses[-1] if result.losses else None,
        "test_accuracy": result.test_accuracy,
        "fabric_cycles": share.fabric_cycles if result.timed else None,
        "mparams_per_s": speed,
        "efficiency": None
        if speed is None
        else speed
        / ceiling_mparams_per_s(channels, fabric_mhz, rule(result.rule).bytes_per_parameter),
        "simulated_fabric_cycles": share.simulated_fabric_cycles if result.timed else None,
    }


def _channel(result: TrainingResult, channel: ChannelFigures, fabric_mhz: float) -> dict[str, Any]:
    dram = activity = channel.activity
    if activity is not None:
        sums = {"total_tck": activity.total_tck, "row_hits": activity.row_hits}
        dram = asdict(activity) | sums
    return {
        "channel": channel.channel,
        **_figures(result, channel, channels=1, fabric_mhz=fabric_mhz),
        "beats_read": channel.beats_read,
        "beats_written": channel.beats_written,
        "idle_fabric_cycles": channel.idle_fabric_cycles if result.timed else None,
        "dram": dram,
    }


def figures(
    result: TrainingResult,
    *,
    fabric_mhz: float = PAPER_FABRIC_MHZ,
    refresh_limit: float | None = None,
    **context: Any,
) -> dict[str, Any]:
    """Return the job's figures, ready for JSON; ``context`` is added at the end.

    ``rule``: update rule of the steps.
    ``fabric_cycles``: kernel cycles from START to DONE, summed over the steps; for the module the
    slower channel's in each step, since the channels run at once.
    ``mparams_per_s``: parameters updated in these cycles at ``fabric_mhz``, in millions per second.
    ``efficiency``: ``mparams_per_s`` as a share of
    :func:`~sw_driver.axdimm.figures.ceiling_mparams_per_s`.
    ``refresh_limit``: share that the DRAM's refresh leaves in the long run; short runs can exceed
    it.
    ``simulated_fabric_cycles``: all simulated cycles, with copies, both channels added.

    ``dram``, in the entries of ``channels``: activity of the DRAM during the runs, see
    :class:`~sw_driver.axdimm.runs.DramActivity`; the times add up to ``total_tck``, four times
    ``fabric_cycles``.

    ``host``: the only figures that differ between runs with the same settings. ``seconds`` is the
    time of the training loop with checks. ``fabric_cycles_per_second`` counts only host time in
    which the device works, without forward, backward and golden model.
    ``version`` and ``commit``: see :func:`~sw_driver.experiments.provenance.provenance`.

    Figures that need a clock are None on a backend without one. The entries of ``channels`` hold
    the same figures, with the loss and accuracy of the whole job.
    """
    rate = None
    if result.timed and result.device_seconds:
        rate = result.simulated_fabric_cycles / result.device_seconds
    return {
        "rule": result.rule,
        **_figures(result, result, channels=len(result.channels), fabric_mhz=fabric_mhz),
        "fabric_mhz": fabric_mhz,
        "refresh_limit": refresh_limit if result.timed else None,
        "channels": [_channel(result, channel, fabric_mhz) for channel in result.channels],
        "host": {"seconds": result.host_seconds, "fabric_cycles_per_second": rate},
        **context,
        **provenance(),
    }


def summary_table(figures: Mapping[str, Any]) -> Table:
    """Return the closing table of a report."""
    channels = len(figures["channels"])
    timed = figures["fabric_cycles"] is not None
    trained = rule(figures["rule"])
    ceiling = ceiling_mparams_per_s(channels, figures["fabric_mhz"], trained.bytes_per_parameter)

    def when_timed(value: float | None, form: str) -> str:
        return form.format(value) if value is not None else "untimed"

    exact = "yes" if figures["bit_exact"] else "NO"
    rows = [
        [f"{', '.join(trained.outputs)} equal to the golden model, every bit", exact, ""],
        ["parameters", f"{figures['params']:,}", ""],
        ["steps", f"{figures['steps']:,}", ""],
    ]
    if figures["steps"]:
        losses = f"{figures['loss_first']:.3f} -> {figures['loss_last']:.3f}"
        rows.append(["loss, first and last batch", losses, ""])
    rows += [
        ["test accuracy", f"{figures['test_accuracy']:.1%}", ""],
        ["fabric cycles of the kernels", when_timed(figures["fabric_cycles"], "{:,}"), ""],
        [
            f"throughput at {figures['fabric_mhz']:.0f} MHz",
            when_timed(figures["mparams_per_s"], "{:.2f} MP/s"),
            f"{PAPER_MPARAMS_PER_S} MP/s",
        ],
        [
            f"share of the ceiling of {ceiling:.2f} MP/s",
            when_timed(figures["efficiency"], "{:.1%}"),
            f"{PAPER_EFFICIENCY:.1%}",
        ],
    ]
    if timed and channels > 1:
        for entry in figures["channels"]:
            speed = f"{entry['mparams_per_s']:.2f} MP/s, {entry['efficiency']:.1%}"
            rows.append([f"  channel {entry['channel']}", speed, ""])
    rows += _torch_rows(figures)
    rate = when_timed(figures["host"]["fabric_cycles_per_second"], "{:,.0f}")
    rows.append(["host time", f"{figures['host']['seconds']:.1f} s", ""])
    rows.append(["fabric cycles simulated per host second", rate, ""])
    return Table(
        title=f"{trained.title} on the simulated AXDIMM ({figures['backend']} backend)",
        headings=["", "this run", "paper"],
        rows=rows,
    )


def _torch_rows(figures: Mapping[str, Any]) -> list[list[str]]:
    """Return the rows that compare a job with PyTorch."""
    if "torch" not in figures:
        return []
    other = figures["torch"]
    rows = [
        ["loss of the last batch, PyTorch's optimizer", f"{other['loss_last']:.3f}", ""],
        ["test accuracy, PyTorch's optimizer", f"{other['test_accuracy']:.1%}", ""],
        ["largest difference of a step's losses", f"{other['largest_difference']:.1e}", ""],
    ]
    for which, times in figures["step_ns"].items():
        step = "the first step" if which == "first" else "a later step"
        names = {"total": "total", "copy": "copies", "kernel": "kernel"} if times else {}
        rows += [
            [f"{step}, {text}", f"{times[name] / 1e6:.2f} ms", ""] for name, text in names.items()
        ]
    return rows


_ACTIVITIES = {
    "data": "data",
    "refresh": "refresh",
    "row": "waiting for rows (precharge, activate)",
    "turn_around": "spacing of columns (bus turns, tWTR, tCCD_L)",
    "starved": "starved by the kernel",
    "idle": "idle (settings checked)",
}


def activity_table(figures: Mapping[str, Any]) -> Table | None:
    """Return a table of the runs' DRAM clocks by use and channel; None if they were not counted."""
    accounts = [entry["dram"] for entry in figures["channels"]]
    if not all(account and account["total_tck"] for account in accounts):
        return None
    rows = []
    for name, text in _ACTIVITIES.items():
        counts = [(account[f"{name}_tck"], account["total_tck"]) for account in accounts]
        rows.append([text, *(f"{part:,} ({part / total:.2%})" for part, total in counts)])
    rows.append(["sum", *(f"{account['total_tck']:,}" for account in accounts)])
    for name in ("activates", "precharges", "refreshes", "row_hits", "bus_turns"):
        rows.append([name.replace("_", " "), *(f"{account[name]:,}" for account in accounts)])
    return Table(
        title=f"DRAM clocks of the runs by use ({figures['backend']} backend)",
        headings=["", *(f"channel {entry['channel']}" for entry in figures["channels"])],
        rows=rows,
    )


def write_loss_curve(path: Path, title: str, curves: Mapping[str, Sequence[float]]) -> None:
    """Draw the loss of each step's batch as a PNG; a legend names several curves."""
    # The object interface needs no display and does not change matplotlib's settings.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for (name, losses), style in zip(curves.items(), (".-", "--"), strict=False):
        axes.plot(range(1, len(losses) + 1), losses, style, label=name)
    if len(curves) > 1:
        axes.legend()
    axes.set_xlabel("step")
    axes.locator_params("x", integer=True)
    axes.set_ylabel("cross entropy of the batch")
    axes.set_title(f"{title}, optimizer on the simulated AXDIMM")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    write_picture(path, figure, dpi=120)
