"""The points of a sweep: what was asked for, checked as a whole before anything runs."""

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
"""Arrays of a tensor's size that the golden model has at once, intermediate results included."""

SUSTAINED = 4_194_304
"""Parameters of each channel on which refresh takes its share, as in the long run."""

_NOT_OPTIONS = ("preset", "count", "stagger", "formats")

_MEASURE = "sw_driver.experiments.sweep.measure"


@lru_cache
def sources_key(backend: str) -> str:
    """A name that changes with every source on which what ``backend`` measures depends."""
    every = {name: f"{backends.__name__}.{name}" for name in backends.BACKENDS}
    # Of the hardware, the models know the configuration, which is in a point's key as well.
    unused = set() if backend == "rtl" else sources.hardware_modules()
    files = sources.sources_of([every[backend]], apart_from={backends.__name__, *unused})
    files |= sources.sources_of([_MEASURE], apart_from={*every.values(), *unused})
    parts: list[str | bytes] = []
    for path in sorted(files):
        parts += [path.relative_to(sources.ROOT).as_posix(), path.read_bytes()]
    return content_key(parts)


@dataclass(frozen=True, kw_only=True)
class Point:
    """One configuration and one job, to be measured."""

    backend: str
    settings: Mapping[str, Value]
    """The point's settings by key; ``preset``, ``count`` and ``stagger`` are always there."""
    arithmetic: bool = True
    """Whether the RTL is built with the units' arithmetic: without it cycles are the same, but
    outputs are others. The model of the cycles never computes more than those."""

    @property
    def count(self) -> int:
        """Parameters of each channel."""
        return int(self.settings["count"])

    @property
    def stagger(self) -> bool:
        """Whether the driver spreads the tensors over the banks."""
        return bool(self.settings["stagger"])

    @property
    def formats(self) -> Formats:
        """Those of the tensors."""
        return MIXTURES[str(self.settings.get("formats", "fp32"))]

    @property
    def label(self) -> str:
        """The point in words."""
        return ", ".join(f"{name}={plain(value)}" for name, value in self.settings.items())

    def options(self) -> BackendOptions:
        """Options for the backend, which builds in silence: the sweep shows what goes on. Unless
        the point says otherwise a channel has as much memory as the tensors need, from what a
        simulated channel has by default up to all of its part."""
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

        # Staggering leaves a gap of at most a turn of the banks before each tensor.
        turn_bytes = BANK_PAIRS * BANK_BLOCK_BYTES
        config = configure(preset, **settings)
        whole = config.capacity_bytes
        needed = sum(nbytes + turn_bytes for nbytes in self._tensor_bytes(config))
        capacity = min(whole, SIMULATED_CAPACITY_BYTES)
        while capacity < min(needed, whole):
            capacity *= 2
        return capacity

    def _tensor_bytes(self, config: ModuleConfig) -> list[int]:
        """Bytes of the tensors of the rule that is measured, the kernel's first."""
        rule = config.kernel.update_rules[0]
        names = self.formats.tensors(rule)
        return [self.formats.tensor_bytes(rule, name, self.count) for name in names]

    def config(self) -> ModuleConfig:
        """The module to be measured.

        Raises :class:`InvalidArgumentError`, naming the point, if there is no such module or the
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
        """Bytes of the host's memory that measuring takes, about: the tensors of all channels, and
        what the golden arithmetic needs for one channel at a time."""
        if self.backend == "cycles":
            return 0
        config = self.config()
        golden = self.count * PARAMETER_BYTES * GOLDEN_ARRAYS
        return sum(self._tensor_bytes(config)) * config.channels + golden

    def key(self) -> str:
        """Names what is measured: the same however the point was described, another whenever the
        result could be another."""
        config = self.config()
        return content_key(
            [
                self.backend,
                str(self.arithmetic),
                str(self.count),
                str(self.stagger),
                str(self.formats),
                json.dumps(config.describe(), sort_keys=True),
                # What the operators of a unit take, which the models know by its sum alone.
                str([each.latency for each in config.kernel.update_rules]),
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
        """The grid of a command line: ``fixed`` are ``KEY=VALUE``, ``axes`` ``KEY=V1,V2,...``.

        ``counts`` are ``N`` or ``N,N,...``, default :data:`SUSTAINED`; ``config`` is a preset,
        default ``axdimm``, or a file, see :func:`~sw_driver.experiments.settings.read_grid`. Raises
        :class:`InvalidArgumentError` for an unknown key, a value that is not one of its key, and
        what is given twice.
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
        """Keys of the points: first the fixed ones, then the axes."""
        return (*self.fixed, *self.axes)

    def points(self) -> list[Point]:
        """All points, the last axis fastest. Raises what :meth:`Point.config` raises."""
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
        """What tells a row from the grid's others, apart from the axis ``without``."""
        return ", ".join(
            f"{name} {text_of(name, row[name])}"  # type: ignore[arg-type]
            for name in self.axes
            if name != without
        )
