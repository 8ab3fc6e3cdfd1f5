"""Simulated DRAM: storage and timing checker (``dram_device.v``)."""

from __future__ import annotations

from dataclasses import asdict
from enum import IntEnum
from pathlib import Path
from typing import Any

from amaranth.hdl import Cat, ClockSignal, Instance, Module, ResetSignal, Shape
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.dram.geometry import BURST_COLUMNS, DramGeometry
from hw.dram.interface import SLOTS, DramSignature
from hw.dram.timing import CommandTiming, DramTiming

__all__ = ["Ddr4Device", "DramDevice", "Violation", "slot_connections"]


class Violation(IntEnum):
    """Values of ``violation_code``."""

    NONE = 0
    ACT_OPEN = 1
    RD_CLOSED = 2
    WR_CLOSED = 3
    T_RP = 4
    """Less than tRP after the precharge, or after the time when RDA or WRA could precharge."""
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
    """Too many refreshes were postponed."""
    T_CCD_S = 18
    T_CCD_L = 19
    READ_TO_WRITE = 20
    ROW_RANGE = 21
    COLUMN_RANGE = 22
    BUS_OVERLAP = 23
    REF_RATE = 24
    """More than sixteen refreshes came within two tREFI, on a DRAM that can pull them in."""
    ENCODING = 25


class DramDevice(wiring.Component):
    """A DRAM that stores the bytes and checks every command, for simulation only.

    Its Verilog module depends on the geometry and the timing, not on the controller. The module's
    array ``mem`` (one burst per word, zero at the start, public in Verilator) is in device order:
    index {bank group or layer, bank, row, burst of the row}.

    Parameters
    ----------
    signature
        Commands and data, as the controller has them: a :class:`~hw.dram.interface.DramSignature`
        or one of its form.
    timing
        Timing that the checker enforces.
    parameters
        Further parameters of the Verilog module.

    Members
    -------
    dram : In(signature)
        Commands in any of the four slots.
    violation : Out(1)
        Set from the cycle after the first violation until reset. A line on the standard output
        names the violation. The simulation has failed then.
    violation_code : Out(8)
        Value of :class:`Violation`.
    violation_tck : Out(48)
        Time of the first violation, in tCK since the end of reset.
    """

    def __init__(
        self, signature: wiring.Signature, timing: CommandTiming, **parameters: int
    ) -> None:
        self.timing = timing
        self._parameters = parameters
        super().__init__(
            {
                "dram": In(signature),
                "violation": Out(1),
                "violation_code": Out(8),
                "violation_tck": Out(48),
            }
        )

    def parameters(self) -> dict[str, int]:
        """Return the parameters of the Verilog module except those of its commands."""
        timing = {name.upper(): value for name, value in asdict(self.timing).items()}
        del timing["TCK_PS"]
        return {**timing, **self._parameters}

    def elaborate(self, platform: Any) -> Module:
        if not hasattr(platform, "add_path"):
            raise TypeError(
                "the DRAM device is hand-written Verilog: convert the design with "
                "hw.verilog.writer.to_verilog and simulate that"
            )
        platform.add_path(Path(__file__).with_name("dram_device.v"))
        m: Any = Module()
        m.submodules.device = Instance(
            "dram_device",
            **{f"p_{name}": value for name, value in self.parameters().items()},
            **slot_connections(self.dram),
            p_RULES="".join(f"{rule.name:16}" for rule in reversed(Violation)),
            p_DATA_BYTES=len(self.dram.write_mask),
            i_clk=ClockSignal(),
            i_rst=ResetSignal(),
            i_write_data=self.dram.write_data,
            i_write_mask=self.dram.write_mask,
            o_read_data=self.dram.read_data,
            o_violation=self.violation,
            o_violation_code=self.violation_code,
            o_violation_tck=self.violation_tck,
        )
        return m


class Ddr4Device(DramDevice):
    """The :class:`DramDevice` of a channel.

    ``check_refresh`` makes too few or too many refreshes a violation.
    """

    def __init__(
        self, *, geometry: DramGeometry, timing: DramTiming, check_refresh: bool = True
    ) -> None:
        super().__init__(
            DramSignature(geometry),
            timing,
            ROW_BITS=geometry.row_bits,
            COLUMN_BITS=geometry.column_bits,
            BURST_COLUMN_BITS=BURST_COLUMNS.bit_length() - 1,
            MAX_POSTPONED=8,
            CHECK_REFRESH=int(check_refresh),
        )


def slot_connections(dram: Any) -> dict[str, Any]:
    """Return the ``Instance`` arguments for Verilog that observes the commands of ``dram``.

    ``dram`` is a :class:`~hw.dram.interface.DramSignature` or another with four members a slot:
    command, bank group or what replaces it, bank, address. The arguments are the inputs
    ``commands``, ``groups``, ``banks`` and ``addresses`` over all slots, slot 0 lowest. Parameters
    give the widths of the last three in a slot and the codes of the commands.
    """
    members = dram.signature.members
    names = [name.removesuffix("_p0") for name in members if name.endswith("_p0")]
    command, *place = (members[f"{name}_p0"].shape for name in names)
    inputs = ("i_commands", "i_groups", "i_banks", "i_addresses")
    widths = ("p_GROUP_BITS", "p_BANK_BITS", "p_ADDRESS_BITS")
    return {
        **{f"p_{code.name}": code.value for code in command if code.value},
        **{key: Shape.cast(shape).width for key, shape in zip(widths, place, strict=True)},
        **{
            key: Cat(getattr(dram, f"{name}_p{slot}") for slot in range(SLOTS))
            for key, name in zip(inputs, names, strict=True)
        },
    }
