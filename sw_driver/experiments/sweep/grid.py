"""Points of a sweep, all checked before any is measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING

from hw.narrow.formats import BLOCK_PARAMETERS, MIXTURES, Formats
from sw_driver.axdimm import backends
from sw_driver.axdimm.allocator import (
    BANK_BLOCK_BYTES,
    BANK_PAIRS,
    channel_memory,
    least_capacity_bytes,
)
from sw_driver.axdimm.backends import SIMULATED_CAPACITY_BYTES, BackendOptions, module_config
from sw_driver.axdimm.runs import PARAMETER_BYTES
from sw_driver.device.errors import InvalidArgumentError, OutOfMemoryError
from sw_driver.experiments.settings import Value, plain, read_grid, text_of
from sw_driver.simulator import sources
from sw_driver.simulator.buildcache import content_key

if TYPE_CHECKING:
    from hw.axdimm.config import ModuleConfig

__all__ = ["SUSTAINED", "Grid", "Point", "sources_key"]

GOLDEN_ARRAYS = 8
"""Arrays of a tensor's size in the golden model's memory at once, with intermediate results."""

SUSTAINED = 4_194_304
"""Parameters of each channel that are enough for refresh to take its long-run share."""

_NOT_OPTIONS = ("preset", "count", "stagger", "formats")

_MEASURE = "sw_driver.experiments.sweep.measure"


@lru_cache
def sources_key(backend: str) -> str:
    """Return a hash of all source files that can change the results of ``backend``."""
    every = {name: f"{backends.__name__}.{name}" for name in backends.BACKENDS}
    # The models use only the hardware's configuration, which is in a point's key as well.
    unused = set() if backend == "rtl" else sources.hardware_modules()
    files = sources.sources_of([every[backend]], apart_from={backends.__name__, *unused})
    files |= sources.sources_of([_MEASURE], apart_from={*every.values(), *unused})
    parts: list[str | bytes] = []
    for path in sorted(files):
        parts += [path.relative_to(sources.ROOT).as_posix(), path.read_bytes()]
    return content_key(parts)


@dataclass(frozen=True, kw_only=True)
class Point:
    """A configuration and a job to measure."""

    backend: str
    settings: Mapping[str, Value]
    """Settings of the point by key, always with ``preset``, ``count`` and ``stagger``."""
    arithmetic: bool = True
    """True if the RTL includes the units' arithmetic.

    Without it the cycles are the same but the outputs are wrong. The cycle model never computes
    outputs.
    """

    @property
    def count(self) -> int:
        """Parameters of each channel."""
        return int(self.settings["count"])

    @property
    def stagger(self) -> bool:
        """True if the driver spreads the tensors over the banks."""
        return bool(self.settings["stagger"])

    @property
    def formats(self) -> Formats:
        """Formats of the tensors."""
        return MIXTURES[str(self.settings.get("formats", "fp32"))]

    @property
    def label(self) -> str:
        """Text of all settings of the point."""
        return ", ".join(f"{name}={plain(value)}" for name, value in self.settings.items())

    def options(self) -> BackendOptions:
        """Return the backend's options; the backend does not announce its builds.

        Unless the point sets it, a channel's memory is as large as the tensors need: at least the
        default of a simulated channel, at most the whole DRAM part.
        """
        settings = {
            name: value for name, value in self.settings.items() if name not in _NOT_OPTIONS
        }
        preset = str(self.settings["preset"])
        if not settings.keys() & {"capacity_bytes", "rows"}:
            settings["capacity_bytes"] = self._capacity_bytes(preset, settings)
        return BackendOptions(
            preset=preset,
            settings=settings,
            arithmetic=self.arithmetic,
            announce=lambda _: None,
        )

    def _capacity_bytes(self, preset: str, settings: Mapping[str, Value]) -> int:
        from hw.axdimm.config import configure

        # Staggering leaves a gap of at most one round of the banks before each tensor.
        turn_bytes = BANK_PAIRS * BANK_BLOCK_BYTES
        config = configure(preset, **settings)
        whole = config.capacity_bytes
        needed = sum(nbytes + turn_bytes for nbytes in self._tensor_bytes(config))
        capacity = min(whole, SIMULATED_CAPACITY_BYTES)
        while capacity < min(needed, whole):
            capacity *= 2
        return capacity

    def _tensor_bytes(self, config: ModuleConfig) -> list[int]:
        """Return the bytes of each tensor of the measured rule, the kernel's first."""
        rule = config.kernel.update_rules[0]
        names = self.formats.tensors(rule)
        return [self.formats.tensor_bytes(rule, name, self.count) for name in names]

    def config(self) -> ModuleConfig:
        """Return the configuration of the module to measure.

        Raise :class:`InvalidArgumentError`, naming the point, if the module is impossible or the
        tensors do not fit into it.
        """
        if self.count < 1:
            raise InvalidArgumentError(
                f"count is {self.count}: expected at least 1 parameter a channel"
            )
        try:
            config = module_config(self.options())
        except ValueError as error:
            raise InvalidArgumentError(f"the point {self.label} is impossible: {error}") from error
        memory = channel_memory(config.capacity_bytes, stagger=self.stagger)
        if not self.formats.usual and not config.narrow:
            raise InvalidArgumentError(
                f"the point {self.label} is impossible: its kernel has no narrow formats; take "
                "the preset axdimm_narrow"
            )
        if self.formats.narrow and self.count % BLOCK_PARAMETERS:
            raise InvalidArgumentError(
                f"the point {self.label} is impossible: with its formats count must be a multiple "
                f"of {BLOCK_PARAMETERS}"
            )
        sizes = self._tensor_bytes(config)
        try:
            for nbytes in sizes:
                memory.allocate(nbytes)
        except OutOfMemoryError as error:
            raise InvalidArgumentError(
                f"the point {self.label} is impossible: {len(sizes)} tensors of up "
                f"to {max(sizes):,} bytes do not fit into a channel of "
                f"{config.capacity_bytes:,} bytes; take a smaller count, or a capacity_bytes of at "
                f"least {least_capacity_bytes(sizes)}"
            ) from error
        return config

    def host_bytes(self) -> int:
        """Return about how many bytes of host memory a measurement takes.

        It counts the tensors of all channels, and the golden arithmetic for one channel at a time.
        """
        if self.backend == "cycles":
            return 0
        config = self.config()
        golden = self.count * PARAMETER_BYTES * GOLDEN_ARRAYS
        return sum(self._tensor_bytes(config)) * config.channels + golden

    def key(self) -> str:
        """Return a hash of everything that can change the result.

        Two descriptions of the same machine and job have the same key.
        """
        config = self.config()
        return content_key(
            [
                self.backend,
                str(self.arithmetic),
                str(self.count),
                str(self.stagger),
                str(self.formats),
                json.dumps(config.describe(), sort_keys=True),
                # Latencies of the units; of their operators the models use only this sum.
                str([rule.latency for rule in config.kernel.update_rules]),
                sources_key(self.backend),
            ]
        )


