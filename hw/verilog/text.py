"""Text of one Verilog module (Verilog-2005) from a netlist of Amaranth.

Every operand is written with the width that its operation has. So Verilog's rules for widths and
signs do not matter, and linters have nothing to report. Registers are assigned where they are
clocked, under the conditions of the source. Unnamed values with one use are written at that use.
Logic that reaches no output is left out. Bits of the rest that nothing reads are gathered in a
wire ``unused``, as linters expect.
"""

from __future__ import annotations

import re
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from amaranth.hdl import _nir as nir  # not exported

from hw.verilog.netlist import ONE, ZERO, NeededCells, nets_of, width_of

__all__ = ["KEYWORDS", "module_text", "source_place"]

_WORDS = """
accept_on alias always always_comb always_ff always_latch and assert assign assume automatic before
begin bind bins binsof bit break buf bufif0 bufif1 byte case casex casez cell chandle checker class
clocking cmos config const constraint context continue cover covergroup coverpoint cross deassign
default defparam design disable dist do edge else end endcase endchecker endclass endclocking
endconfig endfunction endgenerate endgroup endinterface endmodule endpackage endprimitive endprogram
endproperty endspecify endsequence endtable endtask enum event eventually expect export extends
extern final first_match for force foreach forever fork forkjoin function generate genvar global
highz0 highz1 if iff ifnone ignore_bins illegal_bins implements implies import incdir include
initial inout input inside instance int integer interconnect interface intersect join join_any
join_none large let liblist library local localparam logic longint macromodule matches medium
modport module nand negedge nettype new nexttime nmos nor noshowcancelled not notif0 notif1 null or
output package packed parameter pmos posedge primitive priority program property protected pull0
pull1 pulldown pullup pulsestyle_ondetect pulsestyle_onevent pure rand randc randcase randsequence
rcmos real realtime ref reg reject_on release repeat restrict return rnmos rpmos rtran rtranif0
rtranif1 s_always s_eventually s_nexttime s_until s_until_with scalared sequence shortint shortreal
showcancelled signed small soft solve specify specparam static string strong strong0 strong1 struct
super supply0 supply1 sync_accept_on sync_reject_on table tagged task this throughout time
timeprecision timeunit tran tranif0 tranif1 tri tri0 tri1 triand trior trireg type typedef union
unique unique0 unsigned until until_with untyped use uwire var vectored virtual void wait wait_order
wand weak weak0 weak1 while wildcard wire with within wor xnor xor
"""

KEYWORDS = frozenset(_WORDS.split())
"""Words that no name may be: those of SystemVerilog, since many tools read Verilog as that."""

_RESULTS = {
    "+": "sum", "-": "difference", "*": "product", "m": "chosen", "<<": "shifted",
    "u>>": "shifted", "s>>": "shifted", "==": "equal", "!=": "differs", "~": "inverted",
}  # fmt: skip
"""Names for results without one; results of other operators are called ``test``."""

_LONGEST = 80
"""Maximum length of an expression written inside another one, in characters."""

_INDENT = "  "

_LINE = 100
"""Maximum length of a line, in characters."""


def module_text(
    netlist: Any,
    name: str,
    *,
    src: bool,
    title: str,
    meanings: Mapping[str, str],
) -> str:
    """Return the module ``name``: all of ``netlist``, with the other modules as instances.

    With ``src``, attributes of that name give locations in the source: of declarations, assignments
    and the branches of conditions. ``title`` is a comment above the module. ``meanings`` has the
    ports in their order, after those of the clocks, with a comment for each; neighbours with the
    same comment share it.

    Raises ``NotImplementedError`` for parts of a netlist that no design here has.
    """
    return _Writer(netlist, src=src).text(name, title, meanings)


