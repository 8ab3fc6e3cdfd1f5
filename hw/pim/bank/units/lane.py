"""Lane: a multiplier, an adder, and memories for products and partial sums."""

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
"""Maximum number of rounds of products that wait for the adder."""

_STAGES = 5
"""Stages of multiplier and of adder; a sum must be in memory for its result's next turn.

Each result has a turn every ``INTERLEAVE`` cycles.
"""

PRODUCT_CYCLES = 1 + _STAGES
"""Cycles from ``a`` and ``b`` of a lane to their product: a register and the multiplier."""

ADD_CYCLES = 2 + _STAGES
"""Cycles from the addresses of an addition's operands to its sum: memory, register and adder."""


class Augend(enum.Enum, shape=2):
    """Source of the adder's first operand."""

    EVEN = 0
    """Product of an even round, from the ring."""
    ODD = 1
    """Product of an odd round, from the ring."""
    PARTIAL = 2
    """Sum of an addition eight cycles earlier or more."""
    PRODUCT = 3
    """Output of the multiplier."""


class Addend(enum.Enum, shape=2):
    """Source of the adder's second operand."""

    ODD = 0
    """Product of an odd round, from the ring."""
    SUM = 1
    """Sum from the memory of sums."""
    OUTSIDE = 2
    """Input ``c`` of the lane."""


@dataclass(frozen=True)
class LaneGeometry:
    """Addresses in a lane's memories.

    Products are in a ring of ``RING_ROUNDS`` rounds of ``INTERLEAVE`` results. Even and odd rounds
    have a memory each, so that two neighbouring rounds are read together. The upper half of the
    memory of sums has the tree's levels within a chunk. The lower half has the sums kept from chunk
    to chunk.
    """

    config: PimConfig

    @property
    def chunk_bits(self) -> int:
        """Largest ``chunk`` of a plan."""
        return max(3, (self.config.first_words // 32).bit_length() - 1)

    @property
    def half_bits(self) -> int:
        """Width of an address within one half of the memory of sums."""
        levels = (INTERLEAVE * self.chunk_bits - 1).bit_length()
        return max(levels, self.config.state_words.bit_length() - 1)

    @property
    def control(self) -> data.StructLayout:
        """Layout of the control that all lanes of a bank get in a cycle."""
        ring = (RING_ROUNDS // 2 * INTERLEAVE - 1).bit_length()
        rho = (INTERLEAVE - 1).bit_length()
        return data.StructLayout(
            {
                # Take input ``a`` of the previous cycle as product.
                "bypass": 1,
                "product_write": 1,
                "product_place": ring + 1,
                "read": 1,
                "even_place": ring,
                "odd_place": ring,
                "partial_place": rho,
                "sum_place": self.half_bits + 1,
                # One cycle after the addresses.
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
    """Multiplier with a ring for its products, and adder with its memories.

    It follows ``control`` every cycle: it has no control state and no reset. The clock may stop at
    any time.

    Parameters
    ----------
    config
        Size of the memory of sums.
    multiplier, adder
        Whether the lane has this unit. Without a multiplier, the product is ``a``; without an
        adder, ``result`` is the product.

    Members
    -------
    control : In(:attr:`LaneGeometry.control`)
    a, b : In(32)
        Factors. Their product is ready ``PRODUCT_CYCLES`` later, with ``bypass`` one cycle later.
        ``product_write`` or the selection of ``PRODUCT`` is due then.
    c : In(32)
        An addend, in the cycle that selects it.
    result : Out(32)
        The sum, ``ADD_CYCLES`` after the addresses of its operands and ``ADD_CYCLES`` - 1 after
        their selection.
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
        """Name of the Verilog module, unique to the kind of lane."""
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
        """Place the ring; return the products read from its even and its odd rounds."""
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
        """Place the memories of sums; return the words read from the partial and kept sums."""
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
