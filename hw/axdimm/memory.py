"""Memory of a channel: its interface, and the components that implement it."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.axi.bus import AXI4Signature
from hw.dram.activity import Activity
from hw.dram.controller import COUNTER_BITS, Ddr4Controller
from hw.dram.dfi import DfiController
from hw.logic.counter import under_way
from hw.logic.expose import expose
from hw.logic.line import LINE_BITS

__all__ = [
    "MEMORY_COUNTERS",
    "MOST_ADMITTED",
    "MOST_UNANSWERED",
    "AxiMemory",
    "Ddr4Memory",
    "MemorySignature",
]

MOST_ADMITTED = 255
"""Maximum number of reads, and of writes without their data, that the kernel has in flight."""

MOST_UNANSWERED = 1023
"""Maximum number of the kernel's writes in flight without an answer."""

MEMORY_COUNTERS = ("refreshes", "activates", "precharges", "turns", "longest_refresh_gap")


class MemorySignature(wiring.Signature):
    """A memory as its user has it; a controller, or what adapts one, has it as ``In``.

    Users send incrementing bursts of whole lines that do not cross 4 KB, with ID 0. The data of a
    write comes with or after its address, never before, but does not wait for the address to be
    taken. The memory answers in order: a read that it has taken with as many beats as were asked
    for, of which only the last has ``RLAST``, and a write once, after its address and all its data.
    It need not bound what it accepts, as the arbiter does: to
    :data:`MOST_ADMITTED` reads, :data:`MOST_ADMITTED` writes without their data and
    :data:`MOST_UNANSWERED` writes without an answer.

    Parameters
    ----------
    addr_width
        Width of the AXI port's byte addresses, which start at 0.

    Members
    -------
    axi : Out(:class:`~hw.axi.bus.AXI4Signature`)
        512 data bits, an ID of one bit.
    prompt : Out(1)
        Refreshes are not postponed: for a user that can wait for one, but not for a batch. A
        controller that postpones none does not need it.
    idle : In(1)
        No burst is under way; if ``prompt``, no refresh is due either. 1 for a controller that does
        not tell, such as that behind :class:`AxiMemory`. No user may take it for an answer: the
        arbiter itself waits for those to all bursts before a mode takes effect, and relies on the
        answers alone, as above, for host and kernel to exclude each other.
    activity : In(:class:`~hw.dram.activity.Activity`)
        What the cycle before was used for: the account of a run in the registers. Without it, the
        times of a run still add up, but mean nothing.
    refreshes, activates, precharges, turns, longest_refresh_gap : In(COUNTER_BITS)
        Counts for the registers, see :class:`~hw.dram.controller.Ddr4Controller`; 0 if it does not
        count.
    """

    def __init__(self, *, addr_width: int) -> None:
        self.axi = AXI4Signature(addr_width=addr_width, data_width=LINE_BITS)
        super().__init__(
            {
                "axi": Out(self.axi),
                "prompt": Out(1),
                "idle": In(1),
                "activity": In(Activity),
                **{name: In(COUNTER_BITS) for name in MEMORY_COUNTERS},
            }
        )


class Ddr4Memory(wiring.Component):
    """The DDR4 controller as a channel's memory.

    Members
    -------
    memory : In(:class:`MemorySignature`)
        The user.
    dram or dfi : as that of ``controller``
        The DRAM, or the PHY before it.
    """

    def __init__(self, controller: Ddr4Controller | DfiController) -> None:
        self._controller = controller
        members = controller.signature.members
        self._outside = {name: members[name] for name in ("dram", "dfi") if name in members}
        super().__init__(
            {
                "memory": In(MemorySignature(addr_width=len(controller.s_axi.araddr))),
                **self._outside,
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        memory: Any = self.memory
        m.submodules.controller = controller = self._controller
        wiring.connect(m, wiring.flipped(memory.axi), controller.s_axi)
        expose(m, self, controller, self._outside)
        expose(m, memory, controller, ("prompt", "idle", "activity", *MEMORY_COUNTERS))
        return m


class AxiMemory(wiring.Component):
    """A controller that is not ours, behind an AXI4 port, as a channel's memory.

    Such a controller shows only its answers, so the account of a run comes from the traffic at the
    port. A cycle with a beat in either direction is ``DATA``. A cycle in which the memory owes a
    beat or an answer, or does not take a beat, is ``ROW`` for any reason. All others are
    ``STARVED``. ``REFRESH`` and ``TURN_AROUND`` do not occur. The counters of commands are 0, as
    no commands are visible here.

    Members
    -------
    memory : In(:class:`MemorySignature`)
        The user.
    m_axi : Out(:class:`~hw.axi.bus.AXI4Signature`)
        The controller. All bursts have ID 0.

    Examples
    --------
    >>> memory = AxiMemory(addr_width=30)
    >>> memory.m_axi.araddr.shape(), memory.m_axi.wdata.shape()
    (unsigned(30), unsigned(512))
    """

    def __init__(self, *, addr_width: int) -> None:
        signature = MemorySignature(addr_width=addr_width)
        super().__init__({"memory": In(signature), "m_axi": Out(signature.axi)})

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        memory: Any = self.memory
        axi = self.m_axi
        wiring.connect(m, wiring.flipped(memory.axi), wiring.flipped(axi))
        read_beat = axi.rvalid & axi.rready
        write_beat = axi.wvalid & axi.wready
        _, no_reads = under_way(
            m,
            "reads",
            MOST_ADMITTED,
            begun=axi.arvalid & axi.arready,
            ended=read_beat & axi.rlast,
        )
        # Writes with all their data passed on; their address may still be on offer.
        _, all_answered = under_way(
            m,
            "unanswered",
            MOST_UNANSWERED,
            begun=write_beat & axi.wlast,
            ended=axi.bvalid & axi.bready,
        )
        read_owed = (axi.arvalid | ~no_reads) & ~axi.rvalid
        # The arbiter waits for the answers itself.
        m.d.comb += memory.idle.eq(1)
        with m.If(read_beat | write_beat):
            m.d.sync += memory.activity.eq(Activity.DATA)
        with m.Elif(read_owed | axi.wvalid | ~all_answered):
            m.d.sync += memory.activity.eq(Activity.ROW)
        with m.Else():
            m.d.sync += memory.activity.eq(Activity.STARVED)
        return m
