"""A lane: a multiplier, an adder, and memory for what is being added up."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, enum, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from hw.float.add import FloatAdd
from hw.float.mul import FloatMul
from hw.float.operator import FloatOperator
from hw.float.parts import Bits, register
from hw.logic.shared import Shared
from hw.pim.config import PimConfig
from hw.pim.work.layouts import INTERLEAVE

__all__ = [
    "ADD_CYCLES",
    "PRODUCT_CYCLES",
    "RING_ROUNDS",
    "Addend",
    "Augend",
    "Lane",
    "LaneGeometry",
]

RING_ROUNDS = 16
"""Rounds of products that wait for the adder at most."""

_STAGES = 5
"""Stages of multiplier and adder: a sum must be in memory when its turn of ``INTERLEAVE`` cycles
comes."""

PRODUCT_CYCLES = 1 + _STAGES
"""Cycles from ``a`` and ``b`` of a lane to their product: a register and the multiplier."""

ADD_CYCLES = 2 + _STAGES
"""Cycles from the addresses of an addition's operands to its sum: memory, register and adder."""


class Augend(enum.Enum, shape=2):
    """Where the adder's first operand comes from."""

    EVEN = 0
    """The first operand is a product of an even round, from the ring."""
    ODD = 1
    """The first operand is a product of an odd round, from the ring."""
    PARTIAL = 2
    """The first operand is the sum of an addition eight cycles earlier or more."""
    PRODUCT = 3
    """The first operand is the multiplier's product."""


class Addend(enum.Enum, shape=2):
    """Where the adder's second operand comes from."""

    ODD = 0
    """The second operand is a product of an odd round, from the ring."""
    SUM = 1
    """The second operand is from the memory of sums."""
    OUTSIDE = 2
    """The second operand is the lane's input ``c``."""