@dataclass(frozen=True, kw_only=True)
class Grid:
    """All combinations of the axes' values, on top of fixed settings."""

    backend: str
    fixed: Mapping[str, Value]
    axes: Mapping[str, Sequence[Value]]
    arithmetic: bool = True

    @classmethod
    def parse(
        cls,
        *,
        backend: str,
        config: str | None,
        counts: str | None,
        fixed: Sequence[str],
        axes: Sequence[str],
        arithmetic: bool = True,
    ) -> Grid:
        """Return the grid of a command line.

        ``fixed`` are ``KEY=VALUE``, ``axes`` are ``KEY=V1,V2,...``. ``counts`` is ``N`` or
        ``N,N,...``, by default :data:`SUSTAINED`. ``config`` is a preset, by default ``axdimm``, or
        a file, see :func:`~sw_driver.experiments.settings.read_grid`. Raise
        :class:`InvalidArgumentError` for an unknown key, a wrong value, or a repeated key.
        """
        counted = [] if counts is None else [f"count={counts}"]
        given = read_grid(config, fixed, [*axes, *counted])
        given.setdefault("count", [SUSTAINED])
        given.setdefault("preset", ["axdimm"])
        given.setdefault("stagger", [True])
        return cls(
            backend=backend,
            fixed={name: values[0] for name, values in given.items() if len(values) == 1},
            axes={name: values for name, values in given.items() if len(values) > 1},
            arithmetic=arithmetic and backend != "cycles",
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Keys of the points: fixed settings, then axes."""
        return (*self.fixed, *self.axes)

    def points(self) -> list[Point]:
        """Return all points; the last axis changes fastest.

        Raise the errors of :meth:`Point.config`.
        """
        result = [
            Point(
                backend=self.backend,
                settings={**self.fixed, **dict(zip(self.axes, values, strict=True))},
                arithmetic=self.arithmetic,
            )
            for values in product(*self.axes.values())
        ]
        for point in result:
            point.config()
        return result

    def label(self, row: Mapping[str, object], *, without: str | None = None) -> str:
        """Return the row's values on all axes but ``without``, as text."""
        return ", ".join(
            f"{name} {text_of(name, row[name])}"  # type: ignore[arg-type]
            for name in self.axes
            if name != without
        )
