"""A run of the Adam kernel: the handle that the driver returns and what the run counted."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from .errors import WaitTimeoutError
from .transport import LINE_BYTES

__all__ = [
    "BEATS_PER_GROUP",
    "PARAMETERS_PER_BEAT",
    "PARAMETER_BYTES",
    "AdamResult",
    "AdamRun",
]

PARAMETER_BYTES = 4
"""FP32."""

PARAMETERS_PER_BEAT = LINE_BYTES // PARAMETER_BYTES

BEATS_PER_GROUP = 7
"""Beats that a beat's worth of parameters moves: four loads, three stores."""


@dataclass(frozen=True, kw_only=True)
class AdamResult:
    """What the kernel counted in a run that ended well."""

    nparams: int
    fabric_cycles: int
    """From START to DONE; 0 on an untimed backend."""
    beats_read: int
    """Beats of 64 bytes."""
    beats_written: int
    """Beats of 64 bytes."""
    idle_fabric_cycles: int
    """Fabric cycles of the run in which no beat moved; 0 on an untimed backend."""


class AdamRun:
    """A run in progress or over. Any thread may wait or poll."""

    def __init__(self, *, channel: int, nparams: int, allocations: frozenset[int]) -> None:
        self._channel = channel
        self._nparams = nparams
        self._allocations = allocations
        self._over = threading.Event()
        self._result: AdamResult | None = None
        self._error: BaseException | None = None

    @property
    def channel(self) -> int:
        """The channel that the run is on."""
        return self._channel

    @property
    def nparams(self) -> int:
        """Parameters that the run updates."""
        return self._nparams

    @property
    def allocations(self) -> frozenset[int]:
        """Numbers of the allocations that the run reads or writes."""
        return self._allocations

    @property
    def done(self) -> bool:
        """Whether the run has ended, well or not. Never blocks."""
        return self._over.is_set()

    def poll(self) -> bool:
        """Same as :attr:`done`."""
        return self.done

    def wait(self, timeout: float | None = None) -> AdamResult:
        """Waits for the end and returns the counters.

        Raises what ended the run otherwise (:class:`~sw_driver.errors.KernelError`,
        :class:`~sw_driver.errors.DeviceTimeoutError`, a
        :class:`~sw_driver.transport.DeviceFault`), and :class:`WaitTimeoutError` when it goes on
        after ``timeout`` seconds of host time; it can then be waited for again.
        """
        if not self._over.wait(timeout):
            raise WaitTimeoutError(
                f"the run of {self._nparams} parameters on channel {self._channel} is still in "
                f"progress after {timeout} s; it goes on",
                channel=self._channel,
                nparams=self._nparams,
                timeout_s=timeout,
            )
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def finish(self, outcome: AdamResult | BaseException) -> None:
        """Ends the run. Called once, by the driver."""
        if isinstance(outcome, AdamResult):
            self._result = outcome
        else:
            self._error = outcome
        self._over.set()

    def __repr__(self) -> str:
        state = "in progress" if not self.done else "failed" if self._error else "done"
        return f"<AdamRun of {self._nparams} parameters on channel {self._channel}: {state}>"
