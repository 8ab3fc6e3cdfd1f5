"""Configuration of a channel and of the module."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from hw.axdimm.host_port import MAX_READ_LATENCY, MIN_READ_LATENCY
from hw.dram.config import ControllerConfig
from hw.dram.geometry import DramGeometry
from hw.dram.interface import SLOTS
from hw.dram.presets import (
    DDR4_1600_8GBIT_X16,
    DDR4_1600_16GBIT_X8,
    DDR4_2400_8GBIT_X8,
    TINY,
    DramPart,
    part,
)
from hw.dram.timing import DramTiming
from hw.kernel.config import KernelConfig
from hw.kernel.registers import WINDOW_BYTES
from hw.logic.checks import check_int, check_types
from hw.logic.line import LINE_BYTES
from hw.rules import PAPER_RULES

__all__ = ["HOSTS", "MEMORIES", "MODULE_PRESETS", "OPTIONS", "ModuleConfig", "configure"]

MEMORIES = ("ddr4", "axi4")
"""Memory sides of a channel: the DDR4 controller, or an AXI4 port for another controller."""

HOSTS = ("link", "axi4")
"""Host sides of a channel."""

_PAPER_CONTROLLER = ControllerConfig()
_PAPER_READ_LATENCY = 48


@dataclass(frozen=True, kw_only=True)
class ModuleConfig:
    """Configuration of an AXDIMM; the defaults are the paper's module (section 3).

    Examples
    --------
    >>> from hw.axdimm.config import configure
    >>> paper = configure()
    >>> paper.channels, paper.capacity_bytes, paper.fabric_mhz
    (2, 17179869184, 200.0)
    >>> configure("tiny", lanes=2).kernel.lanes
    2
    """

    channels: int = 2
    """Channels on the host link, 1, 2 or 4; the paper's module has two."""

    part: DramPart = DDR4_1600_16GBIT_X8
    """DRAM of a channel."""

    rules: tuple[str, ...] = PAPER_RULES
    """Update rules of a kernel, by name; see :data:`hw.rules.RULES`."""

    lanes: int = 16
    """Functional units of a kernel."""

    block_bytes: int = 16384
    """Bytes a kernel loads or stores of one tensor at a time."""

    buffer_blocks: int = 2
    """Blocks in each FIFO of a kernel."""

    read_latency_fabric_cycles: int = _PAPER_READ_LATENCY
    """Fixed latency of host reads in fabric cycles."""

    clocking: str = "gated"
    """Clocking of the functional units, one of :data:`hw.logic.clocking.CLOCKINGS`."""

    subnormals: str = "kept"
    """Treatment of subnormal numbers, one of :data:`hw.kernel.config.SUBNORMALS`."""

    narrow: bool = False
    """Narrow formats in the kernels; see :class:`~hw.kernel.config.KernelConfig`."""

    host: str = "link"
    """Host side of a channel, one of :data:`HOSTS`. ``link`` is a DIMM's link; ``axi4`` is an AXI4
    port a channel, for boards with a host bus. Reads on AXI have no fixed latency."""

    controller: ControllerConfig = _PAPER_CONTROLLER
    """DRAM controller of a channel."""

    memory: str = "ddr4"
    """Memory side of a channel, one of :data:`MEMORIES`. With ``axi4`` the part only sets the
    capacity and the clock, and ``controller`` must keep its default."""

    kernel: KernelConfig = field(init=False)
    """Configuration of the kernel, derived from the other fields."""

    def __post_init__(self) -> None:
        check_types(self)
        if self.channels not in (1, 2, 4):
            raise ValueError(
                "channels must be 1, 2 or 4, because the upper address bits select the channel, "
                f"got {self.channels!r}"
            )
        if self.memory not in MEMORIES:
            raise ValueError(f"memory must be one of {', '.join(MEMORIES)}, got {self.memory!r}")
        if self.memory != "ddr4" and self.controller != _PAPER_CONTROLLER:
            usual = asdict(_PAPER_CONTROLLER)
            given = [
                name for name, value in asdict(self.controller).items() if value != usual[name]
            ]
            raise ValueError(
                f"{', '.join(given)} of the DRAM controller cannot be set, because memory is "
                f"{self.memory!r}, which has none: leave it out"
            )
        latency = self.read_latency_fabric_cycles
        check_int("read_latency_fabric_cycles", latency, MIN_READ_LATENCY, MAX_READ_LATENCY)
        if self.host not in HOSTS:
            raise ValueError(f"host must be one of {', '.join(HOSTS)}, got {self.host!r}")
        if self.host == "axi4" and latency != _PAPER_READ_LATENCY:
            raise ValueError(
                "read_latency_fabric_cycles is of the host link and means nothing with host axi4: "
                f"leave it out, got {latency!r}"
            )
        if self.capacity_bytes < 1 << 16:
            raise ValueError(f"a channel must have at least 65536 bytes, got {self.capacity_bytes}")
        kernel = KernelConfig(
            rules=self.rules,
            lanes=self.lanes,
            block_bytes=self.block_bytes,
            buffer_blocks=self.buffer_blocks,
            address_width=self.address_width,
            memory_bytes=self.capacity_bytes - 2 * WINDOW_BYTES,
            clocking=self.clocking,
            subnormals=self.subnormals,
            narrow=self.narrow,
        )
        object.__setattr__(self, "kernel", kernel)

    @property
    def capacity_bytes(self) -> int:
        """Bytes of one channel's address range, including the register windows at its top."""
        return self.part.geometry.capacity_bytes

    @property
    def address_width(self) -> int:
        """Width of a channel's byte addresses, in bits."""
        return self.capacity_bytes.bit_length() - 1

    @property
    def fabric_mhz(self) -> float:
        """Fabric clock in MHz: a quarter of the DRAM's."""
        return 1e6 / (SLOTS * self.part.timing.tck_ps)

    @property
    def refresh_efficiency(self) -> float:
        """Share of the DRAM's peak bandwidth that refresh leaves in the long run.

        The DRAM is unavailable for tRFC of every tREFI (JEDEC JESD79-4); 1 without refresh.
        """
        if not self.controller.refresh:
            return 1.0
        timing = self.part.timing
        return 1 - timing.t_rfc / timing.t_refi

    @property
    def onchip_bytes(self) -> int:
        """Bytes that a channel buffers on the chip, in the FIFOs of kernel and controller."""
        lines = self.controller.buffer_lines if self.memory == "ddr4" else 0
        return self.kernel.fifo_bytes + LINE_BYTES * lines

    def with_capacity(self, capacity_bytes: int) -> ModuleConfig:
        """Return the module with another DRAM capacity; see ``DramGeometry.with_capacity``."""
        return replace(self, part=self.part.with_capacity(capacity_bytes))

    def describe(self) -> dict[str, Any]:
        """Return the configuration as plain values, for reports."""
        values = asdict(self)
        values["fabric_mhz"] = self.fabric_mhz
        values["capacity_bytes"] = self.capacity_bytes
        return values


