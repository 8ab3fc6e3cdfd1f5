"""Address map from the line address of a channel to bank group, bank, row and column.

From the least significant bit of the 64-byte line address:

=====================  ================================================================
bank group, bit 0      neighbouring lines alternate between two bank groups, so that a
                       stream runs at tCCD_S
column burst           the bursts of a row
bank group, other bit  absent with two bank groups
bank
row
=====================  ================================================================

An aligned 16 KB block (with 1024 columns) is one row in each of two bank groups, the paper's
block; the next 16 KB lie in other banks, and 128 KB cover all sixteen.
"""

from __future__ import annotations

from amaranth.lib import data

from hw.dram.geometry import DramGeometry
from hw.logic.line import AXI_BURST_BITS

__all__ = ["line_layout"]


def line_layout(geometry: DramGeometry) -> data.StructLayout:
    """Return the layout of a line address; the bits within a 4 KB burst are one field.

    Bit 0 of ``offset`` is bit 0 of the bank group. Its other bits are the low bits of the column
    burst, continued in ``column_high``.
    """
    return data.StructLayout(
        {
            "offset": AXI_BURST_BITS,
            "column_high": geometry.column_burst_bits - (AXI_BURST_BITS - 1),
            "bank_group_high": geometry.bank_group_bits - 1,
            "bank": geometry.bank_bits,
            "row": geometry.row_bits,
        }
    )
