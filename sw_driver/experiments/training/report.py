"""What a training job is reported as: JSON, a table and the loss curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from hw.rules import rule
from sw_driver.axdimm.figures import (
    PAPER_EFFICIENCY,
    PAPER_FABRIC_MHZ,
    PAPER_MPARAMS_PER_S,
    ceiling_mparams_per_s,
    mparams_per_s,
)
from sw_driver.files import write_picture

from ..provenance import provenance
from .trainer import ChannelFigures, Share, TrainingResult

__all__ = [
    "activity_table",
    "report",
    "summary_table",
    "write_loss_curve",
]


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


def report(
    result: TrainingResult,
    *,
    fabric_mhz: float = PAPER_FABRIC_MHZ,
    refresh_limit: float | None = None,
    **context: Any,
) -> dict[str, Any]:
    """The job's figures, ready for JSON; ``context`` is added at the end.

    ``rule``: the update rule that took the steps.
    ``fabric_cycles``: of the kernel, from START to DONE, summed over the steps; for the module the
    slower channel's in each step, since the channels run at once.
    ``mparams_per_s``: parameters updated in these cycles of ``fabric_mhz``, in millions a second.
    ``efficiency``: ``mparams_per_s`` as a share of
    :func:`~sw_driver.axdimm.figures.ceiling_mparams_per_s`.
    ``refresh_limit``: the share that the DRAM's refresh leaves in the long run; short runs can
    exceed it.
    ``simulated_fabric_cycles``: all that were simulated, those of copies included and both
    channels' added.

    ``dram``, in the entries of ``channels``: what the DRAM did during the runs, see
    :class:`~sw_driver.axdimm.runs.DramActivity`; the times add up to ``total_tck``, four times
    ``fabric_cycles``.

    ``host`` has what differs from run to run, all else is the same again with the same settings:
    ``seconds`` of the training loop, checks included, and ``fabric_cycles_per_second``, simulated
    in host time in which the device worked; forward, backward and the golden model do not count.
    ``version`` and ``commit``: see :func:`~sw_driver.experiments.provenance.provenance`.

    What needs a clock is None on a backend that has none. The entries of ``channels`` hold the same
    figures, with the loss and accuracy of the whole job.
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


def summary_table(figures: dict[str, Any]) -> Table:
    """The closing table of a report."""
    channels = len(figures["channels"])
    timed = figures["fabric_cycles"] is not None
    trained = rule(figures["rule"])
    ceiling = ceiling_mparams_per_s(channels, figures["fabric_mhz"], trained.bytes_per_parameter)

    def when_timed(value: float | None, form: str) -> str:
        return form.format(value) if value is not None else "untimed"

    table = Table(title=f"{trained.title} on the simulated AXDIMM ({figures['backend']} backend)")
    table.add_column("")
    table.add_column("this run", justify="right")
    table.add_column("paper", justify="right")
    exact = "yes" if figures["bit_exact"] else "NO"
    table.add_row(f"{', '.join(trained.outputs)} equal to the golden model, every bit", exact, "")
    table.add_row("parameters", f"{figures['params']:,}", "")
    table.add_row("steps", f"{figures['steps']:,}", "")
    if figures["steps"]:
        losses = f"{figures['loss_first']:.3f} -> {figures['loss_last']:.3f}"
        table.add_row("loss, first and last batch", losses, "")
    table.add_row("test accuracy", f"{figures['test_accuracy']:.1%}", "")
    table.add_row("fabric cycles of the kernels", when_timed(figures["fabric_cycles"], "{:,}"), "")
    table.add_row(
        f"throughput at {figures['fabric_mhz']:.0f} MHz",
        when_timed(figures["mparams_per_s"], "{:.2f} MP/s"),
        f"{PAPER_MPARAMS_PER_S} MP/s",
    )
    table.add_row(
        f"share of the ceiling of {ceiling:.2f} MP/s",
        when_timed(figures["efficiency"], "{:.1%}"),
        f"{PAPER_EFFICIENCY:.1%}",
    )
    if timed and channels > 1:
        for entry in figures["channels"]:
            table.add_row(
                f"  channel {entry['channel']}",
                f"{entry['mparams_per_s']:.2f} MP/s, {entry['efficiency']:.1%}",
                "",
            )
    _add_torch_rows(table, figures)
    table.add_row("host time", f"{figures['host']['seconds']:.1f} s", "")
    table.add_row(
        "fabric cycles simulated per host second",
        when_timed(figures["host"]["fabric_cycles_per_second"], "{:,.0f}"),
        "",
    )
    return table


def _add_torch_rows(table: Table, figures: dict[str, Any]) -> None:
    """What a job beside PyTorch has in addition."""
    if "torch" not in figures:
        return
    other = figures["torch"]
    table.add_row("last batch, PyTorch's own optimizer", f"{other['loss_last']:.3f}", "")
    table.add_row("test accuracy, PyTorch's own", f"{other['test_accuracy']:.1%}", "")
    table.add_row("losses of a step differ by at most", f"{other['largest_difference']:.1e}", "")
    for which, times in figures["step_ns"].items():
        if times is not None:
            for name, text in (("total", "in all"), ("copy", "copies"), ("kernel", "kernel")):
                step = "the first step" if which == "first" else "a later step"
                table.add_row(f"{step}, {text}", f"{times[name] / 1e6:.2f} ms", "")


_ACTIVITIES = {
    "data": "data",
    "refresh": "refresh",
    "row": "waiting for rows (precharge, activate)",
    "turn_around": "spacing of columns (bus turns, tWTR, tCCD_L)",
    "starved": "starved by the kernel",
    "idle": "idle (settings checked)",
}


def activity_table(figures: dict[str, Any]) -> Table | None:
    """Where the DRAM clocks of the runs went, a column a channel; None if that was not counted."""
    accounts = [entry["dram"] for entry in figures["channels"]]
    if not all(account and account["total_tck"] for account in accounts):
        return None
    table = Table(title=f"Where the DRAM clocks of the runs went ({figures['backend']} backend)")
    table.add_column("")
    for entry in figures["channels"]:
        table.add_column(f"channel {entry['channel']}", justify="right")
    for name, text in _ACTIVITIES.items():
        counts = [(account[f"{name}_tck"], account["total_tck"]) for account in accounts]
        table.add_row(text, *(f"{count:,} ({count / total:.2%})" for count, total in counts))
    table.add_row("sum", *(f"{account['total_tck']:,}" for account in accounts))
    for name in ("activates", "precharges", "refreshes", "row_hits", "bus_turns"):
        text = name.replace("_", " ")
        table.add_row(text, *(f"{account[name]:,}" for account in accounts))
    return table


def write_loss_curve(path: Path, title: str, curves: Mapping[str, Sequence[float]]) -> None:
    """Draws the loss of each step's batch as a PNG; several are told apart by their names."""
    # The object interface draws without a display and leaves matplotlib's settings alone.
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
