"""Kernel's side of a run: the cycles in which bursts are offered and their data move.

A round is one block of each tensor. Its loads are requested when the input FIFOs have room for all
of them. It is computed when it is loaded and the output FIFOs have room for all its results. Then
it is stored. The FIFOs limit the overlap of rounds. A run without loads or without stores skips the
wait for them.

Cycles that depend on later events are ``NEVER``; the caller must ask again later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hw.axdimm.config import ModuleConfig
from hw.dram.fabric_timing import FabricTiming
from hw.kernel.config import PARAMETERS_PER_BEAT
from hw.logic.line import AXI_BURST_LINES, LINE_BITS, LINE_BYTES
from hw.narrow.formats import BLOCK_PARAMETERS

from ..dram.controller import Piece
from ..dram.refresh import NEVER

__all__ = [
    "CODES_TO_RESULT",
    "COLUMN_TO_ANSWERED",
    "LOADED_TO_BEGIN",
    "NARROW_STEP_TO_RESULT",
    "SCAN_TO_RUN",
    "STEP_TO_COUNTED",
    "STEP_TO_RESULT",
    "SUM_DRAIN",
    "Burst",
    "KernelLanes",
    "Loader",
    "Rounds",
    "RunTensor",
    "Storer",
]

ADDRESSES = 4
"""Burst addresses of a direction that the controller takes before their turn."""
READS_IN_FLIGHT = 32
"""Read bursts that the controller tracks until their data are returned."""

# Pipeline latencies, calibrated against RTL, in fabric cycles.
OFFER_TO_ADDRESS = 1
"""Latency from the decision to issue a burst until the controller takes its address."""
ADDRESS_TO_ADMISSION = 1
ADDRESS_TO_DATA = 1
"""Latency from a write's address to its first data."""
DATA_TO_ADMISSION = 1
"""Latency from a write's last data to its admission."""
COLUMN_TO_BEAT = 2
"""Latency from a read's column until the kernel has the line, beside the DRAM's latency."""
COLUMN_TO_SPACE = 1
"""Latency from a write's column until its buffer place is free, beside the DRAM's latency."""
LOADED_TO_BEGIN = 1
STORED_TO_BEGIN = 1
FREED_TO_OFFER = 1
STEP_TO_RESULT = 1
"""Latency from a line's operands to its results in the output FIFOs, beside the unit's latency."""
NARROW_STEP_TO_RESULT = 12
"""``STEP_TO_RESULT`` of a kernel with narrow formats, if states are not codes."""
NARROW_STEP_TO_FREED = 8
"""Latency, with narrow formats, from a round's last step until its operands left the FIFOs."""
CODES_TO_RESULT = 46
"""Increase of ``NARROW_STEP_TO_RESULT`` if states are codes.

In addition there is a cycle for each line of lanes in a block, and for each level of the lanes'
maximum.
"""
STEP_TO_COUNTED = 13
"""Latency from a round's last step until its gradients that are not finite are counted."""
SCAN_TO_RUN = 1
"""Latency from that count to the first request of the run itself."""
FILLED_TO_OFFER = 1
COLUMN_TO_ANSWERED = 2
"""Latency from a write's last column until the kernel has counted its response."""
SUM_DRAIN = 77
"""Latency from a run's last results until its sums are ready.

It covers the additions within a line, to its accumulator and of the accumulators, level by level.
"""


class Burst(NamedTuple):
    """Burst of a round."""

    round: int
    line: int
    lines: int
    first_of_round: bool
    last_of_round: bool


