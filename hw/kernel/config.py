"""Configuration of a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from hw.float.format import FP32, FP32_FLUSHED, FloatFormat
from hw.logic.checks import check_int, check_types
from hw.logic.clocking import check_clocking
from hw.logic.line import LINE_BYTES, line_width
from hw.narrow.formats import most_tensors
from hw.rules import PAPER_RULES, RULES, rule
from hw.rules.update_rule import UpdateRule
from hw.stream.rounds import RoundsLayout

__all__ = [
    "COUNT_WIDTH",
    "MOST_RULES",
    "NARROW_RULES",
    "PARAMETERS_PER_BEAT",
    "SUBNORMALS",
    "KernelConfig",
]

PARAMETERS_PER_BEAT = LINE_BYTES // 4
"""FP32 values in a beat of 512 bits."""

COUNT_WIDTH = 40
"""Width of the register ``count`` and of the address registers, in bits."""

MOST_RULES = 16
"""Maximum number of rules in a kernel: as many as the arbiter's registers can name."""

SUBNORMALS = {"kept": FP32, "flushed": FP32_FLUSHED}
"""Treatments of subnormal numbers, each with the format in which a kernel then computes."""

NARROW_RULES = tuple(name for name, update_rule in RULES.items() if update_rule.states)
"""Rules for kernels with narrow formats: they load ``p``, ``g``, ``m``, ``v`` and store ``p``,
``m``, ``v``; ``m`` and ``v`` are states."""

_LANES = (1, 2, 4, 8, 16)
_LEAST_NARROW_BLOCK = 8192
_NARROW_BYTES_A_LANE = 1 << 34
"""Maximum memory a lane with narrow formats, in bytes: a lane has 2^32 random words for its
parameters, and a parameter takes at least four bytes for ``p``, ``m`` and ``v``."""


