"""Memory shared by host and kernel, for simulation: the option that the paper rejects."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import wiring

from hw.axdimm.memory_join import MemoryJoin
from hw.sim.first_come import FirstComeMerge

__all__ = ["SharedJoin"]


class SharedJoin(MemoryJoin):
    """Acceleration mode is not exclusive: the host reaches the memory in both modes.

    The host and the bursts of the kernel are served first come first served (paper 3.1, which
    rejects this because a DDR4 host cannot wait). Most of the host's reads are then late; the
    arbiter's ``read_done`` shows when their data came. Refreshes are not postponed. The DRAM
    controller behind still takes reads and writes in runs of one direction. The members are those
    of :class:`~hw.axdimm.memory_join.MemoryJoin`.
    """

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        m.submodules.merge = merge = FirstComeMerge(self.axi)
        host, kernel = merge.managers
        wiring.connect(m, wiring.flipped(self.host), host)
        wiring.connect(m, wiring.flipped(self.kernel), kernel)
        wiring.connect(m, merge.subordinate, wiring.flipped(self.memory))
        m.d.comb += self.host_admitted.eq(1)
        return m