class _Names:
    """Source of unique names."""

    def __init__(self) -> None:
        self._given: set[str] = set()

    def new(self, wanted: str) -> str:
        name = re.sub(r"\W+", "_", wanted.lstrip("$")) or "value"
        if name[0].isdigit():
            name = f"value_{name}"
        if name in KEYWORDS:
            name = f"{name}_"
        name, plain, number = name, name, 1
        while name in self._given:
            number += 1
            name = f"{plain}_{number}"
        self._given.add(name)
        return name


class _Writer:
    def __init__(self, netlist: Any, *, src: bool) -> None:
        self._netlist = netlist
        self._cells = NeededCells(netlist)
        self._src = src
        self._names = _Names()
        self._wires: dict[Any, tuple[str, int]] = {}  # net -> wire, bit
        self._widths: dict[str, int] = {}  # of wires and ports that have a width
        self._read: defaultdict[str, set[int]] = defaultdict(set)  # bits of a wire that are read
        self._reads = 0  # number of reads of wires
        self._inlined: dict[Any, tuple[str, int]] = {}  # first net -> text, width
        self._registers: set[str] = set()  # ports that are registers
        self._memories: dict[int, str] = {}
        self._declared: list[str] = []
        self._body: list[str] = []
        self._initial: list[str] = []
        self._outputs: dict[Any, str] = {}
        self._named: dict[Any, tuple[str, Any, dict[str, Any]]] = {}
        self._prefixes: list[str] = []
        for module in netlist.modules:
            prefix = "".join(f"{part}_" for part in module.name[1:])
            self._prefixes.append(prefix)
            for signal, name in module.signal_names.items():
                value = netlist.signals[signal]
                known = self._named.setdefault(value, (prefix + name, signal.src_loc, {}))
                known[2].update(signal.attrs)

    def text(self, module: str, title: str, meanings: Mapping[str, str]) -> str:
        """Return the text of the module."""
        top = self._netlist.top
        for name in (*top.ports_i, *top.ports_o):
            self._names.new(name)
        self._unused_name = self._names.new("unused")
        for name, (start, width) in top.ports_i.items():
            if width:
                self._widths[name] = width
                self._drive(nets_of(0, start, width), name)
        for name, value in top.ports_o.items():
            self._outputs.setdefault(value, name)
        taken = self._declare_storage()
        self._declare_results(taken)
        self._write_operations()
        self._write_cells()
        self._write_registers(taken)
        for name, value in top.ports_o.items():
            if len(value) and name not in self._widths:
                self._assign(name, self._expression(value))
        return self._whole(module, title, meanings)

    # Names

    def _declare(
        self, wanted: str, width: int, kind: str, location: Any, attributes: Mapping[str, Any]
    ) -> str:
        name = self._names.new(wanted)
        self._declared += self._attributes(attributes, location)
        self._declared.append(f"{kind} {_range(width)}{name};")
        self._widths[name] = width
        return name

    def _attributes(self, attributes: Mapping[str, Any], location: Any) -> Iterator[str]:
        for key, value in attributes.items():
            yield f"(* {key} = {_parameter(value)} *)"
        if at := self._at(location):
            yield at.rstrip()

    def _at(self, location: Any) -> str:
        """Return the attribute before a statement, a space at its end; empty without ``src``."""
        if not self._src or location is None:
            return ""
        return f'(* src = "{source_place(*location[:2])}" *) '

    def _drive(self, nets: Any, name: str) -> None:
        for bit, net in enumerate(nets):
            self._wires[net] = name, bit

    def _wire(self, nets: Any, kind: str, otherwise: str, location: Any) -> str:
        """Declare the driver of nets; an output keeps its name, others get that of a signal."""
        if nets in self._outputs:
            name = self._outputs[nets]
            self._widths[name] = len(nets)
            self._read[name].update(range(len(nets)))
            if kind == "reg":
                self._registers.add(name)
        else:
            name, location, attributes = self._named.get(nets, (otherwise, location, {}))
            if not any(self._cells.uses[net] for net in nets):
                name = f"unused_{name}"
            name = self._declare(name, len(nets), kind, location, attributes)
        self._drive(nets, name)
        return name

    def _declare_storage(self) -> set[int]:
        """Declare memories, registers and the outputs of instances.

        Return the assignment lists that are written where a register is clocked: those that only
        give a register its next value.
        """
        taken: set[int] = set()
        for index, cell in self._cells:
            match cell:
                case nir.Memory():
                    self._memories[index] = self._memory(cell)
                case nir.Instance():
                    prefix = self._prefixes[cell.module_idx] + (cell.name or cell.type)
                    for port, (start, width) in cell.ports_o.items():
                        if width:
                            nets = nets_of(index, start, width)
                            self._wire(nets, "wire", f"{prefix}_{port}", cell.src_loc)
                case nir.FlipFlop() if len(cell.data):
                    if cell.arst != ZERO:
                        raise NotImplementedError(f"asynchronous reset at {cell.src_loc}")
                    width = len(cell.data)
                    name = self._wire(nets_of(index, 0, width), "reg", "register", cell.src_loc)
                    self._initial.append(f"{name} = {_constant(cell.init, width)};")
                    source = self._cells.used_whole(cell.data)
                    if source is not None and isinstance(
                        self._cells.all[source], nir.AssignmentList
                    ):
                        taken.add(source)
                case nir.SyncReadPort() if cell.width:
                    nets = nets_of(index, 0, cell.width)
                    name = f"{self._memories[cell.memory]}_data"
                    self._wire(nets, "reg", name, cell.src_loc)
        return taken

    def _declare_results(self, taken: set[int]) -> None:
        """Declare all results except those that may be written at their use."""
        once = self._cells.used_once(taken)
        for index, cell in self._cells:
            nets = nets_of(index, 0, width_of(cell))
            if not len(nets) or index in taken or self._cells.resolved(nets) != nets:
                continue
            match cell:
                case nir.AssignmentList():
                    self._wire(nets, "reg", "next", cell.src_loc)
                case nir.Operator():
                    named = nets in self._outputs or nets in self._named
                    if named or index not in once:
                        self._wire(nets, "wire", _result_name(cell), cell.src_loc)
                case nir.Part():
                    self._wire(nets, "wire", "part", cell.src_loc)
                case nir.AsyncReadPort():
                    name = f"{self._memories[cell.memory]}_data"
                    self._wire(nets, "wire", name, cell.src_loc)

    # Expressions

    def _slice(self, name: str, low: int, width: int) -> str:
        self._reads += 1
        self._read[name].update(range(low, low + width))
        return name if width == self._widths[name] else f"{name}{_bits(low, low + width - 1)}"

    def _target(self, nets: Any) -> str:
        name, low = self._wires[nets[0]]
        whole = len(nets) == self._widths[name]
        return name if whole else f"{name}{_bits(low, low + len(nets) - 1)}"

    def _pieces(self, value: Any) -> Iterator[tuple[str, bool]]:
        """Yield the texts of a value's pieces, low ones first, and if they have an operator."""
        at = 0
        while at < len(value):
            net, end = value[at], at + 1
            if net.is_const:
                while end < len(value) and value[end].is_const:
                    end += 1
                number = sum(constant.const << bit for bit, constant in enumerate(value[at:end]))
                yield _constant(number, end - at), False
            elif net in self._inlined:
                text, width = self._inlined[net]
                end = at + width
                if end > len(value):
                    raise AssertionError(f"a part of {text!r} is needed, but {text!r} has no name")
                self._reads += 1
                yield text, True
            else:
                name, low = self._wires[net]
                while end < len(value) and self._wires.get(value[end]) == (name, low + end - at):
                    end += 1
                text = self._slice(name, low, end - at)
                if end - at == 1:
                    while end < len(value) and value[end] == net:
                        end += 1
                    if end - at > 1:
                        text = f"{{{end - at}{{{text}}}}}"
                yield text, False
            at = end

    def _expression(self, value: Any, *, operand: bool = False) -> str:
        """Return the text of a value, in parentheses if it needs them as an operand."""
        pieces = [*self._pieces(self._cells.resolved(value))][::-1]
        if len(pieces) > 1:
            return f"{{{', '.join(text for text, _ in pieces)}}}"
        text, operator = pieces[0]
        return f"({text})" if operand and operator else text

    def _assign(self, name: str, text: str, location: Any = None) -> None:
        at = self._at(location)  # Icarus Verilog takes no attribute here, a comment it does
        at = f"  // {at[3:-4]}" if at else ""
        self._body.append(f"assign {name} = {text};{at}")

    def _write_operations(self) -> None:
        for index, cell in self._cells:
            nets = nets_of(index, 0, width_of(cell))
            if not isinstance(cell, nir.Operator) or self._cells.resolved(nets) != nets:
                continue
            for value in cell.inputs:
                for net in self._cells.resolved(value):
                    self._need_wire(net)
            text = self._operation(cell)
            if nets[0] not in self._wires and len(text) <= _LONGEST:
                self._inlined[nets[0]] = text, len(nets)
                continue
            if nets[0] not in self._wires:
                self._wire(nets, "wire", _result_name(cell), cell.src_loc)
            self._assign(self._wires[nets[0]][0], text, cell.src_loc)

    def _need_wire(self, net: Any) -> None:
        """Declare a result that is used before it is written."""
        if net.is_const or net in self._wires:
            return
        cell = self._cells.all[net.cell]
        if nir.Net.from_cell(net.cell, 0) not in self._inlined:
            nets = nets_of(net.cell, 0, width_of(cell))
            self._wire(nets, "wire", _result_name(cell), cell.src_loc)

    def _operation(self, cell: nir.Operator) -> str:
        operator = cell.operator
        values = [self._cells.resolved(value) for value in cell.inputs]
        if operator in ("==", "!=", "u<", "u>", "u<=", "u>="):
            # Zeros at the top of both operands do not matter.
            while len(values[0]) > 1 and values[0][-1] == values[1][-1] == ZERO:
                values = [value[:-1] for value in values]
        if operator in ("<<", "u>>", "s>>"):
            while len(values[1]) > 1 and values[1][-1] == ZERO:
                values[1] = values[1][:-1]
        texts = [self._expression(value, operand=True) for value in values]
        match operator:
            case "~" | "-" if len(texts) == 1:
                return f"{operator}{texts[0]}"
            case "b" | "r|":
                return f"|{texts[0]}"
            case "r&" | "r^":
                return f"{operator[-1]}{texts[0]}"
            case "m":
                return f"{texts[0]} ? {texts[1]} : {texts[2]}"
            case "s<" | "s>" | "s<=" | "s>=":
                return f"$signed({texts[0]}) {operator[1:]} $signed({texts[1]})"
            case "s>>":
                return f"$unsigned($signed({texts[0]}) >>> {texts[1]})"
            case "u//" | "u%" if values[1].is_const and ONE in values[1]:
                return f"{texts[0]} {operator[1]} {texts[1]}"
            case "+" | "-" | "*" | "&" | "|" | "^" | "==" | "!=" | "<<":
                return f"{texts[0]} {operator} {texts[1]}"
            case "u>>" | "u<" | "u>" | "u<=" | "u>=":
                return f"{texts[0]} {operator[1:]} {texts[1]}"
        raise NotImplementedError(f"operator {operator!r} at {cell.src_loc}")

    # Cells

    def _write_cells(self) -> None:
        """Write all cells except operators and registers."""
        for index, cell in self._cells:
            nets = nets_of(index, 0, width_of(cell))
            name = self._wires[nets[0]][0] if len(nets) and nets[0] in self._wires else ""
            match cell:
                case nir.AssignmentList() if name:
                    before = self._reads
                    statements = self._statements([(nets, cell, False)], "=")
                    if self._reads == before:  # it would never be evaluated
                        raise AssertionError(f"{name!r} depends on nothing: {statements}")
                    self._body.append("always @* begin")
                    self._body += statements
                    self._body.append("end")
                case nir.Part() if name:
                    self._part(cell, name)
                case nir.AsyncReadPort() if name:
                    place = f"{self._memories[cell.memory]}[{self._address(cell)}]"
                    self._assign(name, place)
                case nir.SyncReadPort() if name:
                    self._read_port(cell, name)
                case nir.SyncWritePort():
                    self._write_port(cell)
                case nir.Instance():
                    self._instance(index, cell)
                case (
                    nir.AssignmentList() | nir.Part() | nir.AsyncReadPort() | nir.SyncReadPort()
                    | nir.Operator() | nir.Matches() | nir.PriorityMatch() | nir.Memory()
                    | nir.FlipFlop()
                ):  # fmt: skip
                    pass
                case _:
                    raise NotImplementedError(f"{type(cell).__name__} at {cell.src_loc}")

    def _part(self, cell: nir.Part, name: str) -> None:
        """Write a slice that begins at a variable bit; zeros or the sign follow beyond the end."""
        value, stride = self._cells.resolved(cell.value), cell.stride
        offset = [*self._cells.resolved(cell.offset)]
        while len(offset) > 1 and offset[-1] == ZERO:
            offset.pop()
        highest = ((1 << len(offset)) - 1) * stride + cell.width
        while stride % 2 == 0:
            offset.insert(0, ZERO)
            stride //= 2
        start = nir.Value(offset)
        if stride > 1:
            width = len(start) + stride.bit_length()
            product = self._declare(f"{name}_start", width, "wire", cell.src_loc, {})
            wide = self._expression(nir.Value([*start, *[ZERO] * (width - len(start))]))
            self._assign(product, f"{wide} * {_constant(stride, width)}")
            places = self._slice(product, 0, width)
        else:
            width, places = len(start), self._expression(start, operand=True)
        index_bits = max(len(value) - 1, 1).bit_length()
        text = self._expression(value)
        if highest <= len(value) and width <= index_bits and re.fullmatch(r"\w+", text):
            zeros = f"{{{_constant(0, index_bits - width)}, {places}}}"
            index = zeros if width < index_bits else places
            self._assign(name, f"{text}[{index} +: {cell.width}]")
            return
        beyond = value[-1] if cell.value_signed else ZERO
        missing = max(cell.width - len(value), 0)
        text = self._expression(nir.Value([*value, *[beyond] * missing]), operand=True)
        shift = f"{text} >> {places}"
        if cell.value_signed:
            shift = f"$unsigned($signed({text}) >>> {places})"
        if cell.width >= len(value):
            self._assign(name, shift)
            return
        shifted = self._declare(f"{name}_shifted", len(value), "wire", cell.src_loc, {})
        self._assign(shifted, shift)
        self._assign(name, self._slice(shifted, 0, cell.width))

    def _memory(self, cell: nir.Memory) -> str:
        name = self._names.new(cell.name)
        self._declared += self._attributes(cell.attributes, cell.src_loc)
        self._declared.append(f"reg {_range(cell.width)}{name} [0:{cell.depth - 1}];")
        rows = [row & ((1 << cell.width) - 1) for row in cell.init]
        if len(set(rows)) == 1:
            row = self._names.new("row")
            self._declared.append(f"integer {row};")
            self._initial.append(
                f"for ({row} = 0; {row} < {cell.depth}; {row} = {row} + 1) "
                f"{name}[{row}] = {_constant(rows[0], cell.width)};"
            )
        else:
            self._initial += [
                f"{name}[{at}] = {_constant(row, cell.width)};" for at, row in enumerate(rows)
            ]
        return name

    def _address(self, port: Any) -> str:
        return self._expression(port.addr) if len(port.addr) else "0"

    def _clocked(self, port: Any, statements: Sequence[str]) -> None:
        edge = f"always @({port.clk_edge}edge {self._expression((port.clk,))})"
        if len(statements) == 1:
            self._body.append(f"{edge} {statements[0]}")
        elif statements:
            self._body += [
                f"{edge} begin",
                *(_INDENT + statement for statement in statements),
                "end",
            ]

    def _written(self, port: nir.SyncWritePort) -> Iterator[tuple[str | None, str, str]]:
        """Yield enable (None if always), bits and data of the parts that are written together."""
        enables = self._cells.resolved(port.en)
        at = 0
        while at < len(enables):
            end = at
            while end < len(enables) and enables[end] == enables[at]:
                end += 1
            if enables[at] != ZERO:
                enable = self._expression((enables[at],)) if enables[at] != ONE else None
                bits = "" if end - at == len(enables) else _bits(at, end - 1)
                yield enable, bits, self._expression(port.data[at:end])
            at = end

    def _write_port(self, port: nir.SyncWritePort) -> None:
        place = f"{self._memories[port.memory]}[{self._address(port)}]"
        at = self._at(port.src_loc)
        self._clocked(
            port,
            [
                f"{at}{f'if ({enable}) ' if enable else ''}{place}{bits} <= {data};"
                for enable, bits, data in self._written(port)
            ],
        )

    def _read_port(self, port: nir.SyncReadPort, name: str) -> None:
        if port.transparent_for:
            raise NotImplementedError(f"transparent read port at {port.src_loc}")
        enable = self._cells.resolved((port.en,))
        condition = "" if enable[0] == ONE else f"if ({self._expression(enable)}) "
        place = f"{self._memories[port.memory]}[{self._address(port)}]"
        self._clocked(port, [f"{self._at(port.src_loc)}{condition}{name} <= {place};"])

    def _instance(self, index: int, cell: nir.Instance) -> None:
        name = self._names.new(self._prefixes[cell.module_idx] + (cell.name or cell.type))
        connections = {
            port: self._expression(value) for port, value in cell.ports_i.items() if len(value)
        }
        for port, (start, width) in cell.ports_o.items():
            if width:
                connections[port] = self._wires[nir.Net.from_cell(index, start)][0]
        parameters = [f".{key}({_parameter(value)})" for key, value in cell.parameters.items()]
        self._body += self._attributes(cell.attributes, cell.src_loc)
        head = f"{cell.type} #({', '.join(parameters)})" if parameters else cell.type
        self._body.append(f"{head} {name} (")
        lines = [f"{_INDENT}.{port}({text})" for port, text in connections.items()]
        self._body += [*(f"{line}," for line in lines[:-1]), *lines[-1:], ");"]

    def _write_registers(self, taken: set[int]) -> None:
        """Write registers, grouping those that change under the same conditions."""
        simple: defaultdict[Any, list[str]] = defaultdict(list)
        chosen: defaultdict[Any, list[tuple[Any, Any, bool]]] = defaultdict(list)
        clocks: dict[Any, Any] = {}
        for index, cell in self._cells:
            if not isinstance(cell, nir.FlipFlop) or not len(cell.data):
                continue
            nets = nets_of(index, 0, len(cell.data))
            clock = cell.clk_edge, cell.clk
            clocks[clock] = cell
            data = self._cells.resolved(cell.data)
            if data[0].is_cell and data[0].cell in taken:
                listed = self._cells.all[data[0].cell]
                holds = self._cells.resolved(listed.default) == nets
                conditions = tuple(assignment.cond for assignment in self._cells.live(listed))
                chosen[clock, conditions].append((nets, listed, holds))
            else:
                simple[clock].append(f"{self._target(nets)} <= {self._expression(data)};")
        for clock, statements in simple.items():
            self._clocked(clocks[clock], statements)
        for (clock, _), members in chosen.items():
            statements = [line[len(_INDENT) :] for line in self._statements(members, "<=")]
            if statements[1:]:
                self._clocked(clocks[clock], statements)

    def _statements(self, members: Sequence[tuple[Any, Any, bool]], equals: str) -> list[str]:
        """Return statements for assignment lists with the same conditions in the same order.

        A member has the nets that are assigned, a list (:class:`nir.AssignmentList`), and a flag
        that the nets keep their value without an assignment.
        """
        lines: list[str] = []
        for nets, listed, holds in members:
            if not holds:
                default = self._expression(listed.default)
                lines.append(f"{_INDENT}{self._target(nets)} {equals} {default};")
        lists = [(nets, self._cells.live(listed)) for nets, listed, _ in members]
        conditions = [assignment.cond for assignment in lists[0][1]]
        position = 0

        def emit(lines: list[str], condition: Any, depth: int) -> None:
            nonlocal position
            while position < len(conditions):
                if conditions[position] == condition:
                    for nets, assignments in lists:
                        assignment = assignments[position]
                        if target := nets[
                            assignment.start : assignment.start + len(assignment.value)
                        ]:
                            text = f"{self._at(assignment.src_loc)}{self._target(target)} {equals} "
                            text += self._expression(assignment.value[: len(target)])
                            lines.append(f"{_INDENT * depth}{text};")
                    position += 1
                    continue
                inner = conditions[position]
                while inner != condition:
                    if inner == ONE:
                        return
                    switch, inner = inner.cell, self._cells.all[inner.cell].en
                choose(lines, switch, depth)

        def choose(lines: list[str], switch: int, depth: int) -> None:
            tests = [
                (
                    nir.Net.from_cell(switch, bit),
                    None if net.is_const else self._cells.all[net.cell],
                )
                for bit, net in enumerate(self._cells.all[switch].inputs)
            ]
            tests = [test for test in tests if self._cells.resolved(test[:1])[0] != ZERO]
            value = next((test.value for _, test in tests if test is not None), nir.Value())
            single = all(test is None or _asks_one_bit(test) for _, test in tests)
            branches: list[tuple[Any, list[str]]] = []
            for condition, test in tests:
                branch: list[str] = []
                inside = depth if not len(value) else depth + 1 if single else depth + 2
                emit(branch, condition, inside)
                if test is None or test.patterns:
                    branches.append((test, branch))
            while branches and not branches[-1][1]:
                branches.pop()
            if not len(value):  # nothing to choose by: it is the first
                lines += branches[0][1] if branches else []
            elif single:
                lines += self._ifs(value, branches, _INDENT * depth)
            else:
                lines += self._case(value, branches, _INDENT * depth)

        emit(lines, ONE, 1)
        if position != len(conditions):
            raise AssertionError(f"conditions of {members[0][1]!r} do not nest")
        return lines

    def _ifs(self, value: Any, branches: Sequence[tuple[Any, list[str]]], pad: str) -> list[str]:
        lines: list[str] = []
        word = "if"
        for test, branch in branches:
            if test is None:
                lines.append(f"{pad}end else begin" if lines else f"{pad}begin")
            else:
                pattern = test.patterns[0][::-1]
                bit = next(at for at, char in enumerate(pattern) if char != "-")
                falls = pattern[bit] == "0"
                text = self._expression(value[bit : bit + 1], operand=falls)
                test_text = f"{'!' if falls else ''}{text}"
                lines.append(f"{pad}{word} ({test_text}) {self._at(test.src_loc)}begin")
            lines += branch
            word = "end else if"
        return [*lines, f"{pad}end"] if lines else []

    def _case(self, value: Any, branches: Sequence[tuple[Any, list[str]]], pad: str) -> list[str]:
        patterns = [
            pattern for test, _ in branches if test is not None for pattern in test.patterns
        ]
        word = "casez" if any("-" in pattern for pattern in patterns) else "case"
        lines = [f"{pad}{word} ({self._expression(value)})"]
        for test, branch in branches:
            label, at = "default", ""
            if test is not None:
                label = ", ".join(map(_label, test.patterns))
                at = self._at(test.src_loc)
            if len(branch) > 1 or at:
                lines += [f"{pad}{_INDENT}{label}: {at}begin", *branch, f"{pad}{_INDENT}end"]
            else:
                lines.append(f"{pad}{_INDENT}{label}: {branch[0].strip() if branch else ';'}")
        if branches and branches[-1][0] is not None:
            lines.append(f"{pad}{_INDENT}default: ;")
        return [*lines, f"{pad}endcase"] if branches else []

    # The whole

    def _whole(self, module: str, title: str, meanings: Mapping[str, str]) -> str:
        top = self._netlist.top
        ports = {
            name: f"input  wire {_range(width)}{name}"
            for name, (_, width) in top.ports_i.items()
            if width
        } | {
            name: f"output {'reg ' if name in self._registers else 'wire'} "
            f"{_range(len(value))}{name}"
            for name, value in top.ports_o.items()
            if len(value)
        }
        order = {name: at for at, name in enumerate(meanings, start=1)}
        lines = [*_comment(title), f"module {module} ("]
        meaning = ""
        for at, name in enumerate(sorted(ports, key=lambda name: order.get(name, 0)), start=1):
            port = ports[name]
            if meanings.get(name, meaning) != meaning:
                meaning = meanings[name]
                lines += [_INDENT + line for line in _comment(meaning)]
            lines.append(f"{_INDENT}{port}{',' if at < len(ports) else ''}")
        lines.append(");")
        unused = [*self._unused()]
        body = [*self._declared, *self._body]
        if unused:
            body += [f"wire {self._unused_name} = &{{1'b0,", f"{_INDENT}{', '.join(unused)}", "};"]
        if self._initial:
            body += ["initial begin", *(_INDENT + line for line in self._initial), "end"]
        for line in body:
            lines += _wrapped(_INDENT + line)
        return "\n".join([*lines, "endmodule", ""])

    def _unused(self) -> Iterator[str]:
        for name, width in self._widths.items():
            left = [bit for bit in range(width) if bit not in self._read[name]]
            if len(left) == width:
                if not name.startswith("unused_"):
                    yield name
                continue
            for low in left:
                if low - 1 not in left:
                    high = low
                    while high + 1 in left:
                        high += 1
                    yield f"{name}{_bits(low, high)}"