class RunTensor(NamedTuple):
    """Tensor of a run."""

    address: int
    block_bits: int
    """Bits per 256 parameters."""

    def lines(self, parameters: int) -> int:
        """Return the lines of ``parameters`` of its parameters."""
        return -(-parameters * self.block_bits // (LINE_BITS * BLOCK_PARAMETERS))


class Rounds:
    """Rounds of a run, with the bursts of their blocks; no burst crosses 4 KB."""

    def __init__(self, round_parameters: int, parameters: int) -> None:
        self._round_parameters = round_parameters
        self._parameters = parameters
        self.count = -(-parameters // round_parameters)

    def parameters(self, index: int) -> int:
        """Return the parameters of a round."""
        return min(self._round_parameters, self._parameters - index * self._round_parameters)

    def bursts(self, tensors: Sequence[RunTensor]) -> Iterator[Burst]:
        """Yield the bursts of ``tensors``, round by round."""
        for index in range(self.count):
            pieces = []
            for tensor in tensors:
                line = tensor.address // LINE_BYTES
                line += index * tensor.lines(self._round_parameters)
                end = line + tensor.lines(self.parameters(index))
                while line < end:
                    size = min(end - line, AXI_BURST_LINES - line % AXI_BURST_LINES)
                    pieces.append((line, size))
                    line += size
            last = len(pieces) - 1
            for place, (line, size) in enumerate(pieces):
                yield Burst(index, line, size, place == 0, place == last)


class KernelLanes:
    """Lanes, which compute the rounds one after the other, ``16 / lanes`` cycles a line.

    ``freed`` has, for each round known so far, the cycle from which its room in the input
    FIFOs counts as free. ``filled`` has the cycle of its last results. Operands that leave at a
    line a cycle always stay ahead of new loads, so their room counts as free from the round's start
    on. Otherwise, and in a kernel with narrow formats, it is free when the last operands have left.

    Parameters
    ----------
    config: the module.
    rounds: the rounds of the run.
    latency: fabric cycles from operands to results.
    stores: whether results leave through the output FIFOs.
    """

    def __init__(self, config: ModuleConfig, rounds: Rounds, *, latency: int, stores: bool) -> None:
        self._rounds = rounds
        self._rounds_ahead = config.buffer_blocks if stores else rounds.count
        self._latency = latency
        self._cycles_a_line = config.kernel.cycles_per_beat
        self._freed_at_begin = self._cycles_a_line == 1 and not config.narrow
        self._step_to_freed = NARROW_STEP_TO_FREED if config.narrow else 0
        self._loaded: list[int] = []
        self._stored: list[int] = []
        self._consumed = -NEVER
        self.freed: list[int] = []
        self.filled: list[int] = []

    def loaded(self, cycle: int) -> None:
        """Register that one more round is in the input FIFOs since ``cycle``."""
        self._loaded.append(cycle)
        self._compute()

    def stored(self, cycle: int) -> None:
        """Register that one more round has left the output FIFOs in ``cycle``."""
        self._stored.append(cycle)
        self._compute()

    def _compute(self) -> None:
        while True:
            index = len(self.freed)
            room = index - self._rounds_ahead
            if index >= len(self._loaded) or room >= len(self._stored):
                return
            begin = self._loaded[index] + LOADED_TO_BEGIN
            if room >= 0:
                begin = max(begin, self._stored[room] + STORED_TO_BEGIN)
            begin = max(begin, self._consumed)
            lines = -(-self._rounds.parameters(index) // PARAMETERS_PER_BEAT)
            self._consumed = end = begin + lines * self._cycles_a_line
            self.freed.append(begin if self._freed_at_begin else end + self._step_to_freed)
            self.filled.append(end + self._latency)


class Loader:
    """Reads of a run. ``beats`` has the cycles in which lines arrive."""

    def __init__(
        self,
        config: ModuleConfig,
        times: FabricTiming,
        bursts: Iterator[Burst],
        lanes: KernelLanes,
        *,
        begin: int,
    ) -> None:
        self._buffer_blocks = config.buffer_blocks
        self._beat_latency = times.read_latency + COLUMN_TO_BEAT
        self._bursts = bursts
        self._lanes = lanes
        self._address = begin
        self._admitted = deque([-NEVER] * ADDRESSES, maxlen=ADDRESSES)
        # Cycles of returned data: one for each further read that the controller can track.
        self._returned = deque([-NEVER] * READS_IN_FLIGHT)
        self._in_flight: deque[Burst] = deque()
        self._offered = NEVER
        self._next = next(bursts, None)
        self.beats: list[Piece] = []

    def admission(self) -> int:
        """Return the first cycle in which the next burst could be admitted."""
        if self._offered == NEVER:
            self._offered = self._offer()
        return self._offered

    def _offer(self) -> int:
        burst = self._next
        if burst is None:
            return NEVER
        offered = self._address
        if burst.first_of_round and burst.round >= self._buffer_blocks:
            freed = burst.round - self._buffer_blocks
            if freed >= len(self._lanes.freed):
                return NEVER
            offered = max(offered, self._lanes.freed[freed] + FREED_TO_OFFER)
        if not self._returned:
            return NEVER
        self._address = max(offered + OFFER_TO_ADDRESS, self._admitted[0] + 1)
        return max(self._address + ADDRESS_TO_ADMISSION, self._returned[0] + 1)

    def admit(self, cycle: int) -> Burst:
        """Admit the next burst and return it; there must be one."""
        burst = self._next
        assert burst is not None
        self._admitted.append(cycle)
        self._returned.popleft()
        self._in_flight.append(burst)
        self._next = next(self._bursts, None)
        self._offered = NEVER
        return burst

    def serve(self, columns: list[Piece]) -> None:
        """Give the columns of the oldest burst in flight."""
        latency = self._beat_latency
        self.beats += [Piece(start + latency, lines) for start, lines in columns]
        start, lines = self.beats[-1]
        self._returned.append(start + lines - 1)
        if self._in_flight.popleft().last_of_round:
            self._lanes.loaded(start + lines - 1)


class Storer:
    """Writes of a run, and the moves of their data to the controller's buffer.

    ``beats`` has the cycles in which lines move.
    """

    def __init__(
        self,
        config: ModuleConfig,
        times: FabricTiming,
        bursts: Iterator[Burst],
        lanes: KernelLanes,
    ) -> None:
        self._space_latency = times.write_latency + COLUMN_TO_SPACE
        self._bursts = bursts
        self._lanes = lanes
        self._moving = next(bursts, None)
        self._address = -NEVER
        self._moved = deque([-NEVER] * ADDRESSES, maxlen=ADDRESSES)
        # Free places of the buffer, with the cycles from which they are free.
        self._free_lines = config.controller.write_buffer_lines
        self._free = deque([Piece(-NEVER, self._free_lines)])
        self._waiting: deque[tuple[Burst, int]] = deque()
        self.beats: list[Piece] = []

    def admission(self) -> int:
        """Return the first cycle in which the next burst could be admitted."""
        while self._moving is not None and self._move(self._moving):
            self._moving = next(self._bursts, None)
        return self._waiting[0][1] if self._waiting else NEVER

    def admit(self, _: int) -> Burst:
        """Admit the next burst and return it; there must be one."""
        return self._waiting.popleft()[0]

    def serve(self, columns: list[Piece]) -> None:
        """Give the columns of the oldest admitted burst."""
        for start, lines in columns:
            self._free.append(Piece(start + self._space_latency, lines))
            self._free_lines += lines

    def _move(self, burst: Burst) -> bool:
        """Move the data of the burst; return False if the cycle is not known yet."""
        offered = self._address
        if burst.first_of_round:
            if burst.round >= len(self._lanes.filled):
                return False
            offered = max(offered, self._lanes.filled[burst.round] + FILLED_TO_OFFER)
        if self._free_lines < burst.lines:
            return False
        self._free_lines -= burst.lines
        address = max(offered + OFFER_TO_ADDRESS, self._moved[0] + 1)
        cycle = max(address + ADDRESS_TO_DATA, self._moved[-1] + 1)
        left = burst.lines
        while left:
            start, free = self._free.popleft()
            lines = min(left, free)
            if lines < free:
                self._free.appendleft(Piece(start + lines, free - lines))
            start = max(start, cycle)
            self.beats.append(Piece(start, lines))
            cycle = start + lines
            left -= lines
        last = cycle - 1
        self._address = address
        self._moved.append(last)
        self._waiting.append((burst, last + DATA_TO_ADMISSION))
        if burst.last_of_round:
            self._lanes.stored(last)
        return True