@dataclass(frozen=True)
class LaneGeometry:
    """Addresses in a lane's memories.

    Products are in a ring of ``RING_ROUNDS`` rounds of ``INTERLEAVE`` results, in two memories,
    those of the even and those of the odd rounds, so that neighbours are read together. In the
    memory of sums the upper half has the tree's levels within a chunk, the lower half what is kept
    from chunk to chunk.
    """

    config: PimConfig

    @property
    def chunk_bits(self) -> int:
        """The largest ``chunk`` of a plan."""
        return max(3, (self.config.first_words // 32).bit_length() - 1)

    @property
    def half_bits(self) -> int:
        """Width of an address within one half of the memory of sums."""
        levels = (INTERLEAVE * self.chunk_bits - 1).bit_length()
        return max(levels, self.config.state_words.bit_length() - 1)

    @property
    def control(self) -> data.StructLayout:
        """What all lanes of a bank are told in a cycle."""
        ring = (RING_ROUNDS // 2 * INTERLEAVE - 1).bit_length()
        rho = (INTERLEAVE - 1).bit_length()
        return data.StructLayout(
            {
                # The products are ``a`` itself, of the cycle before.
                "bypass": 1,
                "product_write": 1,
                "product_place": ring + 1,
                "read": 1,
                "even_place": ring,
                "odd_place": ring,
                "partial_place": rho,
                "sum_place": self.half_bits + 1,
                # A cycle after the addresses.
                "augend": Augend,
                "addend": Addend,
                # ``ADD_CYCLES`` after the addresses.
                "partial_write": 1,
                "partial_write_place": rho,
                "sum_write": 1,
                "sum_write_place": self.half_bits + 1,
            }
        )


@cache
def _operator(kind: type[FloatOperator]) -> FloatOperator:
    return kind(stages=_STAGES)


def _shared(kind: type[FloatOperator]) -> Any:
    operator = _operator(kind)
    return Shared(operator, name=operator.module_name)


class Lane(wiring.Component):
    """A multiplier, whose products go to a ring or to the adder, and an adder with its memories.

    It does what ``control`` says, every cycle: there is no state but the data and no reset. The
    clock may stop at any time.

    Parameters
    ----------
    config
        Size of the memory of sums.
    multiplier, adder
        Which of the two there are. Without a multiplier a product is ``a``; without an adder
        ``result`` is the product.

    Members
    -------
    control : In(:attr:`LaneGeometry.control`)
    a, b : In(32)
        Factors; their product is ready ``PRODUCT_CYCLES`` later, ``a`` itself in the next cycle.
        That is when ``product_write`` or the selection of ``PRODUCT`` is due.
    c : In(32)
        An addend, in the cycle in which it is selected.
    result : Out(32)
        The sum, ``ADD_CYCLES`` after the addresses of its operands, which is
        ``ADD_CYCLES`` - 1 after the selection.
    """

    def __init__(self, config: PimConfig, *, multiplier: bool, adder: bool) -> None:
        self._geometry = LaneGeometry(config)
        self._multiplier = multiplier
        self._adder = adder
        super().__init__(
            {
                "control": In(self._geometry.control),
                "a": In(32),
                "b": In(32),
                "c": In(32),
                "result": Out(32),
            }
        )

    @property
    def module_name(self) -> str:
        """Name of the Verilog module; unique to the kind of lane."""
        units = "mul" * self._multiplier + "add" * self._adder
        return f"pim_lane_{units}_{2 << self._geometry.half_bits}"

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        a = register(m, self.a, "a")
        product: Bits = a
        if self._multiplier:
            m.submodules.mul = mul = _shared(FloatMul)
            m.d.comb += [mul.i_a.eq(a), mul.i_b.eq(register(m, self.b, "b"))]
            product = mul.o_y
        if not self._adder:
            m.d.comb += self.result.eq(product)
            return m

        m.submodules.add = add = _shared(FloatAdd)
        even, odd = self._ring(m, Mux(self.control.bypass, a, product))
        partial, kept = self._sums(m, add.o_y)
        augend, addend = (Signal(32, name=name, reset_less=True) for name in ("augend", "addend"))
        augends = {
            Augend.EVEN: even,
            Augend.ODD: odd,
            Augend.PARTIAL: partial,
            Augend.PRODUCT: product,
        }
        addends = {Addend.ODD: odd, Addend.SUM: kept, Addend.OUTSIDE: self.c}
        for choice, sources, operand in (
            (self.control.augend, augends, augend),
            (self.control.addend, addends, addend),
        ):
            with m.Switch(choice):
                for source, value in sources.items():
                    with m.Case(source):
                        m.d.sync += operand.eq(value)
        m.d.comb += [add.i_a.eq(augend), add.i_b.eq(addend), self.result.eq(add.o_y)]
        return m

    def _ring(self, m: Any, product: Bits) -> list[Bits]:
        """The products of even and of odd rounds that are addressed."""
        control = self.control
        rho = (INTERLEAVE - 1).bit_length()
        place = control.product_place
        outputs = []
        for odd, name in enumerate(("even", "odd")):
            ring = Memory(shape=32, depth=RING_ROUNDS // 2 * INTERLEAVE, init=[])
            m.submodules[name] = ring
            write, read = ring.write_port(), ring.read_port()
            m.d.comb += [
                write.addr[:rho].eq(place[:rho]),
                write.addr[rho:].eq(place[rho + 1 :]),
                write.data.eq(product),
                write.en.eq(control.product_write & (place[rho] == odd)),
                read.addr.eq(getattr(control, f"{name}_place")),
                read.en.eq(control.read),
            ]
            outputs.append(read.data)
        return outputs

    def _sums(self, m: Any, total: Bits) -> list[Bits]:
        """The last sums and the ones kept that are addressed."""
        control = self.control
        outputs = []
        for name, words in (("partial", INTERLEAVE), ("sum", 2 << self._geometry.half_bits)):
            m.submodules[name] = sums = Memory(shape=32, depth=words, init=[])
            write, read = sums.write_port(), sums.read_port()
            m.d.comb += [
                write.addr.eq(getattr(control, f"{name}_write_place")),
                write.data.eq(total),
                write.en.eq(getattr(control, f"{name}_write")),
                read.addr.eq(getattr(control, f"{name}_place")),
                read.en.eq(control.read),
            ]
            outputs.append(read.data)
        return outputs
