"""Core with its own clock, and the passage between this and the pool's clock."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import ClockDomain, ClockSignal, DomainRenamer, Module, ResetSignal, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from hw.pim.config import PimConfig
from hw.pim.core.core import Core

__all__ = ["FasterCore"]


class FasterCore(wiring.Component):
    """:class:`~hw.pim.core.core.Core` with a clock two or four times as fast as the pool's.

    Each rising edge of the pool's clock must coincide with one of the core's clock, as with two
    outputs of one PLL. They are one clock for timing analysis, and there are no synchronizers. All
    signals that cross come from registers; those into the pool's clock also go through one. A
    request arrives with the second edge of the pool's clock at the latest. An answer arrives one
    pool cycle later than without the crossing.

    Parameters
    ----------
    config
        The pool.

    Members
    -------
    core_clk : In(1)
        The core's clock.
    all others: those of :class:`~hw.pim.core.core.Core`
    """

    def __init__(self, config: PimConfig) -> None:
        self._core = Core(config)
        super().__init__({**self._core.signature.members, "core_clk": In(1)})

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        me: Any = self
        m.domains.core = ClockDomain(local=True)
        m.submodules.core = DomainRenamer("core")(self._core)
        core: Any = self._core
        reset, noticed = Signal(reset_less=True), Signal()
        m.d.comb += [
            ClockSignal("core").eq(self.core_clk),
            ResetSignal("core").eq(reset),
            core.number.eq(me.number),
        ]
        m.d.core += [
            reset.eq(ResetSignal("sync")),
            core.control.eq(me.control),
            core.overfilled.eq(me.overfilled),
            core.resting.eq(me.resting),
            # Held until the pool has seen it.
            noticed.eq(core.notice | (noticed & ~me.notice)),
        ]
        m.d.sync += [me.status.eq(core.status), me.notice.eq(noticed)]
        _pass_down(m, core.request, me.request, "", "payload")
        _pass_up(m, me.response, core.response, "", "payload")
        for channel, *fields in (("ar", "addr"), ("aw", "addr"), ("w", "data", "strb")):
            _pass_down(m, core.m_axi, me.m_axi, channel, *fields)
        for channel, *fields in (("r", "data", "resp"), ("b", "resp")):
            _pass_up(m, me.m_axi, core.m_axi, channel, *fields)
        return m


def _pass_down(m: Any, source: Any, target: Any, channel: str, *fields: str) -> None:
    """Pass a channel's transfers from the core to the pool, which may stall."""
    valid, ready = (getattr(target, f"{channel}{name}") for name in ("valid", "ready"))
    # By the pool clock's next edge, the source's valid belongs to the next transfer.
    taken, seen = Signal(), Signal()
    m.d.core += seen.eq(taken)
    m.d.comb += getattr(source, f"{channel}ready").eq(taken != seen)
    with m.If(~valid | ready):
        asks = getattr(source, f"{channel}valid")
        m.d.sync += [valid.eq(asks), taken.eq(taken ^ asks)]
        for name in fields:
            m.d.sync += getattr(target, channel + name).eq(getattr(source, channel + name))


def _pass_up(m: Any, source: Any, target: Any, channel: str, *fields: str) -> None:
    """Pass a channel's answers from the pool to the core, which takes them at once."""
    given, seen = Signal(), Signal()
    gives = getattr(source, f"{channel}valid")
    m.d.comb += [
        getattr(source, f"{channel}ready").eq(1),
        getattr(target, f"{channel}valid").eq(given != seen),
    ]
    m.d.core += seen.eq(given)
    m.d.sync += given.eq(given ^ gives)
    for name in fields:
        value = getattr(target, channel + name)
        held = Signal(value.shape())
        m.d.comb += value.eq(held)
        with m.If(gives):
            m.d.sync += held.eq(getattr(source, channel + name))