@dataclass(frozen=True, kw_only=True)
class KernelConfig:
    """Configuration of a kernel; the defaults are the paper's machine (3.3, 3.4).

    Examples
    --------
    >>> paper = KernelConfig()
    >>> paper.loaded, paper.fifo_bytes, paper.cycles_per_beat
    (('p', 'g', 'm', 'v'), 229376, 1)
    >>> KernelConfig(rules=("sgd",), lanes=4).cycles_per_beat
    4
    """

    rules: tuple[str, ...] = PAPER_RULES
    """Names of the update rules (:data:`hw.rules.RULES`); a register selects the rule of a run."""

    lanes: int = 16
    """Functional units: 1, 2, 4, 8 or 16. A beat of 16 parameters takes 16 / ``lanes`` cycles."""

    block_bytes: int = 16384
    """Bytes of a block: a power of two from 1024 to 65536, for tests also 128 to 512."""

    buffer_blocks: int = 2
    """Blocks in each input and output FIFO, 1 to 16. With 2 or more, loading, computing and storing
    overlap."""

    address_width: int = 34
    """Width of the memory's byte addresses in bits, 16 to 40."""

    memory_bytes: int = (1 << 34) - 8192
    """Bytes of memory for tensors, from address 0; a multiple of 64. The default is a channel of
    16 GiB less the two register windows of 4 KB."""

    clocking: str = "gated"
    """Clocking of the functional units, one of :data:`hw.logic.clocking.CLOCKINGS`. Results and
    cycles do not depend on it."""

    subnormals: str = "kept"
    """Treatment of subnormal numbers, one of :data:`SUBNORMALS`; cycles do not depend on it."""

    narrow: bool = False
    """Support for tensors in BF16 and states in 8 bits; see
    :class:`~hw.narrow.formats.Formats`. It takes rules of :data:`NARROW_RULES` and blocks of at
    least 8192 bytes, so that the scales of a round fill whole lines."""

    def __post_init__(self) -> None:
        check_types(self)
        if not isinstance(self.rules, tuple) or not 1 <= len(self.rules) <= MOST_RULES:
            raise ValueError(
                f"rules must be a tuple of 1 to {MOST_RULES} names of update rules, "
                f"got {self.rules!r}"
            )
        for name in self.rules:
            rule(name)
            if self.rules.count(name) > 1:
                raise ValueError(f"rules must name each rule once, got {name!r} twice")
        for name in self.rules if self.narrow else ():
            if name not in NARROW_RULES:
                raise ValueError(
                    f"rules must be of {', '.join(NARROW_RULES)} with narrow formats, got "
                    f"{name!r}; build another kernel for it"
                )
        if self.lanes not in _LANES:
            raise ValueError(f"lanes must be one of {_LANES}, got {self.lanes!r}")
        check_clocking(self.clocking)
        if self.subnormals not in SUBNORMALS:
            raise ValueError(
                f"subnormals must be one of {', '.join(SUBNORMALS)}, got {self.subnormals!r}"
            )
        check_int("block_bytes", self.block_bytes, 2 * LINE_BYTES, 65536, power_of_two=True)
        if self.narrow and self.block_bytes < _LEAST_NARROW_BLOCK:
            raise ValueError(
                f"block_bytes must be at least {_LEAST_NARROW_BLOCK} with narrow formats, got "
                f"{self.block_bytes}"
            )
        check_int("buffer_blocks", self.buffer_blocks, 1, 16)
        check_int("address_width", self.address_width, 16, COUNT_WIDTH)
        if (
            not LINE_BYTES <= self.memory_bytes <= 1 << self.address_width
            or self.memory_bytes % LINE_BYTES
        ):
            raise ValueError(
                f"memory_bytes must be a multiple of {LINE_BYTES} up to "
                f"2**address_width = {1 << self.address_width}, got {self.memory_bytes!r}"
            )
        most = _NARROW_BYTES_A_LANE * self.lanes
        if self.narrow and self.memory_bytes > most:
            raise ValueError(
                f"memory_bytes must be up to {most} with narrow formats, 2**34 a lane, got "
                f"{self.memory_bytes!r}; take more lanes"
            )

    @property
    def block_beats(self) -> int:
        """Beats of a block."""
        return self.block_bytes // LINE_BYTES

    @property
    def fifo_beats(self) -> int:
        """Depth of each FIFO in beats."""
        return self.buffer_blocks * self.block_beats

    @property
    def update_rules(self) -> tuple[UpdateRule, ...]:
        """Rules, in the order in which the register selects them."""
        return tuple(map(rule, self.rules))

    @property
    def format(self) -> FloatFormat:
        """Format in which units and sums compute."""
        return SUBNORMALS[self.subnormals]

    @property
    def loaded(self) -> tuple[str, ...]:
        """Slots for the tensors that rules load, each named after the tensors that use it."""
        return self._places([self.loads(rule) for rule in self.update_rules])

    @property
    def stored(self) -> tuple[str, ...]:
        """Slots for the tensors that rules store, each named after the tensors that use it."""
        return self._places([self.stores(rule) for rule in self.update_rules])

    def loads(self, rule: UpdateRule) -> tuple[str, ...]:
        """Return the tensors that a run of ``rule`` may load; they have the first slots."""
        return most_tensors(self.narrow).loads(rule)

    def stores(self, rule: UpdateRule) -> tuple[str, ...]:
        """Return the tensors that a run of ``rule`` may store; they have the first slots."""
        return most_tensors(self.narrow).stores(rule)

    @staticmethod
    def _places(tensors: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
        columns = zip_longest(*tensors)
        return tuple("_".join(dict.fromkeys(filter(None, column))) for column in columns)

    @property
    def fifo_bytes(self) -> int:
        """Bytes of all FIFOs, one for each slot."""
        return len(self.loaded + self.stored) * self.fifo_beats * LINE_BYTES

    @property
    def cycles_per_beat(self) -> int:
        """Cycles that the lanes take for a beat."""
        return PARAMETERS_PER_BEAT // self.lanes

    @property
    def rounds(self) -> RoundsLayout:
        """Layout of a run's rounds, wide enough for the whole memory."""
        beats_width = max(
            line_width(self.address_width) + 1,
            self.block_beats.bit_length(),
        )
        return RoundsLayout(block_beats=self.block_beats, beats_width=beats_width)
