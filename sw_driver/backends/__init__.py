"""Backends: what a device name stands for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sw_driver.errors import NoSuchDeviceError
from sw_driver.transport import Transport

if TYPE_CHECKING:
    from hw.axdimm.config import ModuleConfig

__all__ = [
    "BACKENDS",
    "SIMULATED_CAPACITY_BYTES",
    "BackendOptions",
    "module_config",
    "open_backend",
]

SIMULATED_CAPACITY_BYTES = 64 << 20
"""Bytes of a channel unless the options say otherwise or the preset has less.

The paper's 16 GB a channel would have to fit into the host's memory.
"""


@dataclass(frozen=True, kw_only=True)
class BackendOptions:
    """Settings of a backend; None leaves what the preset says."""

    preset: str | None = None
    """Name of a configuration of the module; None is the paper's machine."""
    lanes: int | None = None
    block_bytes: int | None = None
    capacity_bytes: int | None = None
    """Bytes of each channel; None is :data:`SIMULATED_CAPACITY_BYTES` or the preset's, if less."""
    wave: Path | None = None
    """Where to write a waveform (FST)."""
    dram_trace: Path | None = None
    """Where to write the DRAM commands (CSV)."""
    announce: Callable[[str], None] | None = None
    """Told what takes long, such as building the simulator."""


def open_backend(name: str, options: BackendOptions | None = None) -> Transport:
    """Opens the backend ``name``, or ``name:preset``.

    Raises :class:`NoSuchDeviceError` for a name that is none and ``ValueError`` for settings that
    the backend or the configuration refuses. Opening ``rtl`` builds the simulator first if these
    sources and settings have not been built yet, which takes about a minute.
    """
    backend, colon, preset = name.partition(":")
    opener = BACKENDS.get(backend)
    if opener is None:
        raise NoSuchDeviceError(
            f"no device {name!r}: expected one of {', '.join(BACKENDS)}, with a configuration "
            "after a colon if wanted",
            name=name,
        )
    settings = options or BackendOptions()
    if colon:
        settings = replace(settings, preset=preset)
    return opener(settings)


def module_config(options: BackendOptions) -> ModuleConfig:
    """The configuration that ``options`` stand for. Raises ``ValueError`` if there is none."""
    from hw.axdimm.config import configure

    wanted = {
        "lanes": options.lanes,
        "block_bytes": options.block_bytes,
        "capacity_bytes": options.capacity_bytes,
    }
    given: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
    config = configure(options.preset, **given) if options.preset else configure(**given)
    if options.capacity_bytes is None and config.capacity_bytes > SIMULATED_CAPACITY_BYTES:
        config = config.with_capacity(SIMULATED_CAPACITY_BYTES)
    return config


def _open_golden(options: BackendOptions) -> Transport:
    from .golden import GoldenTransport

    for name, path in (("waveform", options.wave), ("trace of DRAM commands", options.dram_trace)):
        if path is not None:
            raise ValueError(
                f"a {name} to {str(path)!r} was asked for, but the golden backend has no clock and "
                "writes none: use the backend 'rtl'"
            )
    config = module_config(options)
    return GoldenTransport(
        channels=config.channels,
        capacity_bytes=config.capacity_bytes,
        lanes=config.lanes,
        block_bytes=config.block_bytes,
    )


def _open_rtl(options: BackendOptions) -> Transport:
    from sw_driver.verilated.transport import VerilatedTransport

    return VerilatedTransport(
        config=module_config(options),
        wave=options.wave,
        dram_trace=options.dram_trace,
        announce=options.announce,
    )


BACKENDS: dict[str, Callable[[BackendOptions], Transport]] = {
    "rtl": _open_rtl,
    "golden": _open_golden,
}
"""How each backend is opened, by its name."""
