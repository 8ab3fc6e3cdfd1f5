"""A run of the Adam kernel: the handle that the driver returns and what the run counted."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields

from .errors import WaitTimeoutError
from .transport import LINE_BYTES

__all__ = [
    "ACTIVITY_REGISTERS",
    "BEATS_PER_GROUP",
    "DRAM_TIMES",
    "PARAMETERS_PER_BEAT",
    "PARAMETER_BYTES",
    "AdamResult",
    "AdamRun",
    "DramActivity",
]

PARAMETER_BYTES = 4
"""FP32."""

PARAMETERS_PER_BEAT = LINE_BYTES // PARAMETER_BYTES

BURST_TCK = 4
"""DRAM clocks that the data of a line take."""

BEATS_PER_GROUP = 7
"""Beats that a beat's worth of parameters moves: four loads, three stores."""


@dataclass(frozen=True, kw_only=True)
class DramActivity:
    """Where the DRAM clocks of a run went, from START to DONE, and what it asked of the DRAM.

    The times add up to four times the run's fabric cycles.
    """

    data_tck: int
    """Reads and writes were issued; their data take four clocks each."""
    refresh_tck: int
    """The controller was closed for refreshes, the precharge before them included."""
    row_tck: int
    """The oldest request waited for a precharge, an activate or tRCD."""
    turn_around_tck: int
    """The oldest request waited for the spacing of columns: read to write, tWTR, tCCD_L."""
    starved_tck: int
    """The kernel had no request for the controller, or did not take the data of its reads."""
    idle_tck: int
    """The kernel asked for nothing yet: it checked its settings."""
    activates: int
    precharges: int
    refreshes: int
    bus_turns: int
    """Column commands of another direction than the one before."""

    @classmethod
    def total(cls, parts: Iterable[DramActivity]) -> DramActivity:
        """The sum over several runs."""
        values = [asdict(part) for part in parts]
        return cls(**{item.name: sum(value[item.name] for value in values) for item in fields(cls)})

    @property
    def times_tck(self) -> dict[str, int]:
        """The times by name, without the unit."""
        return {name: getattr(self, f"{name}_tck") for name in DRAM_TIMES}

    @property
    def total_tck(self) -> int:
        """All clocks of the run."""
        return sum(self.times_tck.values())

    @property
    def row_hits(self) -> int:
        """Reads and writes that found their row open for an earlier one."""
        return self.data_tck // BURST_TCK - self.activates


DRAM_TIMES = tuple(
    item.name.removesuffix("_tck") for item in fields(DramActivity) if item.name.endswith("_tck")
)
"""The times of a :class:`DramActivity`, without the unit."""

ACTIVITY_REGISTERS = {
    **{f"{name}_tck": f"{name}_tck" for name in DRAM_TIMES},
    "activates": "run_activates",
    "precharges": "run_precharges",
    "refreshes": "run_refreshes",
    "bus_turns": "run_turns",
}
"""Registers of the arbiter that hold a run's :class:`DramActivity`, by its fields."""


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
    activity: DramActivity | None = None
    """What the DRAM did meanwhile; None on an untimed backend."""


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
