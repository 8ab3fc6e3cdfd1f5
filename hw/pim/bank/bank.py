"""A bank of the pool: units, buffers, movers and their sequencer."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from hw.logic.shared import Shared
from hw.pim.bank.buffer.buffers import OperandBuffers
from hw.pim.bank.interface import BankSignature
from hw.pim.bank.move.bank_port import BankPort
from hw.pim.bank.move.loader import Loader
from hw.pim.bank.move.storer import Storer
from hw.pim.bank.sequencer import Sequencer
from hw.pim.bank.units.compute import Compute
from hw.pim.config import PimConfig
from hw.pim.work.layouts import Jobs

__all__ = ["PimBank"]


class PimBank(wiring.Component):
    """Bank that executes a work, tile by tile, on its multipliers and adders.

    Its port reads and writes the whole stack. All writes are in the memory when the bank is done.
    It requests tiles ahead of the one that it computes.

    Parameters
    ----------
    config
        The pool.
    multipliers, adders
        Multipliers and adders of the bank, 1 to 16 each.

    Members
    -------
    work : In(:attr:`Jobs.work <hw.pim.work.layouts.Jobs.work>`)
        With ``start``: the work that the bank executes.
    all others: those of :class:`~hw.pim.bank.interface.BankSignature`, flipped

    Examples
    --------
    >>> from hw.pim.config import PIM_PRESETS
    >>> bank = PimBank(PIM_PRESETS["tiny"], multipliers=3, adders=2)
    >>> [name for name in bank.signature.members if bank.signature.members[name].flow.name == "Out"]
    ['request', 'done', 'multiplications', 'additions', 'beats_read', 'beats_written']
    """

    def __init__(self, config: PimConfig, *, multipliers: int, adders: int) -> None:
        self._config = config
        self._units = {"multipliers": multipliers, "adders": adders}
        super().__init__({"work": In(Jobs(config).work), **BankSignature(config).flip().members})

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        config, lanes = self._config, max(self._units.values())
        m.submodules.sequencer = sequencer = _common(Sequencer(config), "sequencer")
        m.submodules.loader = loader = _common(Loader(config), "loader")
        m.submodules.buffers = buffers = _common(
            OperandBuffers(config, lanes=lanes), f"buffers_{lanes}"
        )
        m.submodules.compute = compute = Compute(config, **self._units)
        m.submodules.storer = storer = _common(Storer(config, lanes=lanes), f"storer_{lanes}")
        m.submodules.port = port = _common(BankPort(config), "bank_port")

        wiring.connect(m, wiring.flipped(self.tile), sequencer.tile)
        wiring.connect(m, sequencer.load, loader.i)
        wiring.connect(m, loader.write, buffers.write)
        wiring.connect(m, sequencer.job, compute.job)
        for name in buffers.signature.members:
            if name not in ("chunk", "write"):
                wiring.connect(m, getattr(compute, name), getattr(buffers, name))
        wiring.connect(m, compute.result, storer.result)
        wiring.connect(m, compute.store, storer.i)
        wiring.connect(m, loader.request, port.read)
        wiring.connect(m, storer.request, port.write)
        wiring.connect(m, port.answer, loader.response)
        wiring.connect(m, port.request, wiring.flipped(self.request))
        wiring.connect(m, wiring.flipped(self.response), port.response)

        moved = Signal()
        work = Signal.like(self.work)
        started = Signal()
        m.d.sync += started.eq(self.start)
        with m.If(self.start):
            m.d.sync += work.eq(self.work)
        m.d.comb += [
            sequencer.pairs.eq(min(self._units.values())),
            sequencer.adders.eq(self._units["adders"]),
            sequencer.work.eq(work),
            sequencer.start.eq(started),
            compute.work.eq(work),
            buffers.chunk.eq(work.plan.chunk),
            sequencer.loaded.eq(loader.done),
            sequencer.loaded_buffer.eq(loader.done_buffer),
            sequencer.release.eq(compute.release),
            compute.frame_freed.eq(storer.freed),
            storer.written.eq(port.written),
            sequencer.drained.eq(compute.idle & storer.idle),
            self.done.eq(sequencer.done),
            self.multiplications.eq(compute.multiplications),
            self.additions.eq(compute.additions),
            moved.eq(self.request.valid & self.request.ready),
        ]
        m.d.sync += [
            self.beats_read.eq(moved & ~self.request.payload.write),
            self.beats_written.eq(moved & self.request.payload.write),
        ]
        return m


def _common(part: wiring.Component, name: str) -> Any:
    """Share a part between banks of several kinds: one Verilog module, one simulated code."""
    return Shared(part, name=f"pim_{name}")
