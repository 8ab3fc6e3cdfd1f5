"""Host link of a channel: 64-byte reads and writes at the pace of the host's DDR4 bus."""

from __future__ import annotations

from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.logic.checks import check_int
from hw.logic.line import LINE_BITS, line_width

__all__ = ["HostLinkSignature"]


class HostLinkSignature(wiring.Signature):
    """The deserialised host bus, as the host sees it (paper section 3.1).

    The physical bus delivers at most one line in two fabric cycles (DDR4-800, 64 data bits,
    against 512 bits at 200 MHz). A read is answered exactly the fixed latency after its request.
    A DDR4 host opens and closes rows itself and never asks faster than the banks allow. Here
    requests are whole lines, and ``req_ready`` replaces what that host would know.

    Parameters
    ----------
    address_width
        Byte address width of one channel.

    Members
    -------
    req_valid, req_write, req_line, req_data : Out(1), Out(1), Out(line), Out(512)
        A request; ``req_line`` is the byte address divided by 64.
    req_ready : In(1)
        There is room. A request without it may be lost; it then counts as an overflow. When it
        falls, room for four more requests is left.
    rsp_valid, rsp_late, rsp_data : In(1), In(1), In(512)
        The answer to a read, in order. ``rsp_late`` says that the data was not there in time: it is
        dropped, ``rsp_data`` means nothing, and the host has to read again.

    Examples
    --------
    >>> link = HostLinkSignature(address_width=34)
    >>> link.members["req_line"], link.members["req_data"]
    (Out(28), Out(512))
    """

    def __init__(self, *, address_width: int) -> None:
        check_int("address_width", address_width, 13, 40)
        self.address_width = address_width
        super().__init__(
            {
                "req_valid": Out(1),
                "req_write": Out(1),
                "req_line": Out(line_width(address_width)),
                "req_data": Out(LINE_BITS),
                "req_ready": In(1),
                "rsp_valid": In(1),
                "rsp_late": In(1),
                "rsp_data": In(LINE_BITS),
            }
        )
