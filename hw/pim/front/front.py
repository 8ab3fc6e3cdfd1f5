"""Front of the pool: a descriptor in, a checked work out."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.pim.config import PimConfig
from hw.pim.front.amounts import Amounts
from hw.pim.front.checks import Checks
from hw.pim.front.form import form_of
from hw.pim.front.words import Words, WordWriteSignature
from hw.pim.work.descriptor import FORMS, TENSORS
from hw.pim.work.layouts import Jobs

__all__ = ["Front"]

_PLAN = ("chunk", "depth", "seconds", "block", "channels")


class Front(wiring.Component):
    """Checker of descriptors, one after the other.

    See docs/pim-spec.md, "Refused works" and "The plan". Every check takes 64 cycles from ``start``
    to the result.

    Parameters
    ----------
    config
        Configuration of the pool.

    Members
    -------
    descriptor_write : In(:class:`~hw.pim.front.words.WordWriteSignature`)
        Ignored while ``busy``, since a checked descriptor must not change. After a reset, all words
        must be written before ``start``.
    start : In(1)
        Pulse: the descriptor is complete. Ignored while ``busy``.
    busy : Out(1)
        A descriptor is being checked, or ``o`` has not been taken yet.
    o : Out(stream of :attr:`hw.pim.work.layouts.Jobs.checked`)
    """

    def __init__(self, config: PimConfig) -> None:
        self._config = config
        super().__init__(
            {
                "descriptor_write": In(WordWriteSignature()),
                "start": In(1),
                "busy": Out(1),
                "o": Out(stream.Signature(Jobs(config).checked)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        m.submodules.words = in_words = Module()
        words = Words(in_words, self.descriptor_write, ~self.busy)
        amounts = Amounts(m, words, self._config)
        checks = Checks(m, words, amounts, self._config)
        checked = self.o.payload
        m.d.comb += amounts.start.eq(self.start & ~self.busy)
        with m.If(amounts.start):
            m.d.sync += self.busy.eq(1)
        with m.If(amounts.done):
            m.d.sync += [self.o.valid.eq(1), checked.eq(0)]
            with m.Switch(words.field("opcode")):
                for opcode in FORMS:
                    with m.Case(opcode):
                        form_of(m, opcode, words, amounts, checked)
            m.d.sync += [
                checked.cause.eq(checks.cause),
                checked.banks.eq(words.field("banks")),
                checked.units.eq(Mux(words.field("banks").any(), 0, words.field("units"))),
                checked.work.plan.levels.eq(Mux(checks.is_elementwise, 0, checks.levels)),
                *(checked.work.plan[name].eq(words.plan[name]) for name in _PLAN),
            ]
            for span, tensor in zip(checked.spans, TENSORS, strict=True):
                m.d.sync += [
                    span.used.eq(checks.used[tensor]),
                    span.low.eq(amounts.low[tensor]),
                    span.high.eq(amounts.high[tensor]),
                ]
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += [self.o.valid.eq(0), self.busy.eq(0)]
        return m
