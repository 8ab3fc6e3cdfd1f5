"""Netlists mapped by Yosys: registers absorbed into multipliers, and longest paths."""

from __future__ import annotations

import graphlib
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = ["MULTIPLICATION_LEVELS", "LongestPath", "absorb_registers", "longest_path"]

MULTIPLICATION_LEVELS = 6
"""Logic levels of a DSP48E2 without a register, from its delay in lookup tables."""


@dataclass(frozen=True, kw_only=True)
class LongestPath:
    """The combinational path between registers with the most levels."""

    levels: int
    """Logic levels of the path.

    They are lookup tables, carry chains (one each, however long) and multiplications
    (:data:`MULTIPLICATION_LEVELS` each).
    """
    cells: tuple[str, ...]
    """Names and types of the path's cells, from the first register to the last."""


class _Registers(NamedTuple):
    """Registers inside a multiplier that can replace flip-flops around it."""

    ports: str
    """Pattern of the ports; each of their bits must connect to a flip-flop."""
    parameters: Mapping[str, str]
    connections: Mapping[str, str]


class _FlipFlop(NamedTuple):
    type: str
    data: str
    clock: str
    idle: Mapping[str, tuple[str, ...]]
    """Required values of the flip-flop's other inputs and of its parameters."""


_FLIP_FLOPS = {
    "MULT18X18D": _FlipFlop(
        "TRELLIS_FF", "DI", "CLK", {"CE": ("1",), "LSR": ("0",), "REGSET": ("RESET",)}
    ),
    "DSP48E2": _FlipFlop("FDRE", "D", "C", {"CE": ("1",), "R": ("0",)}),
}

_ONE = f"{1:032b}"


def _ecp5(name: str) -> dict[str, str]:
    return {f"REG_{name}_CLK": "CLK0", f"REG_{name}_CE": "CE0", f"REG_{name}_RST": "RST0"}


_ECP5_TIES = {"CE0": "1", "RST0": "0"}
_INPUTS = {
    "MULT18X18D": [
        _Registers(r"A\d+", _ecp5("INPUTA"), _ECP5_TIES),
        _Registers(r"B\d+", _ecp5("INPUTB"), _ECP5_TIES),
    ],
    "DSP48E2": [
        _Registers("A", {"AREG": _ONE}, {"CEA2": "1", "RSTA": "0"}),
        _Registers("B", {"BREG": _ONE}, {"CEB2": "1", "RSTB": "0"}),
    ],
}
_OUTPUTS = {
    "MULT18X18D": _Registers(r"P\d+", _ecp5("OUTPUT"), _ECP5_TIES),
    "DSP48E2": _Registers("P", {"MREG": _ONE}, {"CEM": "1", "RSTM": "0"}),
}
_CLOCKS = {"MULT18X18D": "CLK0", "DSP48E2": "CLK"}


def absorb_registers(module: dict[str, Any]) -> int:
    """Move flip-flops beside the multipliers of ``module`` into them; return how many ports.

    All bits of a port must be constant or connect to flip-flops of one clock, always enabled and
    never reset. Flip-flops that other cells need, too, stay. A vendor's synthesis does the same;
    Yosys leaves the registers of an ECP5's MULT18X18D and an UltraScale+'s DSP48E2 outside.
    """
    cells: dict[str, Any] = module["cells"]
    driver: dict[int, str] = {}
    readers: defaultdict[int, list[str]] = defaultdict(list)
    for name, cell in cells.items():
        for port, bits in cell["connections"].items():
            for bit in bits:
                if isinstance(bit, int):
                    if cell["port_directions"][port] == "output":
                        driver[bit] = name
                    else:
                        readers[bit].append(name)
    for port in module["ports"].values():
        for bit in port["bits"] if port["direction"] == "output" else ():
            readers[bit].append("")
    absorbed = 0
    for name, cell in list(cells.items()):
        kind = cell["type"]
        if kind not in _FLIP_FLOPS:
            continue
        flip_flop = _FLIP_FLOPS[kind]
        for registers in _INPUTS[kind]:
            outside = {
                bit: driver.get(bit, "") for _, bit in _bits(cell, registers) if bit not in _TIED
            }
            if _absorb(cell, registers, outside, cells, flip_flop, "Q", flip_flop.data):
                absorbed += 1
                for bit, register in outside.items():
                    readers[bit].remove(name)
                    readers[cells[register]["connections"][flip_flop.data][0]].append(name)
                    if not readers[bit]:
                        _remove(cells, register, readers)
        registers = _OUTPUTS[kind]
        outside = {}
        for _, bit in _bits(cell, registers):
            if isinstance(bit, int) and readers[bit]:
                outside[bit] = readers[bit][0] if len(readers[bit]) == 1 else ""
        if _absorb(cell, registers, outside, cells, flip_flop, flip_flop.data, "Q"):
            absorbed += 1
            for register in outside.values():
                driver[cells[register]["connections"]["Q"][0]] = name
                _remove(cells, register, readers)
    return absorbed


