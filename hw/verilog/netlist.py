"""Netlists of Amaranth, reduced to the cells that must be written.

Results that are constant, or equal to those of another cell, are replaced. Cells without an effect
on an output or an instance are left out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from operator import add, and_, eq, ge, gt, le, lt, mul, ne, or_, sub, xor
from typing import Any

from amaranth.hdl import _nir as nir  # these are not exported
from amaranth.hdl._ir import _emit_netlist

__all__ = ["ONE", "ZERO", "NeededCells", "netlist_of", "nets_of", "width_of"]

ZERO, ONE = (nir.Net.from_const(value) for value in (0, 1))


def netlist_of(fragment: Any, ports: Mapping[str, Any], name: str) -> Any:
    """Return the netlist of a fragment with instances as components, as its text needs it.

    Amaranth's ``build_netlist`` would also follow each bit in search of cycles, and each net
    through the hierarchy, which takes half as long as all the rest. Raises
    ``amaranth.hdl._nir.CombinationalCycle``.
    """
    netlist = nir.Netlist()
    _emit_netlist(netlist, fragment.prepare(ports=ports, hierarchy=(name,)))
    if _may_have_a_cycle(netlist):
        netlist.check_comb_cycles()
    netlist.resolve_all_nets()
    return netlist


def _may_have_a_cycle(netlist: Any) -> bool:
    """Return whether a cell depends on itself; it is no cycle if it does through other bits."""
    connections = netlist.connections
    sources: dict[int, set[int]] = {}
    for index, cell in enumerate(netlist.cells):
        if isinstance(cell, (nir.Top, nir.SyncReadPort, nir.Instance)):
            continue  # no output depends on an input in the same cycle
        sources[index] = set()
        registered = isinstance(cell, nir.FlipFlop)
        for net in (cell.clk, cell.arst) if registered else cell.input_nets():
            while net.is_late:
                net = connections[net]
            if net.is_cell:
                sources[index].add(net.cell)
    try:
        TopologicalSorter(sources).prepare()
    except CycleError:
        return True
    return False


def width_of(cell: Any) -> int:
    """Return the bits of a cell's output; 0 for an instance, which has several outputs."""
    match cell:
        case nir.Operator() | nir.Part() | nir.AsyncReadPort() | nir.SyncReadPort():
            return cell.width
        case nir.AssignmentList():
            return len(cell.default)
        case nir.FlipFlop():
            return len(cell.data)
    return 0


def nets_of(index: int, start: int, width: int) -> Any:
    """Return the bits from ``start`` on of the output of the cell ``index``."""
    first = nir.Net.from_cell(index, start)
    return nir.Value(map(nir.Net, range(first, first + width)))


