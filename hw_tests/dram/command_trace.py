"""A record of the commands that a DRAM is given (``command_trace.v``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from amaranth.hdl import ClockSignal, Instance, ResetSignal

from hw.sim.dram_device import slot_connections

__all__ = ["command_trace"]


def command_trace(platform: Any, dram: Any, *, file: str, header: str, flush: Any) -> Instance:
    """A recorder of the commands of ``dram``, see :func:`~hw.sim.dram_device.slot_connections`.

    ``header`` is two lines, the second of which names the columns.
    """
    platform.add_path(Path(__file__).with_name("command_trace.v"))
    return Instance(
        "command_trace",
        **slot_connections(dram),
        p_FILE=file,
        p_HEADER=header,
        i_clk=ClockSignal(),
        i_rst=ResetSignal(),
        i_flush=flush,
    )