MODULE_PRESETS = {
    "axdimm": ModuleConfig(),
    "axdimm_four_lanes": ModuleConfig(lanes=4, buffer_blocks=3),
    "axdimm_8gbit_x16": ModuleConfig(part=DDR4_1600_8GBIT_X16),
    "axdimm_narrow": ModuleConfig(rules=("adam", "adamw"), lanes=8, narrow=True),
    "axdimm_ddr4_2400": ModuleConfig(part=DDR4_2400_8GBIT_X8),
    "tiny": ModuleConfig(part=TINY.with_capacity(1 << 20), lanes=2, block_bytes=1024),
}
"""Named configurations: the paper's module, variations of it, and a small one for tests.

With four lanes a round takes almost as long to compute as to move, and its input is freed only
block by block. The third block keeps the loader from waiting. On a bus that moves a beat a cycle
and serves reads first, a beat moves in 99.9 % of the cycles, against 93.3 % with two blocks."""

_CONTROLLER, _TIMING, _GEOMETRY = (
    tuple(item.name for item in fields(kind))
    for kind in (ControllerConfig, DramTiming, DramGeometry)
)

OPTIONS = (
    "channels",
    "part",
    "capacity_bytes",
    "rules",
    "lanes",
    "block_bytes",
    "buffer_blocks",
    "read_latency_fabric_cycles",
    "memory",
    "clocking",
    "subnormals",
    "narrow",
    "host",
    "allow_nonstandard",
    *_CONTROLLER,
    *_TIMING,
    *_GEOMETRY,
)
"""Options of :func:`configure`: the module's, with ``part`` by name; the DRAM controller's; and the
numbers of the part's timing (in tCK) and geometry. ``allow_nonstandard`` permits values that no
DDR4 has."""


def configure(preset: str = "axdimm", **options: Any) -> ModuleConfig:
    """Return the preset with ``options`` changed.

    Times that the standard gives in ns follow ``tck_ps``, unless they are given. Raises
    ``ValueError`` for an unknown preset or option and for values that do not fit.
    """
    if preset not in MODULE_PRESETS:
        raise ValueError(f"no configuration {preset!r}; known: {', '.join(MODULE_PRESETS)}")
    for name in options:
        if name not in OPTIONS:
            raise ValueError(f"no configuration option {name!r}; known: {', '.join(OPTIONS)}")

    def taken(names: tuple[str, ...]) -> dict[str, Any]:
        return {name: options.pop(name) for name in names if name in options}

    config = MODULE_PRESETS[preset]
    chosen = options.pop("part", config.part)
    chosen = chosen if isinstance(chosen, DramPart) else part(chosen)
    capacity_bytes = options.pop("capacity_bytes", None)
    allowed = options.pop("allow_nonstandard", chosen.allow_nonstandard)
    timing = taken(_TIMING)
    if "tck_ps" in timing:
        timing = chosen.timing_at(timing["tck_ps"], allow_nonstandard=allowed) | timing
    chosen = replace(
        chosen,
        timing=replace(chosen.timing, **timing),
        geometry=replace(chosen.geometry, **taken(_GEOMETRY)),
        allow_nonstandard=allowed,
    )
    if "rules" in options:
        rules = options["rules"]
        rules = rules.split(",") if isinstance(rules, str) else rules
        options["rules"] = tuple(rules) if isinstance(rules, list) else rules
    controller = replace(config.controller, **taken(_CONTROLLER))
    config = replace(config, part=chosen, controller=controller, **options)
    return config if capacity_bytes is None else config.with_capacity(capacity_bytes)