_TIED = ("0", "1", "x", "z")


def _bits(cell: dict[str, Any], registers: _Registers) -> Iterator[tuple[list[Any], Any]]:
    for port, bits in cell["connections"].items():
        if re.fullmatch(registers.ports, port):
            for bit in bits:
                yield bits, bit


def _absorb(
    cell: dict[str, Any],
    registers: _Registers,
    outside: Mapping[Any, str],
    cells: Mapping[str, Any],
    flip_flop: _FlipFlop,
    near: str,
    far: str,
) -> bool:
    """Connect the ports to the far sides of the flip-flops ``outside``, if these can be removed."""
    registered = [cells.get(name) for name in outside.values()]
    if not registered or not all(_plain(candidate, flip_flop) for candidate in registered):
        return False
    clocks = {register["connections"][flip_flop.clock][0] for register in registered if register}
    clock = _CLOCKS[cell["type"]]
    taken = cell["connections"].get(clock, ["0"])[0]
    if len(clocks) > 1 or (taken not in _TIED and taken not in clocks):
        return False
    if any(register and register["connections"][near][0] not in outside for register in registered):
        return False
    for bits, bit in list(_bits(cell, registers)):
        if bit in outside:
            far_bit = cells[outside[bit]]["connections"][far][0]
            bits[bits.index(bit)] = far_bit
    cell["parameters"].update(registers.parameters)
    for port, value in {**registers.connections, clock: clocks.pop()}.items():
        cell["connections"][port] = [value]
        cell["port_directions"][port] = "input"
    return True


def _plain(cell: dict[str, Any] | None, flip_flop: _FlipFlop) -> bool:
    if cell is None or cell["type"] != flip_flop.type:
        return False
    tied = {**cell["parameters"], **{p: bits[0] for p, bits in cell["connections"].items() if bits}}
    return all(tied.get(name, allowed[0]) in allowed for name, allowed in flip_flop.idle.items())


def _remove(cells: dict[str, Any], name: str, readers: Mapping[int, list[str]]) -> None:
    for port, bits in cells.pop(name)["connections"].items():
        for bit in bits:
            if port != "Q" and name in readers.get(bit, ()):
                readers[bit].remove(name)


class _Leaf(NamedTuple):
    name: str
    cell: Mapping[str, Any]
    nets: Mapping[str, list[int]]
    """Nets of the cell by port, without constants."""


def longest_path(modules: Mapping[str, Any], top: str) -> LongestPath:
    """Return the longest combinational path of the module ``top``, mapped for UltraScale+.

    ``modules`` are those of Yosys' JSON. Paths pass through submodules and end at flip-flops,
    latches, block RAMs and the ports of ``top``. Raises ``ValueError`` for an unknown cell or a
    combinational loop.
    """
    leaves: list[_Leaf] = []
    _flatten(modules, top, "", {}, leaves, itertools.count())
    # Predecessors of each net: the net before, and the levels and index of the cell between.
    before: dict[int, list[tuple[int, int, int]]] = {}
    ends: list[tuple[int, int]] = []
    for index, leaf in enumerate(leaves):
        arcs = _arcs(leaf.cell)
        inner = {source for source, _, _ in arcs}
        for port, nets in leaf.nets.items():
            for net in nets:
                if leaf.cell["port_directions"][port] == "output":
                    before[net] = [
                        (origin, weight, index)
                        for source, target, weight in arcs
                        if target == port
                        for origin in leaf.nets.get(source, ())
                    ] or [(_START, 0, index)]
                elif port not in inner and port not in _CLOCK_PORTS:
                    ends.append((net, index))
    levels = {_START: 0}
    slowest: dict[int, tuple[int, int]] = {}
    graph = {net: [origin for origin, _, _ in origins] for net, origins in before.items()}
    try:
        for net in graphlib.TopologicalSorter(graph).static_order():
            reached = [
                (levels[origin] + weight, origin, index)
                for origin, weight, index in before.get(net, ())
            ]
            if reached:
                levels[net], *rest = max(reached)
                slowest[net] = (rest[0], rest[1])
            else:
                levels[net] = 0
    except graphlib.CycleError as error:
        around = leaves[before[error.args[1][0]][0][2]].name
        raise ValueError(f"the netlist has a combinational loop through {around}") from error

    net, last = max(ends, key=lambda end: levels.get(end[0], 0), default=(_START, -1))
    path = [last] if last >= 0 else []
    worst = levels.get(net, 0)
    while net in slowest:
        net, index = slowest[net]
        path.insert(0, index)
    return LongestPath(
        levels=worst,
        cells=tuple(f"{leaves[index].name} ({leaves[index].cell['type']})" for index in path),
    )


