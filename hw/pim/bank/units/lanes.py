"""Lanes of a bank, and the reads of their operands."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import (
    Array,
    ClockDomain,
    ClockSignal,
    Const,
    Elaboratable,
    Module,
    Mux,
    ResetSignal,
    Signal,
)
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.float.parts import Bits, carry, delayed_pulse, wire
from hw.logic.clock_gate import stopping_clock
from hw.logic.shared import Shared
from hw.pim.bank.buffer.interface import COLUMNS, BufferReadSignature
from hw.pim.bank.units.lane import PRODUCT_CYCLES, RING_ROUNDS, Addend, Augend, Lane, LaneGeometry
from hw.pim.bank.units.product_issue import factors_layout
from hw.pim.work.layouts import BEAT_WORDS, INTERLEAVE, Elementwise, Jobs, Second

__all__ = ["READ_CYCLES", "Lanes"]

READ_CYCLES = 2
"""Cycles from the read of factors to their arrival at the lanes."""

_ONE = 0x3F800000
_MINUS_ZERO = 0x80000000


class Lanes(wiring.Component):
    """Lanes on a clock that may stop, and the reads of their operands.

    Parameters
    ----------
    jobs
        Layouts of the pool's configuration.
    multipliers, adders
        Multipliers and adders of the bank.
    elements
        Elementwise results a cycle, one lane each.

    Members
    -------
    work : In(:attr:`Jobs.work <hw.pim.work.layouts.Jobs.work>`)
    enable : In(1)
        The lanes' clock runs. From registers only; see :class:`~hw.logic.clock_gate.ClockGate`.
    factors : In(:func:`~hw.pim.bank.units.product_issue.factors_layout`)
        The factors to be read in this cycle.
    produced : Out(1)
        Pulse: a round of products begins to arrive in the rings, 8 cycles after ``factors`` (3 for
        SUM).
    control : In(:attr:`LaneGeometry.control <hw.pim.bank.units.lane.LaneGeometry.control>`)
        Control of the lanes for additions; this component adds the fields for products.
    first_0, second_0 (and first_1, second_1 from 9 lanes on) : \
