"""AXI buses among a design's ports, recognized by the standard's signal names."""

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
"""Signal names of AXI4 and AXI4-Lite (IHI 0022)."""


@dataclass(frozen=True, kw_only=True)
class AxiBus:
    """An AXI4 or AXI4-Lite bus."""

    name: str
    """Prefix of the bus's port names."""
    is_lite: bool
    is_manager: bool
    widths: Mapping[str, int]
    """Bits of each signal of the bus, by the standard's name, in port order."""


def find_buses(ports: Sequence[Mapping[str, Any]]) -> list[AxiBus]:
    """Return the buses among ``ports`` of a description by :func:`hw.verilog.generate.generate`."""
    buses = []
    for port in ports:
        name, suffix, _ = port["name"].rpartition("_awvalid")
        if not suffix:
            continue
        widths = {
            signal: member["width"]
            for member in ports
            if member["name"].startswith(f"{name}_")
            and (signal := member["name"].removeprefix(f"{name}_")) in _SIGNALS
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
