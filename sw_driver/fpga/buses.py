"""The AXI buses among the ports of a design, found by the standard's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["AxiBus", "find_buses"]

_WRITE_ADDRESS, _READ_ADDRESS = (
    [
        f"{channel}{name}"
        for name in (
            *("id", "addr", "len", "size", "burst", "lock", "cache", "prot", "qos", "region"),
            *("user", "valid", "ready"),
        )
    ]
    for channel in ("aw", "ar")
)
_SIGNALS = {
    *_WRITE_ADDRESS,
    *("wdata", "wstrb", "wlast", "wuser", "wvalid", "wready"),
    *("bid", "bresp", "buser", "bvalid", "bready"),
    *_READ_ADDRESS,
    *("rid", "rdata", "rresp", "rlast", "ruser", "rvalid", "rready"),
}
"""Names of the signals of AXI4 and AXI4-Lite (IHI 0022)."""


@dataclass(frozen=True, kw_only=True)
class AxiBus:
    """An AXI4 or AXI4-Lite bus."""

    name: str
    """What the names of the bus's ports begin with."""
    is_lite: bool
    is_manager: bool
    widths: Mapping[str, int]
    """Bits of each of the bus's signals, by the standard's name, in the order of the ports."""


def find_buses(ports: Sequence[Mapping[str, Any]]) -> list[AxiBus]:
    """The buses of a design whose description (:func:`hw.verilog.generate.generate`) has
    ``ports``."""
    buses = []
    for port in ports:
        name, found, _ = port["name"].rpartition("_awvalid")
        if not found:
            continue
        widths = {
            signal: each["width"]
            for each in ports
            if each["name"].startswith(f"{name}_")
            and (signal := each["name"].removeprefix(f"{name}_")) in _SIGNALS
        }
        buses.append(
            AxiBus(
                name=name,
                is_lite="awlen" not in widths,
                is_manager=port["direction"] == "output",
                widths=widths,
            )
        )
    return buses