Out(:class:`~hw.pim.bank.buffer.interface.BufferReadSignature`)
        Reads of the operand buffers, laid out as in :class:`~hw.pim.bank.units.compute.Compute`.
        The addend of an elementwise operation is read ``PRODUCT_CYCLES`` after its factors.
    results : Out(array of 32 bits for each lane)
        Sums of the lanes; products of lanes without an adder.
    """

    def __init__(self, jobs: Jobs, *, multipliers: int, adders: int, elements: int) -> None:
        self._config = jobs.config
        self._multipliers = multipliers
        self._adders = adders
        self._lanes = max(multipliers, adders)
        self._elements = elements
        read = Out(BufferReadSignature(jobs))
        super().__init__(
            {
                "work": In(jobs.work),
                "enable": In(1),
                "factors": In(factors_layout(jobs)),
                "produced": Out(1),
                "control": In(LaneGeometry(jobs.config).control),
                **{
                    f"{name}_{group}": read
                    for name in ("first", "second")
                    for group in range(-(-self._lanes // COLUMNS))
                },
                "results": Out(data.ArrayLayout(32, self._lanes)),
            }
        )

    def elaborate(self, platform: Any) -> Elaboratable:
        m: Any = Module()
        self._read(m)
        control = self._control(m)
        a, b, c = self._operands(m)

        clock, register_enable = stopping_clock(m, self._config.clocking, self.enable)
        # The lanes have no state that needs a reset.
        m.domains.lanes = ClockDomain(local=True)
        m.d.comb += [
            ClockSignal("lanes").eq(clock),
            ResetSignal("lanes").eq(0),
        ]
        kinds: dict[tuple[bool, bool], Lane] = {}
        for number in range(self._lanes):
            kind = number < self._multipliers, number < self._adders
            if kind not in kinds:
                kinds[kind] = Lane(self._config, multiplier=kind[0], adder=kind[1])
            lane: Any = Shared(
                kinds[kind],
                name=kinds[kind].module_name,
                domain="lanes",
                enable=register_enable,
            )
            m.submodules[f"lane_{number}"] = lane
            m.d.comb += [
                lane.control.eq(control),
                lane.a.eq(a[number]),
                lane.b.eq(b[number]),
                lane.c.eq(c[number]),
                self.results[number].eq(lane.result),
            ]
        return m

    def _read(self, m: Any) -> None:
        """Read factors now, and an elementwise operation's addends when its products are due."""
        work, factors = self.work, self.factors
        elementwise, operation = work.elementwise, work.operation
        private = wire(m, ~elementwise & (work.second_kind == Second.PRIVATE), "private")
        first_half, second_half = factors.halves
        late = carry(m, PRODUCT_CYCLES, "late", k=factors.k, second_half=second_half)
        late_enable = delayed_pulse(m, factors.enable & elementwise, PRODUCT_CYCLES, "late_enable")
        adds_second = wire(
            m,
            elementwise & ((operation == Elementwise.ADD) | (operation == Elementwise.SCALEADD)),
            "adds_second",
        )
        has_second = elementwise | (work.second_kind != Second.NONE)

        def place(name: str, k: Any) -> Any:
            """Return the place of element ``k``, or of its copy if the element repeats."""
            repeats = wire(m, elementwise & work[f"{name}_repeats"], f"{name}_repeats")
            return Mux(repeats, k[: (BEAT_WORDS - 1).bit_length()], k)

        second_k = wire(m, Mux(adds_second, late.k, factors.k), "second_k")
        for group in range(-(-self._lanes // COLUMNS)):
            first, second = getattr(self, f"first_{group}"), getattr(self, f"second_{group}")
            m.d.comb += [
                first.enable.eq(factors.enable & (~elementwise if group else 1)),
                first.half.eq(first_half),
                first.group.eq(factors.group),
                first.k.eq(place("first", factors.k)),
                first.wide.eq(elementwise),
            ]
            if group:  # only DOT has such members
                m.d.comb += [
                    second.enable.eq(factors.enable & private),
                    second.half.eq(second_half),
                    second.group.eq(factors.group),
                    second.k.eq(factors.k),
                ]
            else:
                m.d.comb += [
                    second.enable.eq(Mux(adds_second, late_enable, factors.enable & has_second)),
                    second.half.eq(Mux(adds_second, late.second_half, second_half)),
                    second.group.eq(Mux(private, factors.group, factors.second[3:])),
                    second.k.eq(place("second", second_k)),
                    second.wide.eq(elementwise),
                ]

    def _operands(self, m: Any) -> tuple[list[Bits], list[Bits], list[Bits]]:
        """Return the inputs ``a``, ``b`` and ``c`` of all lanes."""
        work, factors = self.work, self.factors
        elementwise, operation = work.elementwise, work.operation
        arrived = carry(m, READ_CYCLES, "arrived", member=factors.second[:3], element=factors.k[:3])
        addend_element = carry(m, PRODUCT_CYCLES, "addend", element=arrived.element).element
        private = work.second_kind == Second.PRIVATE
        words = {
            name: [getattr(self, name).data[column] for column in range(COLUMNS)]
            for name in ("first_0", "second_0")
        }
        shared = wire(m, Array(words["second_0"])[arrived.member], "shared")

        def pick(name: str, element: Bits, lane: int) -> Bits:
            """Return the word for ``lane`` from the row of eight words that has ``element``."""
            size = self._elements
            return Array(words[name][lane::size])[element[size.bit_length() - 1 :]]

        a, b, c = [], [], []
        for lane in range(self._lanes):
            group, member = divmod(lane, COLUMNS)
            first = getattr(self, f"first_{group}").data[member]
            second = Mux(private, getattr(self, f"second_{group}").data[member], shared)
            addend: Bits = Const(_MINUS_ZERO, 32)
            if lane < self._elements:
                first = Mux(elementwise, pick("first_0", arrived.element, lane), first)
                factor, addend = Signal(32, name=f"factor_{lane}"), Signal(32, name=f"c_{lane}")
                with m.If(~elementwise):
                    m.d.comb += [factor.eq(second), addend.eq(_MINUS_ZERO)]
                with m.Else(), m.Switch(operation):
                    with m.Case(Elementwise.ADD):
                        m.d.comb += factor.eq(_ONE)
                        m.d.comb += addend.eq(pick("second_0", addend_element, lane))
                    with m.Case(Elementwise.MUL):
                        m.d.comb += factor.eq(pick("second_0", arrived.element, lane))
                        m.d.comb += addend.eq(_MINUS_ZERO)
                    with m.Case(Elementwise.SCALEADD):
                        m.d.comb += factor.eq(work.alpha)
                        m.d.comb += addend.eq(pick("second_0", addend_element, lane))
                second = factor
            a.append(first)
            b.append(second)
            c.append(addend)
        return a, b, c

    def _control(self, m: Any) -> Any:
        """Return the control of the lanes, with the fields for products."""
        control = Signal(self.control.shape())
        bypass = wire(m, self.work.second_kind == Second.NONE, "bypass")
        copies = delayed_pulse(m, self.factors.round, READ_CYCLES + 1, "copies")
        products = delayed_pulse(m, copies, PRODUCT_CYCLES - 1, "products")
        arrives = wire(m, Mux(bypass, copies, products), "arrives")
        place = Signal(range(RING_ROUNDS * INTERLEAVE))
        m.d.sync += place.eq(place + arrives)
        m.d.comb += [
            self.produced.eq(arrives & (place[: (INTERLEAVE - 1).bit_length()] == 0)),
            control.eq(self.control),
            control.bypass.eq(bypass),
            control.product_write.eq(arrives),
            control.product_place.eq(place),
        ]
        with m.If(self.work.elementwise):
            m.d.comb += [control.augend.eq(Augend.PRODUCT), control.addend.eq(Addend.OUTSIDE)]
        return control
