"""Example top modules: the self test on two FPGAs, and a design with DDR4 on its memory port."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .buses import AxiBus
from .selftest import connections
from .templating import fill

__all__ = ["memory_top_files", "selftest_top_files"]


def selftest_top_files(name: str, clock: Mapping[str, str]) -> dict[str, str]:
    """Return top modules and constraints of a design's self test, for an ECP5 and the paper's part.

    ``clock`` has the values of the design's clock for the constraints.
    """
    boards = {
        "top_ecp5": ("a ULX3S with an LFE5U-85F, an ECP5", "clk_25mhz"),
        "top_xczu19eg_selftest": ("a board with an XCZU19EG, the paper's part", "clk"),
    }
    return {
        **{
            f"{name}_{top}.v": fill("selftest_top.v", name=name, top=top, board=board, clock=pin)
            for top, (board, pin) in boards.items()
        },
        f"{name}_top_ecp5.lpf": fill("top_ecp5.lpf"),
        f"{name}_top_xczu19eg_selftest.xdc": fill("selftest.xdc", **clock),
    }


def memory_top_files(
    name: str, ports: Sequence[Mapping[str, Any]], buses: Sequence[AxiBus], mhz: str
) -> dict[str, str]:
    """Return a top module and black boxes for a design with two buses.

    The design is the manager of a bus to DDR4; a processor is on the other bus. The black boxes
    have the ports of the vendor's parts.
    """
    host, memory = sorted(buses, key=lambda bus: bus.is_manager)
    directions = {port["name"]: port["direction"] for port in ports}
    wires = [
        f"  wire {_range(width)}{bus.name}_{signal};"
        for bus in (host, memory)
        for signal, width in bus.widths.items()
    ]
    declared = {"clk", "rst", *(f"{b.name}_{s}" for b in (host, memory) for s in b.widths)}
    # Inputs of the memory controller that the kernel does not drive.
    ties = {
        f"{channel}{signal}": width
        for channel in ("aw", "ar")
        for signal, width in {"lock": 1, "cache": 4, "prot": 3, "qos": 4}.items()
        if f"{channel}{signal}" not in memory.widths
    }

    def boxed(bus: AxiBus, prefix: str, more: Mapping[str, int]) -> str:
        lines = []
        for signal, width in (*more.items(), *bus.widths.items()):
            driven_here = directions.get(f"{bus.name}_{signal}", "output") == "output"
            way = "input " if driven_here else "output"
            lines.append(f"    {way} wire {_range(width)}{prefix}_{signal}")
        return ",\n".join(lines)

    top = fill(
        "top_xczu19eg.v",
        name=name,
        mhz=mhz,
        address_bits=memory.widths["awaddr"],
        host_bits=host.widths["wdata"],
        host_bus="AXI4-Lite" if host.is_lite else "AXI4",
        host_address_bits=host.widths["awaddr"],
        wires="\n".join(wires),
        connections=connections(ports, {}, declared),
        host_connections=",\n".join(
            f"    .M_AXI_{signal}({host.name}_{signal})" for signal in host.widths
        ),
        memory_ties="\n".join(
            f"    .c0_ddr4_s_axi_{signal}({width}'b0)," for signal, width in ties.items()
        ),
        memory_connections=",\n".join(
            f"    .c0_ddr4_s_axi_{signal}({memory.name}_{signal})" for signal in memory.widths
        ),
    )
    boxes = fill(
        "black_boxes.v",
        name=name,
        host_ports=boxed(host, "M_AXI", {}),
        memory_ports=boxed(memory, "c0_ddr4_s_axi", ties),
    )
    return {f"{name}_top_xczu19eg.v": top, f"{name}_xczu19eg_black_boxes.v": boxes}


def _range(width: int) -> str:
    return f"[{width - 1}:0] " if width > 1 else ""
