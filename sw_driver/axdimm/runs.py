"""A run of the kernel: the handle that the driver returns and what the run counted."""

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
"""DRAM clocks that the data of a line of 64 bytes take."""


@dataclass(frozen=True, kw_only=True)
class DramActivity:
    """Where the DRAM clocks of a run went, from START to DONE, and what it asked of the DRAM.

    The times add up to four times the run's fabric cycles.
    """

    data_tck: int
    """DRAM clocks in which reads and writes were issued, four for the data of each."""
    refresh_tck: int
    """DRAM clocks in which the controller was closed for refreshes, with the precharges before."""
    row_tck: int
    """DRAM clocks in which the oldest request waited for a precharge, an activate or tRCD."""
    turn_around_tck: int
    """DRAM clocks in which the oldest request waited for read to write, tWTR or tCCD_L."""
    starved_tck: int
    """DRAM clocks in which the kernel had no request, or did not take the data of its reads."""
    idle_tck: int
    """DRAM clocks in which the kernel asked for nothing yet: it checked its settings."""
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
        """The DRAM clocks of each kind, by name without the unit."""
        return {name: getattr(self, f"{name}_tck") for name in DRAM_TIMES}

    @property
    def total_tck(self) -> int:
        """All DRAM clocks of the run."""
        return sum(self.times_tck.values())

    @property
    def row_hits(self) -> int:
        """Reads and writes that found their row open for an earlier one."""
        return self.data_tck // BURST_TCK - self.activates


DRAM_TIMES = tuple(
    item.name.removesuffix("_tck") for item in fields(DramActivity) if item.name.endswith("_tck")
)
"""Names of the kinds of DRAM clocks in a :class:`DramActivity`, without the unit."""

ACTIVITY_REGISTERS = {
    **{f"{name}_tck": f"{name}_tck" for name in DRAM_TIMES},
    "activates": "run_activates",
    "precharges": "run_precharges",
    "refreshes": "run_refreshes",
    "bus_turns": "run_turns",
}
"""Registers of the arbiter that hold a run's :class:`DramActivity`, by its fields."""


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What the kernel counted in a run that ended well."""

    nparams: int
    fabric_cycles: int
    """Fabric cycles from START to DONE; 0 on an untimed backend."""
    beats_read: int
    """Beats of 64 bytes that the kernel read."""
    beats_written: int
    """Beats of 64 bytes that the kernel wrote."""
    idle_fabric_cycles: int
    """Fabric cycles of the run in which no beat moved; 0 on an untimed backend."""
    activity: DramActivity | None = None
    """What the DRAM did during the run; None on an untimed backend."""
    sums: Mapping[str, float] = field(default_factory=dict)
    """The rule's sums over all parameters, as FP32 values; 0 on a backend without arithmetic."""
    not_finite: int = 0
    """Gradients that are infinite or NaN; 0 from a kernel without narrow formats, which counts
    none."""
    skipped: bool = False
    """Whether nothing was written because of them."""


class KernelRun(Handle[RunResult]):
    """A run of the kernel; its progress is in parameters.

    ``wait`` also raises :class:`~sw_driver.device.errors.KernelError`,
    :class:`~sw_driver.device.errors.DeviceTimeoutError` when the kernel does not end in an ample
    number of fabric cycles, and a :class:`~sw_driver.device.transport.DeviceFault`.
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
        """The update rule that the run computes."""
        self.channel = channel
        """The channel that the run is on."""
        self.nparams = nparams
        """Parameters that the run updates."""
        self.formats = formats
        """The formats of its tensors."""
        self.kernel_began = 0
        """Simulated time at which the kernel was started, in fabric cycles."""

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
        """Beats of 64 bytes after which the run may end."""
        if self.formats.skip_not_finite:
            return self.formats.tensor_lines(self.rule, "g", self.nparams)
        return self.beats

    def parameters_done(self, beats: int) -> int:
        """How many parameters are through when so many beats were written, or, if the rule stores
        nothing, read."""
        rule, formats = self.rule, self.formats
        tensors = formats.stores(rule) or formats.loads(rule)
        bits = sum(formats.block_bits(rule, each) for each in tensors)
        return beats * LINE_BITS * BLOCK_PARAMETERS // bits