def _comment(text: str) -> list[str]:
    return [f"// {line}" for line in textwrap.wrap(text, _LINE - 5)]


def source_place(file: str, line: int) -> str:
    """Return a location in the source as ``hw/folder/file.py:line``."""
    path = Path(file)
    for package in ("hw", "amaranth"):
        if package in path.parts:
            at = len(path.parts) - 1 - path.parts[::-1].index(package)
            return f"{'/'.join(path.parts[at:])}:{line}"
    return f"{path.name}:{line}"


def _asks_one_bit(test: nir.Matches) -> bool:
    return len(test.patterns) == 1 and len(test.patterns[0].replace("-", "")) == 1


def _result_name(cell: Any) -> str:
    return _RESULTS.get(cell.operator, "test")


def _label(pattern: str) -> str:
    if "-" in pattern:
        return f"{len(pattern)}'b{pattern.replace('-', '?')}"
    return _constant(int(pattern, 2), len(pattern))


def _constant(value: int, width: int) -> str:
    if width == 1:
        return f"1'b{value}"
    return f"{width}'d{value}" if value < 1000 else f"{width}'h{value:x}"


def _range(width: int) -> str:
    return f"[{width - 1}:0] " if width > 1 else ""


def _bits(low: int, high: int) -> str:
    return f"[{low}]" if low == high else f"[{high}:{low}]"


def _parameter(value: Any) -> str:
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'
    if hasattr(value, "shape"):  # a constant of Amaranth
        return _constant(value.value & ((1 << len(value)) - 1), len(value))
    number = int(value)
    return str(number) if abs(number) < 1 << 31 else f"64'sd{number}"


def _wrapped(line: str) -> list[str]:
    if len(line) <= _LINE or '"' in line:
        return [line]
    pad = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(
        line, _LINE, subsequent_indent=pad + 2 * _INDENT, initial_indent="",
        break_long_words=False, break_on_hyphens=False, drop_whitespace=True,
    )  # fmt: skip
