"""AXI4 and AXI4-Lite signatures with the signal names of the AMBA specification (IHI 0022)."""

from __future__ import annotations

from enum import IntEnum

from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.logic.checks import check_int

__all__ = ["BURST_INCR", "AXI4Channels", "AXI4LiteSignature", "AXI4Signature", "Response"]

BURST_INCR = 0b01
"""``AxBURST`` of an incrementing burst, the only kind used here."""


class Response(IntEnum):
    """``BRESP`` and ``RRESP`` (IHI 0022, A3.4.4)."""

    OKAY = 0b00
    EXOKAY = 0b01
    SLVERR = 0b10
    DECERR = 0b11


class AXI4Signature(wiring.Signature):
    """AXI4 as the manager sees it; a subordinate has it as ``In``.

    Members are flat (``awaddr``, ``awvalid`` …), so that a member ``m_axi`` of a component
    becomes the conventional ports ``m_axi_awaddr`` … in Verilog. Signals that no part here uses
    are left out: lock, cache, protection, QoS, region, user.

    Examples
    --------
    >>> bus = AXI4Signature(addr_width=34, data_width=512)
    >>> [name for name in bus.members if name.startswith("ar")]
    ['arid', 'araddr', 'arlen', 'arsize', 'arburst', 'arvalid', 'arready']
    >>> bus.members["wstrb"], bus.members["rdata"]
    (Out(64), In(512))
    """

    def __init__(self, *, addr_width: int, data_width: int, id_width: int = 1) -> None:
        check_int("addr_width", addr_width, 12, 64)
        check_int("id_width", id_width, 1, 32)
        if data_width not in (32, 64, 128, 256, 512, 1024):
            raise ValueError(
                f"data_width must be a power of two from 32 to 1024, got {data_width!r}"
            )
        self.addr_width = addr_width
        address = {"id": id_width, "addr": addr_width, "len": 8, "size": 3, "burst": 2}
        super().__init__(
            {
                **{f"aw{name}": Out(width) for name, width in address.items()},
                "awvalid": Out(1),
                "awready": In(1),
                "wdata": Out(data_width),
                "wstrb": Out(data_width // 8),
                "wlast": Out(1),
                "wvalid": Out(1),
                "wready": In(1),
                "bid": In(id_width),
                "bresp": In(2),
                "bvalid": In(1),
                "bready": Out(1),
                **{f"ar{name}": Out(width) for name, width in address.items()},
                "arvalid": Out(1),
                "arready": In(1),
                "rid": In(id_width),
                "rdata": In(data_width),
                "rresp": In(2),
                "rlast": In(1),
                "rvalid": In(1),
                "rready": Out(1),
            }
        )


class AXI4Channels(wiring.Signature):
    """Some of the channels of an :class:`AXI4Signature`, such as ``"ar"`` and ``"r"``."""

    def __init__(self, axi: AXI4Signature, *channels: str) -> None:
        super().__init__(
            {name: member for name, member in axi.members.items() if name.startswith(channels)}
        )


class AXI4LiteSignature(wiring.Signature):
    """AXI4-Lite as the manager sees it; a subordinate has it as ``In``.

    Examples
    --------
    >>> bus = AXI4LiteSignature(addr_width=12, data_width=64)
    >>> bus.members["araddr"], bus.members["wstrb"]
    (Out(12), Out(8))
    """

    def __init__(self, *, addr_width: int, data_width: int) -> None:
        check_int("addr_width", addr_width, 1, 64)
        if data_width not in (32, 64):
            raise ValueError(f"data_width must be 32 or 64, got {data_width!r}")
        self.addr_width = addr_width
        super().__init__(
            {
                "awaddr": Out(addr_width),
                "awprot": Out(3),
                "awvalid": Out(1),
                "awready": In(1),
                "wdata": Out(data_width),
                "wstrb": Out(data_width // 8),
                "wvalid": Out(1),
                "wready": In(1),
                "bresp": In(2),
                "bvalid": In(1),
                "bready": Out(1),
                "araddr": Out(addr_width),
                "arprot": Out(3),
                "arvalid": Out(1),
                "arready": In(1),
                "rdata": In(data_width),
                "rresp": In(2),
                "rvalid": In(1),
                "rready": Out(1),
            }
        )
