"""Common part of the block loader and the block writer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.axi.bus import BURST_INCR, AXI4Channels, AXI4Signature
from hw.logic.expose import expose
from hw.logic.line import AXI_BURST_LINES, LINE_BITS, LINE_BYTE_BITS, line_width
from hw.stream.bursts import BurstGenerator
from hw.stream.rounds import RoundsLayout, RoundWalker, share_members

__all__ = ["BlockMover"]


class BlockMover(wiring.Component):
    """Issues bursts of one round after the other and follows their data.

    Parameters
    ----------
    channels
        AXI4 channels of the component; the first carries addresses.
    members
        Members beside those below.
    layout
        Layout of ``rounds``.
    tensors
        Maximum number of tensors in a round.
    buffer_blocks
        Blocks that each FIFO holds, and so the rounds in flight or in the FIFOs.
    addr_width
        Width of byte addresses in bits.
    uneven
        Whether each tensor has its own number of beats in a round.

    Members
    -------
    axi : Out(:class:`~hw.axi.bus.AXI4Channels`)
        The memory, with ID 0.
    load : In(1)
        Takes over what is said of a run; only when ``idle``, and with the FIFOs empty.
    start : In(1)
        With ``load``: the run begins. It may come late in the cycle, as little waits for it.
    rounds : In(:class:`~hw.stream.rounds.RoundsLayout`)
        The rounds of the run; must hold still until it is done.
    last_tensor : In(range(tensors))
        Index of the last tensor of each round; likewise.
    present, full, tail
        If ``uneven``, instead of ``last_tensor``: those of
        :class:`~hw.stream.rounds.RoundWalker`; likewise.
    lines : In(line), one for each tensor
        Number of the first line of each tensor, for ``load``.
    stop : In(1)
        Issue no further burst of this run; must stay high until the next ``start``.
    idle : Out(1)
        Nothing in flight and nothing to issue (because all is or because of ``stop``).
    error : Out(1)
        Pulse: an error response came.
    upset : Out(1)
        Pulse: a bit of the mover's state was lost; see :class:`~hw.stream.bursts.BurstGenerator`
        and :class:`~hw.stream.rounds.RoundWalker`.
    """

    def __init__(
        self,
        channels: tuple[str, ...],
        members: Mapping[str, wiring.Member],
        *,
        layout: RoundsLayout,
        tensors: int,
        buffer_blocks: int,
        addr_width: int,
        uneven: bool = False,
    ) -> None:
        self._layout = layout
        self._tensors = tensors
        self._walk: Any = {"layout": layout, "tensors": tensors, "uneven": uneven}
        self._shares = share_members(**self._walk)
        self._buffer_blocks = buffer_blocks
        self._addr_width = addr_width
        self._channels = channels
        axi = AXI4Signature(addr_width=addr_width, data_width=LINE_BITS)
        super().__init__(
            {
                "axi": Out(AXI4Channels(axi, *channels)),
                "load": In(1),
                "start": In(1),
                "rounds": In(layout),
                **self._shares,
                "lines": In(line_width(addr_width)).array(tensors),
                "stop": In(1),
                "idle": Out(1),
                "error": Out(1),
                "upset": Out(1),
                **members,
            }
        )

    @property
    def _most_bursts(self) -> int:
        """Maximum number of bursts for the rounds that the FIFOs hold."""
        # A block of n pages whose address is no multiple of 4 KB touches n + 1 pages.
        pages = -(-self._layout.block_beats // AXI_BURST_LINES) + 1
        return self._buffer_blocks * self._tensors * pages

    def _bursts(self, m: Any, allowed: Any) -> Any:
        """Return the burst generator, which begins a round only while ``allowed``."""
        m.submodules.bursts = bursts = BurstGenerator(addr_width=self._addr_width, **self._walk)
        expose(m, self, bursts, ("load", "start", "rounds", *self._shares, "lines", "stop"))
        burst: Any = bursts.o.payload
        for name, value in (
            ("addr", burst.line << LINE_BYTE_BITS),
            ("len", burst.len),
            ("size", LINE_BYTE_BITS),
            ("burst", BURST_INCR),
            ("valid", bursts.o.valid),
        ):
            m.d.comb += getattr(self.axi, f"{self._channels[0]}{name}").eq(value)
        m.d.comb += [
            bursts.o.ready.eq(getattr(self.axi, f"{self._channels[0]}ready")),
            bursts.allowed.eq(allowed),
        ]
        return bursts

    def _walker(self, m: Any, name: str) -> Any:
        """Return a walker over the beats of all rounds."""
        m.submodules[name] = walker = RoundWalker(**self._walk)
        expose(m, self, walker, ("load", "start", "rounds", *self._shares))
        m.d.comb += walker.step_beats.eq(1)
        return walker
