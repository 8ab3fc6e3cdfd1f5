"""Wire of a link: the layout of a flit, and the signals of a direction."""

from __future__ import annotations

from amaranth.lib import data, wiring
from amaranth.lib.wiring import Out

from hw.logic.line import LINE_BYTES

__all__ = ["CHECKED_BITS", "FLIT_BYTES", "Heard", "Report", "WireFlit", "WireSignature"]

Report = data.StructLayout({"acknowledge": 8, "retry": 1, "credits": 8, "credit_channel": 2})
"""Report about the other direction that each flit carries."""

WireFlit = data.StructLayout(
    {
        "filled": 1,
        "head": 1,
        "tail": 1,
        "channel": 2,
        "sequence": 8,
        "report": Report,
        "payload": 8 * LINE_BYTES,
        "crc": 32,
    }
)
"""Flit on the wire."""

FLIT_BYTES = WireFlit.size // 8
CHECKED_BITS = WireFlit["crc"].offset
"""Bits of a flit that its CRC covers; the CRC follows them."""

Heard = data.StructLayout({"valid": 1, "report": Report})
"""Report of a correct flit, a few cycles after it came."""


class WireSignature(wiring.Signature):
    """One direction of a link, as its sender has it. There is no ready.

    Parameters
    ----------
    phit_bytes
        Bytes that the wire carries in a cycle.

    Members
    -------
    valid : Out(1)
        There is a phit.
    first : Out(1)
        It is the first of a flit.
    data : Out(8 * phit_bytes)
        The phit: the flit's lowest bytes come first.
    """

    def __init__(self, *, phit_bytes: int) -> None:
        super().__init__({"valid": Out(1), "first": Out(1), "data": Out(8 * phit_bytes)})
