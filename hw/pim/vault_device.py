"""The simulated DRAM of a vault: storage and timing checker (``vault_device.v``)."""

from __future__ import annotations

from dataclasses import fields
from enum import IntEnum
from pathlib import Path
from typing import Any

from amaranth.hdl import ClockSignal, Instance, Module, ResetSignal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.pim.vault_geometry import VaultGeometry
from hw.pim.vault_interface import VaultSignature
from hw.pim.vault_timing import VaultTiming
from hw.verilog import flat_ports

__all__ = ["VaultDevice", "VaultViolation"]


class VaultViolation(IntEnum):
    """Values of ``violation_code``."""

    NONE = 0
    ACT_OPEN = 1
    RD_CLOSED = 2
    WR_CLOSED = 3
    T_RAS_RP = 4
    """Activate or refresh before tRAS and tRP are over."""
    T_RTP_RP = 5
    T_WR_RP = 6
    T_RC = 7
    T_RCD = 8
    T_RRD_S = 9
    T_RRD_L = 10
    T_FAW = 11
    T_WTR_S = 12
    T_WTR_L = 13
    T_RFC = 15
    REF_OPEN = 16
    T_REFI = 17
    """No refresh for more than tREFI."""
    T_CCD_S = 18
    T_CCD_L = 19
    READ_TO_WRITE = 20
    ROW_RANGE = 21
    COLUMN_RANGE = 22
    BUS_OVERLAP = 23
    ENCODING = 25


class VaultDevice(wiring.Component):
    """A vault's DRAM that stores the bytes and checks every command, for simulation only.

    The Verilog module behind it knows the geometry and the timing and nothing of the controller.
    Its array ``mem`` (32 bytes a word, zero at the start, public in Verilator) is in device order:
    index {layer, bank, row, column}.

    Members
    -------
    dram : In(:class:`VaultSignature`)
        Commands in any of the four slots.
    violation : Out(1)
        Set from the cycle after the first violation until reset; a line on the standard output
        tells which one. The simulation must be considered failed.
    violation_code : Out(8)
        A :class:`VaultViolation`.
    violation_tck : Out(48)
        When, in tCK since the end of reset.
    """

    dram: Any
    violation: Any
    violation_code: Any
    violation_tck: Any

    def __init__(self, *, geometry: VaultGeometry, timing: VaultTiming) -> None:
        self.geometry = geometry
        self.timing = timing
        super().__init__(
            {
                "dram": In(VaultSignature(geometry)),
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
            "LAYER_BITS": geometry.layer_bits,
            "BANK_BITS": geometry.bank_bits,
            "ROW_BITS": geometry.row_bits,
            "COLUMN_BITS": geometry.column_bits,
            "ADDRESS_BITS": geometry.command_address_bits,
            **{name.upper(): getattr(timing, name) for name in names},
        }

    def elaborate(self, platform: Any) -> Module:
        if not hasattr(platform, "add_path"):
            raise TypeError(
                "the device of a vault is hand-written Verilog: convert the design with "
                "hw.verilog.to_verilog and simulate that"
            )
        platform.add_path(Path(__file__).with_name("vault_device.v"))
        connections: dict[str, Any] = {"i_clk": ClockSignal(), "i_rst": ResetSignal()}
        for name, value, flow in flat_ports(self):
            port = name.removeprefix("dram_")
            value = value.as_value() if hasattr(value, "as_value") else value
            connections[("i_" if flow is wiring.In else "o_") + port] = value
        parameters = {f"p_{name}": value for name, value in self.parameters().items()}
        m: Any = Module()
        m.submodules.device = Instance("vault_device", **parameters, **connections)
        return m
