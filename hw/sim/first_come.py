"""Merge of two AXI4 managers on one subordinate, first come first served."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from hw.axi.bus import AXI4Signature

__all__ = ["FirstComeMerge"]

_OUTSTANDING = 64


class FirstComeMerge(wiring.Component):
    """Passes bursts on in the order in which their addresses came, reads and writes separately.

    If two addresses come in the same cycle, the manager served last waits. The subordinate must
    answer in order, as it does for bursts of one ID. A manager that does not take its answers holds
    up the other.

    Parameters
    ----------
    axi
        Signature of all three ports.

    Members
    -------
    managers : In(axi), two
        Managers that begin bursts.
    subordinate : Out(axi)
        Port that serves their bursts.
    """

    def __init__(self, axi: AXI4Signature) -> None:
        super().__init__({"managers": In(axi).array(2), "subordinate": Out(axi)})

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        first, second = self.managers
        out = self.subordinate

        def queue(name: str, push: Any, owner: Any, pop: Any) -> tuple[Any, Any]:
            """Queue the owners of bursts in flight; return the oldest owner and a valid flag."""
            fifo = SyncFIFO(width=1, depth=_OUTSTANDING)
            m.submodules[name] = fifo
            m.d.comb += [fifo.w_en.eq(push), fifo.w_data.eq(owner), fifo.r_en.eq(pop)]
            # Never full when it matters: `room` below counts the bursts without an answer, which
            # are in flight for longer than their data.
            return fifo.r_data, fifo.r_rdy

        def both(name: str) -> tuple[Any, Any]:
            return getattr(first, name), getattr(second, name)

        def address(channel: str, answered: Any) -> tuple[Any, Any, Any]:
            """Arbitrate AR or AW.

            Return the first cycle of the offer, the handshake, and the owner of both.
            """
            valid_first, valid_second = both(f"{channel}valid")
            earlier = Signal(name=f"{channel}_earlier")
            owner = Signal(name=f"{channel}_owner")
            taken = Signal(name=f"{channel}_taken")
            under_way = Signal(range(_OUTSTANDING + 1), name=f"{channel}_under_way")
            room = Signal(name=f"{channel}_room")
            m.d.sync += under_way.eq(under_way + taken - answered)
            # Registered, because an address once offered must stay.
            m.d.sync += room.eq(under_way < _OUTSTANDING - 2)
            offered = getattr(out, f"{channel}valid")
            ready = getattr(out, f"{channel}ready")
            waiting = Signal(name=f"{channel}_waiting")
            m.d.sync += waiting.eq(offered & ~ready)
            passing = room | waiting
            m.d.comb += [
                owner.eq(Mux(valid_first & valid_second, earlier, valid_second)),
                offered.eq((valid_first | valid_second) & passing),
                taken.eq(offered & ready),
            ]
            for index, manager in enumerate(self.managers):
                m.d.comb += getattr(manager, f"{channel}ready").eq(
                    ready & passing & (owner == index)
                )
            for name in ("id", "addr", "len", "size", "burst"):
                one, other = both(channel + name)
                m.d.comb += getattr(out, channel + name).eq(Mux(owner, other, one))
            with m.If(taken):
                m.d.sync += earlier.eq(~owner)
            with m.Elif(valid_first ^ valid_second):
                m.d.sync += earlier.eq(valid_second)
            return offered & ~waiting, taken, owner

        answered_read = Signal()
        answered_write = Signal()
        m.d.comb += [
            answered_read.eq(out.rvalid & out.rready & out.rlast),
            answered_write.eq(out.bvalid & out.bready),
        ]
        _, read_taken, read_owner = address("ar", answered_read)
        write_offered, write_taken, write_owner = address("aw", answered_write)
        reading, _ = queue("reads", read_taken, read_owner, answered_read)
        answering, _ = queue("writes", write_taken, write_owner, answered_write)
        data_done = Signal()
        # Data does not wait for its address to be taken, see IHI 0022E, A3.3.1.
        sending, may_send = queue("data", write_offered, write_owner, data_done)

        for name in ("wdata", "wstrb", "wlast"):
            one, other = both(name)
            m.d.comb += getattr(out, name).eq(Mux(sending, other, one))
        valid_first, valid_second = both("wvalid")
        m.d.comb += [
            out.wvalid.eq(may_send & Mux(sending, valid_second, valid_first)),
            data_done.eq(out.wvalid & out.wready & out.wlast),
            out.rready.eq(Mux(reading, second.rready, first.rready)),
            out.bready.eq(Mux(answering, second.bready, first.bready)),
        ]
        for index, manager in enumerate(self.managers):
            m.d.comb += [
                manager.wready.eq(out.wready & may_send & (sending == index)),
                manager.rvalid.eq(out.rvalid & (reading == index)),
                manager.bvalid.eq(out.bvalid & (answering == index)),
                *(
                    getattr(manager, name).eq(getattr(out, name))
                    for name in ("rid", "rdata", "rresp", "rlast", "bid", "bresp")
                ),
            ]
        return m
