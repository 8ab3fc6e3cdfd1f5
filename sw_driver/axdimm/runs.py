"""A run of the kernel: its handle, and its counters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields

from hw.logic.line import LINE_BITS
from hw.narrow.formats import BLOCK_PARAMETERS, Formats
from hw.rules.update_rule import UpdateRule

from ..device.clock import Domain
from ..device.streams import Handle

__all__ = [
    "ACTIVITY_REGISTERS",
    "DRAM_TIMES",
    "PARAMETER_BYTES",
    "DramActivity",
    "KernelRun",
    "RunResult",
]

PARAMETER_BYTES = 4
"""Bytes of a parameter in FP32."""

BURST_TCK = 4
"""DRAM clocks of the data of a 64-byte line."""


@dataclass(frozen=True, kw_only=True)
class DramActivity:
    """DRAM clocks of a run by cause, from START to DONE, and its DRAM commands.

    The times add up to four times the run's fabric cycles.
    """

    data_tck: int
    """DRAM clocks of issued reads and writes, four for the data of each."""
    refresh_tck: int
    """DRAM clocks in which refreshes, and the precharges before them, blocked the controller."""
    row_tck: int
    """DRAM clocks in which the oldest request waited for a precharge, an activate or tRCD."""
    turn_around_tck: int
    """DRAM clocks in which the oldest request waited for read to write, tWTR or tCCD_L."""
    starved_tck: int
    """DRAM clocks in which the kernel had no request, or did not take read data."""
    idle_tck: int
    """DRAM clocks before the kernel's first request, while it checked its settings."""
    activates: int
    precharges: int
    refreshes: int
    bus_turns: int
    """Column commands in another direction than the one before."""

    @classmethod
    def total(cls, parts: Iterable[DramActivity]) -> DramActivity:
        """Return the sum over several runs."""
        values = [asdict(part) for part in parts]
        return cls(**{item.name: sum(value[item.name] for value in values) for item in fields(cls)})

    @property
    def times_tck(self) -> dict[str, int]:
        """DRAM clocks of each kind, by name without the unit."""
        return {name: getattr(self, f"{name}_tck") for name in DRAM_TIMES}

    @property
    def total_tck(self) -> int:
        """All DRAM clocks of the run."""
        return sum(self.times_tck.values())

    @property
    def row_hits(self) -> int:
        """Reads and writes to a row that was already open."""
        return self.data_tck // BURST_TCK - self.activates


DRAM_TIMES = tuple(
    item.name.removesuffix("_tck") for item in fields(DramActivity) if item.name.endswith("_tck")
)
"""Kinds of DRAM clocks in a :class:`DramActivity`, without the unit."""

ACTIVITY_REGISTERS = {
    **{f"{name}_tck": f"{name}_tck" for name in DRAM_TIMES},
    "activates": "run_activates",
    "precharges": "run_precharges",
    "refreshes": "run_refreshes",
    "bus_turns": "run_turns",
}
"""Arbiter registers of a run's :class:`DramActivity`, by field."""


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """Counters of a successful run of the kernel."""

    nparams: int
    fabric_cycles: int
    """Fabric cycles from START to DONE; 0 on an untimed backend."""
    beats_read: int
    """Beats of 64 bytes that the kernel read."""
    beats_written: int
    """Beats of 64 bytes that the kernel wrote."""
    idle_fabric_cycles: int
    """Fabric cycles of the run without a beat; 0 on an untimed backend."""
    activity: DramActivity | None = None
    """DRAM activity of the run; None on an untimed backend."""
    sums: Mapping[str, float] = field(default_factory=dict)
    """The rule's sums over all parameters, as FP32 values; 0 on a backend without arithmetic."""
    not_finite: int = 0
    """Gradients that are infinite or NaN; 0 if the kernel has no narrow formats: it counts none."""
    skipped: bool = False
    """True if nothing was written because of such gradients."""


class KernelRun(Handle[RunResult]):
    """A run of the kernel; its progress counts parameters.

    ``wait`` also raises :class:`~sw_driver.device.errors.KernelError`, a
    :class:`~sw_driver.device.transport.DeviceFault`, and
    :class:`~sw_driver.device.errors.DeviceTimeoutError` if the kernel does not end in an ample
    number of fabric cycles.
    """

    def __init__(
        self,
        domain: Domain,
        *,
        rule: UpdateRule,
        channel: int,
        nparams: int,
        t: int | None,
        formats: Formats,
    ) -> None:
        step = "" if t is None else f"step {t} of "
        super().__init__(
            f"{step}{rule.title}, {nparams} parameters on channel {channel}",
            domain,
            total=nparams,
            unit="parameters",
        )
        self.rule = rule
        """Update rule of the run."""
        self.channel = channel
        """Number of the run's channel."""
        self.nparams = nparams
        """Parameters to update."""
        self.formats = formats
        """Formats of the tensors."""
        self.kernel_began = 0
        """Start of the kernel, in simulated fabric cycles."""

    @property
    def beats(self) -> int:
        """Beats of 64 bytes that the run reads and writes, unless it is skipped."""
        rule, formats = self.rule, self.formats
        tensors = (*formats.loads(rule), *formats.stores(rule))
        if formats.skip_not_finite:
            tensors += ("g",)
        return sum(formats.tensor_lines(rule, name, self.nparams) for name in tensors)

    @property
    def fewest_beats(self) -> int:
        """Beats of 64 bytes after which the run may end at the earliest."""
        if self.formats.skip_not_finite:
            return self.formats.tensor_lines(self.rule, "g", self.nparams)
        return self.beats

    def parameters_done(self, beats: int) -> int:
        """Return the parameters that are done after ``beats`` written beats.

        If the rule stores nothing, ``beats`` counts read beats.
        """
        rule, formats = self.rule, self.formats
        tensors = formats.stores(rule) or formats.loads(rule)
        bits = sum(formats.block_bits(rule, name) for name in tensors)
        return beats * LINE_BITS * BLOCK_PARAMETERS // bits