class NeededCells:
    """Cells of ``netlist`` that are needed, with their indexes there."""

    def __init__(self, netlist: Any) -> None:
        self.all: list[Any] = netlist.cells
        self.outputs: dict[str, Any] = netlist.top.ports_o
        self._same: dict[Any, Any] = {}  # replacement of a net
        for index, cell in enumerate(self.all[1:], start=1):
            self._same.update(self._replacements(index, cell))
        self._needed = self._reached()
        self.uses: Counter[Any] = Counter()
        """Number of uses of each net."""
        for value in (*(v for _, cell in self for v in _inputs(cell)), *self.outputs.values()):
            self.uses.update(self.resolved(value))

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        for index in self._needed:
            yield index, self.all[index]

    def resolved(self, value: Any) -> Any:
        """Return the nets that drive a value."""
        same = self._same
        while any(net in same for net in value):
            value = nir.Value(same.get(net, net) for net in value)
        return value

    def used_whole(self, value: Any) -> int | None:
        """Return the cell with exactly ``value`` as its output and no other use, or None."""
        value = self.resolved(value)
        first = value[0]
        if not first.is_cell or width_of(self.all[first.cell]) != len(value):
            return None
        whole = all(net == first.cell << 16 | bit for bit, net in enumerate(value))
        return first.cell if whole and all(self.uses[net] == 1 for net in value) else None

    def live(self, listed: nir.AssignmentList) -> list[Any]:
        """Return the assignments of a list that can take place and assign something."""
        return [
            assignment
            for assignment in listed.assignments
            if len(assignment.value) and self.resolved((assignment.cond,))[0] != ZERO
        ]

    def used_once(self, taken: set[int]) -> set[int]:
        """Return the operators with an output that is written once, whole and in one piece.

        Conditions are written with each assignment list that has them. The lists of ``taken`` give
        a register its next value; their conditions are written once for all lists with the same.
        """
        written: defaultdict[int, set[Any]] = defaultdict(set)
        for index, cell in self:
            if isinstance(cell, nir.AssignmentList):
                conditions = tuple(assignment.cond for assignment in self.live(cell))
                for condition in {*conditions}:
                    while condition.is_cell:
                        switch = self.all[condition.cell]
                        for net in switch.inputs:
                            if net.is_cell:
                                written[net.cell].add(conditions if index in taken else index)
                        condition = switch.en
        operators: set[int] = set()
        values = [
            value
            for index, cell in self
            if len(written[index]) < 2
            for value in _inputs(cell)
        ]  # fmt: skip
        for value in (*values, *self.outputs.values()):
            nets = tuple(self.resolved(value))  # parts of which cost less than those of a value
            for at, net in enumerate(nets):
                if net.is_cell and not net.bit and isinstance(self.all[net.cell], nir.Operator):
                    piece = nets[at : at + width_of(self.all[net.cell])]
                    if self.used_whole(piece) == net.cell:
                        operators.add(net.cell)
        return operators - self._taken_apart()

    def _taken_apart(self) -> set[int]:
        """Return the cells that are used whole but with only parts of their output written."""
        values: list[Any] = []
        for _, cell in self:
            match cell:
                case nir.Matches() if any(_asks_one_bit(pattern) for pattern in cell.patterns):
                    values.append(cell.value)
                case nir.SyncWritePort() if len({*self.resolved(cell.en)}) > 1:
                    values.append(cell.data)
                case nir.Part() if cell.value_signed:
                    values.append(cell.value)
        return {net.cell for value in values for net in self.resolved(value) if net.is_cell}

    def _reached(self) -> list[int]:
        writers: defaultdict[int, list[int]] = defaultdict(list)
        reached: set[int] = {0}
        pending: list[int] = []
        for index, cell in enumerate(self.all):
            if isinstance(cell, nir.SyncWritePort):
                writers[cell.memory].append(index)
            elif width_of(cell) == 0 and not isinstance(cell, (*_SILENT, nir.Top)):
                pending.append(index)
        values = [*self.outputs.values()]
        while pending or values:
            for value in values:
                pending += {net.cell for net in self.resolved(value) if net.is_cell} - reached
            values = []
            if pending and (index := pending.pop()) not in reached:
                reached.add(index)
                cell = self.all[index]
                values += _inputs(cell)
                if isinstance(cell, (nir.AsyncReadPort, nir.SyncReadPort)):
                    pending += [cell.memory, *writers[cell.memory]]
        return sorted(reached - {0})

    def _replacements(self, index: int, cell: Any) -> dict[Any, Any]:
        """Return replacements for nets of a cell: constants, or nets of another cell."""
        match cell:
            case nir.Matches():
                value = self.resolved(cell.value)
                if value.is_const:
                    bits = "".join(str(net.const) for net in reversed(value))
                    matched = any(
                        all(char in ("-", bit) for char, bit in zip(pattern, bits, strict=True))
                        for pattern in cell.patterns
                    )
                    return {nir.Net.from_cell(index, 0): nir.Net.from_const(int(matched))}
            case nir.PriorityMatch():
                return self._first_of(index, cell)
            case nir.AssignmentList():
                live = self.live(cell)
                if all(self.resolved((assignment.cond,))[0] == ONE for assignment in live):
                    nets = list(cell.default)
                    for assignment in live:
                        nets[assignment.start : assignment.start + len(assignment.value)] = (
                            assignment.value
                        )
                    return dict(zip(nets_of(index, 0, len(nets)), nets, strict=True))
            case nir.Part():
                offset = self.resolved(cell.offset)
                if offset.is_const:
                    start = _bounds(offset)[0] * cell.stride
                    beyond = cell.value[-1] if cell.value_signed else ZERO
                    nets = (*cell.value, *[beyond] * (start + cell.width))[start:][: cell.width]
                    return dict(zip(nets_of(index, 0, cell.width), nets, strict=True))
            case nir.Operator():
                return self._result(index, cell)
        return {}

    def _first_of(self, index: int, cell: nir.PriorityMatch) -> dict[Any, Any]:
        enable, *inputs = self.resolved((cell.en, *cell.inputs))
        replacements: dict[Any, Any] = {}
        for bit, net in enumerate(inputs):
            if ZERO in (enable, net):
                replacements[nir.Net.from_cell(index, bit)] = ZERO
            elif net == ONE:
                replacements[nir.Net.from_cell(index, bit)] = enable
                enable = ZERO
            else:
                break
        return replacements

    def _result(self, index: int, cell: nir.Operator) -> dict[Any, Any]:
        operator, values = cell.operator, [self.resolved(value) for value in cell.inputs]
        if all(value.is_const for value in values):
            number = _computed(operator, values)
            if number is not None:
                nets = [nir.Net.from_const(number >> bit & 1) for bit in range(cell.width)]
                return dict(zip(nets_of(index, 0, cell.width), nets, strict=True))
        known: bool | None = None
        if operator in ("b", "r|", "r&", "r^") and not len(values[0]):
            known = operator == "r&"
        elif operator in ("u<", "u>", "u<=", "u>="):
            (a, a_most), (b, b_most) = map(_bounds, values)
            if operator in ("u>", "u<="):
                a, a_most, b, b_most = b, b_most, a, a_most
            # The result of `a < b`, the opposite of `a >= b`.
            known = True if a_most < b else False if a >= b_most else None
            if known is not None and operator in ("u<=", "u>="):
                known = not known
        elif operator in ("==", "!="):
            (a, a_most), (b, b_most) = map(_bounds, values)
            if a_most < b or b_most < a or a == a_most == b == b_most:
                known = (a == b) == (operator == "==")
        elif operator in ("<<", "u>>", "s>>") and all(net == ZERO for net in values[1]):
            return dict(zip(nets_of(index, 0, cell.width), values[0], strict=True))
        if known is None:
            return {}
        return {nir.Net.from_cell(index, 0): nir.Net.from_const(int(known))}


