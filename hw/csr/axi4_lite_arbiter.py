"""Arbiter that connects several AXI4-Lite managers to one subordinate."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.axi.bus import AXI4LiteSignature
from hw.logic.in_turn import next_in_turn

__all__ = ["AXI4LiteArbiter"]


class AXI4LiteArbiter(wiring.Component):
    """Passes accesses on, one read and one write at a time, each from the managers in turn.

    A manager's turn begins one cycle after its request and ends when it takes the answer. A
    manager that does not take its answers therefore blocks the others.

    Parameters
    ----------
    managers
        Number of managers, two or more.
    addr_width, data_width
        Widths of every port, in bits.

    Members
    -------
    s_axi_0, s_axi_1, ... : In(:class:`~hw.axi.bus.AXI4LiteSignature`)
        The managers.
    m_axi : Out(:class:`~hw.axi.bus.AXI4LiteSignature`)
        The subordinate.

    Examples
    --------
    >>> from hw.sim.outputs import outputs
    >>> arbiter = AXI4LiteArbiter(3, addr_width=12, data_width=64)
    >>> after = outputs(arbiter, 1, s_axi_2_arvalid=1, s_axi_2_araddr=64)
    >>> after["m_axi_arvalid"], after["m_axi_araddr"]
    (1, 64)
    """

    def __init__(self, managers: int, *, addr_width: int, data_width: int) -> None:
        if managers < 2:
            raise ValueError(f"managers must be 2 or more, got {managers!r}")
        self._managers = managers
        axi = AXI4LiteSignature(addr_width=addr_width, data_width=data_width)
        super().__init__(
            {
                **{f"s_axi_{number}": In(axi) for number in range(managers)},
                "m_axi": Out(axi),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        self._pass(m, {"aw": ("addr", "prot"), "w": ("data", "strb")}, "b", ("resp",))
        self._pass(m, {"ar": ("addr", "prot")}, "r", ("resp", "data"))
        return m

    def _pass(
        self,
        m: Any,
        asking: dict[str, tuple[str, ...]],
        answer: str,
        answer_fields: tuple[str, ...],
    ) -> None:
        """Pass the request channels ``asking`` on, and the channel ``answer`` back."""
        managers = [getattr(self, f"s_axi_{number}") for number in range(self._managers)]
        last = Signal(range(self._managers), name=f"{answer}_last")
        busy = Signal(name=f"{answer}_busy")
        asks = Cat(
            Cat(getattr(manager, f"{channel}valid") for channel in asking).any()
            for manager in managers
        )
        following = next_in_turn(m, last, asks)
        with m.If(~busy & asks.any()):
            m.d.sync += busy.eq(1)
            m.d.sync += last.eq(following)

        def chosen(name: str) -> Any:
            return Array(getattr(manager, name) for manager in managers)[last]

        def mine(number: int) -> Any:
            return busy & (last == number)

        given = {channel: Signal(name=f"{channel}_given") for channel in asking}
        for channel, names in asking.items():
            valid, ready = (getattr(self.m_axi, f"{channel}{name}") for name in ("valid", "ready"))
            m.d.comb += valid.eq(busy & ~given[channel] & chosen(f"{channel}valid"))
            with m.If(valid & ready):
                m.d.sync += given[channel].eq(1)
            for name in names:
                m.d.comb += getattr(self.m_axi, f"{channel}{name}").eq(chosen(f"{channel}{name}"))
            for number, manager in enumerate(managers):
                taken = mine(number) & ~given[channel] & ready
                m.d.comb += getattr(manager, f"{channel}ready").eq(taken)
        valid, ready = (getattr(self.m_axi, f"{answer}{name}") for name in ("valid", "ready"))
        m.d.comb += ready.eq(busy & chosen(f"{answer}ready"))
        for number, manager in enumerate(managers):
            m.d.comb += getattr(manager, f"{answer}valid").eq(mine(number) & valid)
            for name in answer_fields:
                value = getattr(self.m_axi, f"{answer}{name}")
                m.d.comb += getattr(manager, f"{answer}{name}").eq(value)
        with m.If(valid & ready):
            m.d.sync += [busy.eq(0), *(flag.eq(0) for flag in given.values())]