_START = -1
"""Number of the net before a register's output."""

_CLOCK_PORTS = frozenset({"C", "CLK", "CLKARDCLK", "CLKBWRCLK", "WCLK", "G", "I"})
"""Clock inputs, at which no path ends."""


def _flatten(
    modules: Mapping[str, Any],
    module: str,
    path: str,
    bound: dict[int, int],
    leaves: list[_Leaf],
    fresh: Iterator[int],
) -> None:
    for name, cell in modules[module]["cells"].items():
        nets: dict[str, list[int]] = {}
        for port, bits in cell["connections"].items():
            nets[port] = []
            for bit in bits:
                if isinstance(bit, int):
                    if bit not in bound:
                        bound[bit] = next(fresh)
                    nets[port].append(bound[bit])
                else:
                    nets[port].append(-1)
        inner = modules.get(cell["type"])
        if inner is None:
            kept = {port: [net for net in ids if net >= 0] for port, ids in nets.items()}
            leaves.append(_Leaf(f"{path}{name}", cell, kept))
            continue
        binding: dict[int, int] = {}
        for port, description in inner["ports"].items():
            for bit, net in zip(description["bits"], nets.get(port, ()), strict=False):
                if not isinstance(bit, int) or net < 0:
                    continue
                known = binding.setdefault(bit, net)
                if known != net:  # a wire from port to port
                    wire = {"type": "wire", "port_directions": {"I0": "input", "O": "output"}}
                    leaves.append(_Leaf(f"{path}{name}.{port}", wire, {"I0": [known], "O": [net]}))
        _flatten(modules, cell["type"], f"{path}{name}.", binding, leaves, fresh)


def _arcs(cell: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    """Return (input, output, levels) of the combinational paths through a cell."""
    kind = cell["type"]
    if re.fullmatch(r"LUT[1-6]|INV", kind):
        return [(port, "O", 1) for port in cell["port_directions"] if port != "O"]
    if re.fullmatch(r"MUXF[789]|wire|BUF", kind):
        return [(port, "O", 0) for port in cell["port_directions"] if port != "O"]
    if kind in ("CARRY4", "CARRY8"):
        first = [(port, out, 1) for port in ("S", "DI", "CYINIT") for out in ("O", "CO")]
        return [*first, ("CI", "O", 0), ("CI", "CO", 0)]
    if kind == "DSP48E2":
        return _dsp_arcs(cell["parameters"])
    if kind.startswith(("RAM32", "RAM64", "RAM128", "RAM256", "RAM512")):
        return [
            (read, out, 1)
            for out, direction in cell["port_directions"].items()
            if direction == "output"
            for read in _read_addresses(cell["port_directions"], out)
        ]
    if kind in ("SRL16E", "SRLC32E"):
        return [(port, "Q", 1) for port in cell["port_directions"] if re.fullmatch(r"A\d?", port)]
    if re.fullmatch(r"FD[CPRS]E|LD[CP]E|RAMB(18|36)E2|URAM288|BUFG(CE)?|BUFGCTRL", kind):
        return []
    raise ValueError(f"the netlist has a cell {kind}, whose paths are not known yet")


def _dsp_arcs(parameters: Mapping[str, str]) -> list[tuple[str, str, int]]:
    def there(name: str) -> bool:
        return "1" in str(parameters.get(name, "0"))

    if there("MREG") or there("PREG"):
        return []
    return [(p, "P", MULTIPLICATION_LEVELS) for p in ("A", "B") if not there(f"{p}REG")]


def _read_addresses(directions: Mapping[str, str], out: str) -> list[str]:
    # RAM32M16 and similar have an address for each output; others A, or DPRA for the second port.
    own = f"ADDR{out.removeprefix('DO')}"
    if own in directions:
        return [own]
    return [port for port in directions if port.startswith("DPRA" if out == "DPO" else "A")]
