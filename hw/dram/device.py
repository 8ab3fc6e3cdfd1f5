"""The simulated DRAM of a channel: storage and timing checker (``ddr4_device.v``)."""

from __future__ import annotations

from dataclasses import fields
from enum import IntEnum
from pathlib import Path
from typing import Any

from amaranth.hdl import ClockSignal, Instance, Module, ResetSignal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.dram.geometry import DramGeometry
from hw.dram.interface import DramSignature
from hw.dram.timing import DramTiming
from hw.verilog import flat_ports

__all__ = ["Ddr4Device", "Violation"]


class Violation(IntEnum):
    """Values of ``violation_code``."""

    NONE = 0
    ACT_OPEN = 1
    RD_CLOSED = 2
    WR_CLOSED = 3
    T_RP = 4
    T_RAS = 5
    T_RC = 6
    T_RCD = 7
    T_RRD_S = 8
    T_RRD_L = 9
    T_FAW = 10
    T_WR = 11
    T_WTR_S = 12
    T_WTR_L = 13
    T_RTP = 14
    T_RFC = 15
    REF_OPEN = 16
    T_REFI = 17
    """More than eight refreshes postponed."""
    T_CCD_S = 18
    T_CCD_L = 19
    READ_TO_WRITE = 20
    ROW_RANGE = 21
    COLUMN_RANGE = 22
    BUS_OVERLAP = 23
    REF_RATE = 24
    """More than sixteen refreshes within two tREFI."""
    ENCODING = 25


class Ddr4Device(wiring.Component):
    """A DRAM that stores the bytes and checks every command, for simulation only.

    The Verilog module behind it knows the geometry and the timing and nothing of the controller.
    Its array ``mem`` (one 64-byte line per word, zero at the start, public in Verilator) is in
    device order: index {bank group, bank, row, column / 8}.

    Parameters
    ----------
    geometry, timing
        Organisation and timing of the part.
    check_refresh
        Whether too few or too many refreshes are a violation.

    Members
    -------
    dram : In(:class:`DramSignature`)
        Commands in any of the four slots.
    violation : Out(1)
        Set from the cycle after the first violation until reset; a line on the standard output
        tells which one. The simulation must be considered failed.
    violation_code : Out(8)
        A :class:`Violation`.
    violation_tck : Out(48)
        When, in tCK since the end of reset.
    """

    dram: Any
    violation: Any
    violation_code: Any
    violation_tck: Any

    def __init__(
        self, *, geometry: DramGeometry, timing: DramTiming, check_refresh: bool = True
    ) -> None:
        self.geometry = geometry
        self.timing = timing
        self.check_refresh = check_refresh
        if timing.cl > 40:
            raise ValueError(f"cl must be at most 40 for the device model, got {timing.cl}")
        super().__init__(
            {
                "dram": In(DramSignature(geometry)),
                "violation": Out(1),
                "violation_code": Out(8),
                "violation_tck": Out(48),
            }
        )

    def parameters(self) -> dict[str, int]:
        """The parameters of the Verilog module."""
        geometry, timing = self.geometry, self.timing
        names = [field.name for field in fields(timing) if field.name != "tck_ps"]
        return {
            "BANK_GROUP_BITS": geometry.bank_group_bits,
            "BANK_BITS": geometry.bank_bits,
            "ROW_BITS": geometry.row_bits,
            "COLUMN_BITS": geometry.column_bits,
            "ADDRESS_BITS": geometry.address_bits,
            **{name.upper(): getattr(timing, name) for name in names},
            "CHECK_REFRESH": int(self.check_refresh),
        }

    def elaborate(self, platform: Any) -> Module:
        if not hasattr(platform, "add_path"):
            raise TypeError(
                "the DRAM device is hand-written Verilog: convert the design with "
                "hw.verilog.to_verilog and simulate that"
            )
        platform.add_path(Path(__file__).with_name("ddr4_device.v"))
        connections: dict[str, Any] = {"i_clk": ClockSignal(), "i_rst": ResetSignal()}
        for name, value, flow in flat_ports(self):
            port = name.removeprefix("dram_")
            value = value.as_value() if hasattr(value, "as_value") else value
            connections[("i_" if flow is wiring.In else "o_") + port] = value
        parameters = {f"p_{name}": value for name, value in self.parameters().items()}
        m: Any = Module()
        m.submodules.device = Instance("ddr4_device", **parameters, **connections)
        return m
