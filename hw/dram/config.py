"""Configuration of the DRAM controller."""

from __future__ import annotations

from dataclasses import dataclass

from hw.dram.timing import MAX_POSTPONED_REFRESHES
from hw.logic.checks import check_int

__all__ = ["ControllerConfig"]


@dataclass(frozen=True, kw_only=True)
class ControllerConfig:
    """Settings of the controller. Raises ``ValueError`` for values that cannot be built.

    Examples
    --------
    >>> ControllerConfig(read_buffer_lines=512).buffer_lines
    768
    >>> ControllerConfig(queue_depth=12)
    Traceback (most recent call last):
        ...
    ValueError: queue_depth must be a power of two from 8 to 256, got 12
    """

    queue_depth: int = 16
    """Bursts in the request queue, so the distance at which rows are prepared ahead. A power of
    two from 8 to 256."""

    write_buffer_lines: int = 256
    """Lines of write data, a power of two from 64 to 4096; the default is four bursts of 4 KB."""

    read_buffer_lines: int = 64
    """Lines of read data that the manager may leave waiting before reads stop, a power of two from
    16 to 4096. A controller outside a channel has at least 512."""

    run_length: int = 16
    """Bursts of one direction in a row while the other direction waits, 1 to 255."""

    refresh: bool = True
    """Refresh of the DRAM. False turns it off: for an experiment, not for a working memory."""

    refresh_postpone: int = 8
    """Refreshes collected under load, 1 to 8; with 1 none is postponed."""

    refresh_pull_in: int = 8
    """Refreshes issued in advance when idle, 0 to 8."""

    refresh_idle_cycles: int = 32
    """Fabric cycles without a request after which refreshes are issued before they must be."""

    reset_cycles: int = 16
    """Fabric cycles after reset before the first command, 1 to 256."""

    def __post_init__(self) -> None:
        for name, low, high in (
            ("queue_depth", 8, 256),
            ("write_buffer_lines", 64, 4096),
            ("read_buffer_lines", 16, 4096),
        ):
            check_int(name, getattr(self, name), low, high, power_of_two=True)
        for name, low, high in (
            ("run_length", 1, 255),
            ("refresh_postpone", 1, MAX_POSTPONED_REFRESHES),
            ("refresh_pull_in", 0, MAX_POSTPONED_REFRESHES),
            ("refresh_idle_cycles", 1, 1 << 16),
            ("reset_cycles", 1, 256),
        ):
            check_int(name, getattr(self, name), low, high)
        if not isinstance(self.refresh, bool):
            raise ValueError(f"refresh must be True or False, got {self.refresh!r}")

    @property
    def buffer_lines(self) -> int:
        """64-byte lines of data that the controller can hold."""
        return self.write_buffer_lines + self.read_buffer_lines
