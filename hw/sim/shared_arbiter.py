"""An arbiter that shares the DRAM, for simulation: what the paper argues against."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring

from hw.axdimm.arbiter import Arbiter
from hw.sim.first_come import FirstComeMerge

__all__ = ["SharedArbiter"]


class SharedArbiter(Arbiter):
    """As :class:`~hw.axdimm.arbiter.Arbiter`, but acceleration mode is not exclusive.

    In acceleration mode the host reaches DRAM as well, first come first served with the bursts of
    the kernel (paper 3.1, where this is rejected because a DDR4 host cannot wait). Most of its
    reads are then late; ``read_done`` tells when their data came. Refreshes are not postponed.
    The DRAM controller behind still takes reads and writes in runs of one direction.
    """

    def _host_memory_request(self, m: Module, port: Any, dram: Any, refused: Signal) -> None:
        m.d.comb += [dram.i.valid.eq(port.o.valid), port.o.ready.eq(dram.i.ready)]

    def _join(self, m: Module, host: Any, kernel: Any, kernel_owns: Signal) -> None:
        signature = self.memory.signature
        merge = FirstComeMerge(
            addr_width=signature.addr_width,
            data_width=signature.data_width,
            id_width=signature.id_width,
        )
        m.submodules.merge = merge
        m.d.comb += self.memory_prompt.eq(1)
        for manager, port in zip(merge.managers, (host, kernel), strict=True):
            for name, member in signature.members.items():
                source, target = (port, manager) if member.flow is wiring.Out else (manager, port)
                m.d.comb += getattr(target, name).eq(getattr(source, name))
        wiring.connect(m, merge.subordinate, wiring.flipped(self.memory))