def _asks_one_bit(pattern: str) -> bool:
    """Return whether a pattern tests one bit of several."""
    return len(pattern) > 1 and len(pattern.replace("-", "")) == 1


def _computed(operator: str, values: Sequence[Any]) -> int | None:
    """Return the result of an operator with constant operands; None if it is not computed here."""
    widths = [len(value) for value in values]
    a, *rest = [_bounds(value)[0] for value in values]
    full = (1 << widths[0]) - 1
    match operator, rest:
        case "b" | "r|", []:
            return int(a != 0)
        case "r&", []:
            return int(a == full)
        case "r^", []:
            return a.bit_count() & 1
        case "~", []:
            return ~a
        case "-", []:
            return -a
        case "m", [yes, no]:
            return yes if a else no
        case "+" | "-" | "*" | "&" | "|" | "^" | "==" | "!=", [b]:
            return int(_OPERATIONS[operator](a, b))
        case "u<" | "u>" | "u<=" | "u>=", [b]:
            return int(_OPERATIONS[operator[1:]](a, b))
        case "s<" | "s>" | "s<=" | "s>=", [b] if all(widths):
            signed = (
                number - ((number >> width - 1) << width)
                for number, width in ((a, widths[0]), (b, widths[1]))
            )
            return int(_OPERATIONS[operator[1:]](*signed))
    return None


_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": add, "-": sub, "*": mul, "&": and_, "|": or_, "^": xor,
    "==": eq, "!=": ne, "<": lt, ">": gt, "<=": le, ">=": ge,
}  # fmt: skip

_SILENT = (nir.Matches, nir.PriorityMatch, nir.Memory, nir.SyncWritePort, nir.AssignmentList,
           nir.Operator, nir.Part, nir.FlipFlop, nir.AsyncReadPort, nir.SyncReadPort)  # fmt: skip
"""Cells with no effect but their output, or what is read of a memory."""


def _inputs(cell: Any) -> Iterator[Any]:
    """Yield the values that a cell reads."""
    match cell:
        case nir.Operator():
            yield from cell.inputs
        case nir.Part():
            yield from (cell.value, cell.offset)
        case nir.Matches():
            yield cell.value
        case nir.PriorityMatch():
            yield from (nir.Value(cell.en), cell.inputs)
        case nir.AssignmentList():
            yield cell.default
            for assignment in cell.assignments:
                yield from (nir.Value(assignment.cond), assignment.value)
        case nir.FlipFlop():
            yield from (cell.data, nir.Value(cell.clk), nir.Value(cell.arst))
        case nir.SyncWritePort():
            yield from (cell.data, cell.addr, cell.en, nir.Value(cell.clk))
        case nir.AsyncReadPort():
            yield cell.addr
        case nir.SyncReadPort():
            yield from (cell.addr, nir.Value(cell.en), nir.Value(cell.clk))
        case nir.Instance():
            yield from cell.ports_i.values()


def _bounds(value: Any) -> tuple[int, int]:
    """Return the minimum and the maximum of a value, from its constant bits."""
    least = sum(net.const << bit for bit, net in enumerate(value) if net.is_const)
    return least, least + sum(1 << bit for bit, net in enumerate(value) if not net.is_const)
