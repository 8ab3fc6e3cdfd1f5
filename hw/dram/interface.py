"""Command and data interface between the controller of a channel and its DRAM."""

from __future__ import annotations

from amaranth.lib import enum, wiring
from amaranth.lib.wiring import In, Out

from hw.dram.geometry import DramGeometry
from hw.dram.timing import BURST_TCK
from hw.logic.line import LINE_BITS, LINE_BYTES

__all__ = [
    "SLOTS",
    "SLOT_BITS",
    "DramCommand",
    "DramSignature",
]

SLOTS = BURST_TCK
"""Slots of a fabric cycle, each a DRAM clock: slot i of fabric cycle c is DRAM clock 4*c + i.

A fabric cycle is as long as the data of a DRAM burst, so one column command a cycle fills the bus.
"""

SLOT_BITS = (SLOTS - 1).bit_length()


class DramCommand(enum.Enum, shape=3):
    """DDR4 commands; reads and writes have no auto-precharge."""

    NOP = 0
    ACT = 1
    PRE = 2
    PREA = 3
    RD = 4
    WR = 5
    REF = 6


class DramSignature(wiring.Signature):
    """Commands and data as the controller sees them; a DRAM has it as ``In``.

    Slot i has the members ``command_pi`` (a :class:`DramCommand`), ``bank_group_pi``, ``bank_pi``
    and ``address_pi`` (a row with ACT; a column, multiple of 8, with RD and WR). There is no
    handshake. ``write_data`` is taken :func:`~hw.dram.fabric_timing.write_latency` fabric cycles
    after its command. ``read_data`` is valid for one cycle,
    :func:`~hw.dram.fabric_timing.read_latency` fabric cycles after its command. Transfer k of a
    burst is bits 64*k to 64*k+63. A set bit of ``write_mask`` keeps the byte from being written.

    With ``read_valid`` there is a member of that name, In(1). A PHY with an unknown latency sets it
    when ``read_data`` belongs to the next RD.

    Examples
    --------
    >>> from hw.dram.presets import TINY
    >>> dram = DramSignature(TINY.geometry)
    >>> [name for name in dram.members if name.endswith("_p0")]
    ['command_p0', 'bank_group_p0', 'bank_p0', 'address_p0']
    """

    def __init__(self, geometry: DramGeometry, *, read_valid: bool = False) -> None:
        self.geometry = geometry
        members: dict[str, wiring.Member] = {}
        for slot in range(SLOTS):
            members |= {
                f"command_p{slot}": Out(DramCommand),
                f"bank_group_p{slot}": Out(geometry.bank_group_bits),
                f"bank_p{slot}": Out(geometry.bank_bits),
                f"address_p{slot}": Out(geometry.address_bits),
            }
        super().__init__(
            {
                **members,
                "write_data": Out(LINE_BITS),
                "write_mask": Out(LINE_BYTES),
                "read_data": In(LINE_BITS),
                **({"read_valid": In(1)} if read_valid else {}),
            }
        )
