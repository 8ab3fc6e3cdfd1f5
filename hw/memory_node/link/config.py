"""Configuration of a link."""

from __future__ import annotations

from dataclasses import dataclass

from hw.logic.checks import check_int, check_types
from hw.memory_node.link.wire import FLIT_BYTES, WireSignature

__all__ = ["LINK_PRESETS", "PHIT_BYTES", "LinkConfig"]

PHIT_BYTES = (72, 36, 24, 18, 12, 9)
"""Widths of a wire in bytes a cycle; a flit is a whole number of phits of each."""


@dataclass(frozen=True, kw_only=True)
class LinkConfig:
    """Configuration of a link port; both ends of a link are alike.

    With the defaults a direction carries a flit a fabric cycle, over up to 53 cycles from port to
    port (132 ns at 400 MHz). A flit is then acknowledged, and its credit is back, before
    ``replay_flits`` and ``buffer_flits`` other flits have been sent.

    Examples
    --------
    >>> [LinkConfig(phit_bytes=size).phits for size in (72, 36, 9)]
    [1, 2, 8]
    >>> LinkConfig(replay_flits=100)
    Traceback (most recent call last):
        ...
    ValueError: replay_flits must be a power of two from 4 to 128, got 100
    """

    phit_bytes: int = 72
    """Bytes that the wire carries in a cycle, one of :data:`PHIT_BYTES`."""

    buffer_flits: int = 128
    """Flits of each virtual channel that a receiver can hold, 2 to 255: credits are counted modulo
    256."""

    replay_flits: int = 128
    """Flits that a sender keeps until they are acknowledged: a power of two from 4 to 128, half of
    the sequence numbers."""

    retry_cycles: int = 256
    """Cycles without progress before a receiver requests again and a sender goes back. It must
    exceed the time of a flit and its acknowledgement."""

    keepalive_cycles: int = 64
    """Maximum cycles from one flit to the next."""

    dead_cycles: int = 1 << 16
    """Cycles without a correct flit after which a link is dead. They also count from reset on, so
    they must exceed the time from the first port's reset to the other's."""

    dead_retries: int = 64
    """Times in a row that a sender goes back without progress before the link is dead, 2 to 255."""

    def __post_init__(self) -> None:
        check_types(self)
        if self.phit_bytes not in PHIT_BYTES:
            raise ValueError(
                f"phit_bytes must be one of {', '.join(map(str, PHIT_BYTES))}, "
                f"got {self.phit_bytes!r}; a flit of {FLIT_BYTES} bytes has to be whole phits"
            )
        check_int("buffer_flits", self.buffer_flits, 2, 255)
        check_int("replay_flits", self.replay_flits, 4, 128, power_of_two=True)
        longest = 1 << 24
        # At least a flit's way there and back.
        check_int("retry_cycles", self.retry_cycles, 4 * self.phits + 16, longest)
        check_int("keepalive_cycles", self.keepalive_cycles, self.phits, longest)
        # A few keepalives and a retry may be lost.
        check_int("dead_cycles", self.dead_cycles, 4 * self.keepalive_cycles, longest)
        check_int("dead_retries", self.dead_retries, 2, 255)

    @property
    def phits(self) -> int:
        """Phits of a flit."""
        return FLIT_BYTES // self.phit_bytes

    @property
    def wire(self) -> WireSignature:
        """Signature of one direction of the link."""
        return WireSignature(phit_bytes=self.phit_bytes)


LINK_PRESETS = {
    "full": LinkConfig(),
    "tiny": LinkConfig(
        phit_bytes=9,
        buffer_flits=4,
        replay_flits=8,
        retry_cycles=128,
        keepalive_cycles=32,
        dead_cycles=2048,
        dead_retries=16,
    ),
}
"""Named configurations: 64 bytes of payload a cycle, and a small one for tests."""
