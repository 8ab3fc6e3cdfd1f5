"""Backends: the transports behind device names."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sw_driver.axdimm.transport import Transport
from sw_driver.device.errors import InvalidArgumentError
from sw_driver.numbers import check_integer

if TYPE_CHECKING:
    from hw.axdimm.config import ModuleConfig

__all__ = [
    "BACKENDS",
    "SIMULATED_CAPACITY_BYTES",
    "BackendOptions",
    "module_config",
    "open_backend",
    "parse_device",
]

SIMULATED_CAPACITY_BYTES = 64 << 20
"""Bytes of a simulated channel, unless the options give a size or the preset has less.

The paper's 16 GB a channel would have to fit into the host's memory.
"""


@dataclass(frozen=True, kw_only=True)
class BackendOptions:
    """Settings of a backend; None keeps the preset's value.

    Examples
    --------
    >>> options = BackendOptions(settings={"rules": ("sgd", "momentum"), "lanes": 4})
    >>> config = module_config(options)
    >>> config.rules, config.lanes, config.capacity_bytes
    (('sgd', 'momentum'), 4, 67108864)
    >>> open_backend("golden", BackendOptions(arithmetic=False))
    Traceback (most recent call last):
        ...
    ValueError: the golden backend only does arithmetic: without it use 'rtl' or 'cycles'
    """

    preset: str | None = None
    """Name of a module configuration; None for the paper's machine."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Changes to the preset, such as the update rules: ``{"rules": ("sgd", "momentum")}``.

    See :func:`hw.axdimm.config.configure`. Without ``capacity_bytes`` and ``rows`` a channel has
    :data:`SIMULATED_CAPACITY_BYTES`, or the preset's size if that is less.
    """
    arithmetic: bool = True
    """False to leave out the arithmetic: the same cycles in less host time, meaningless data.

    On ``rtl`` a delay replaces each functional unit. On ``cycles`` there is no memory.
    """
    wave: str | os.PathLike[str] | None = None
    """File for a waveform (FST). It has the internals of the first functional unit only."""
    wave_window: tuple[int, int] | None = None
    """Start and exclusive end of the waveform, in fabric cycles of the module; None for all."""
    dram_trace: str | os.PathLike[str] | None = None
    """File for the DRAM commands (CSV)."""
    announce: Callable[[str], None] | None = None
    """Function called with a message when the simulator must be built; None for stderr."""


def parse_device(name: str) -> tuple[str, str | None]:
    """Split ``BACKEND[:PRESET]`` into the backend and the preset or None.

    Raises :class:`InvalidArgumentError` for an unknown name.
    """
    backend, colon, preset = name.partition(":")
    if backend not in BACKENDS:
        raise InvalidArgumentError(
            f"no device {name!r}: expected one of {', '.join(BACKENDS)}, with a configuration "
            "after a colon if wanted",
            name=name,
        )
    if not colon:
        return backend, None
    from hw.axdimm.config import MODULE_PRESETS

    if preset not in MODULE_PRESETS:
        raise InvalidArgumentError(
            f"no device {name!r}: expected one of the configurations {', '.join(MODULE_PRESETS)}",
            name=name,
        )
    return backend, preset


def open_backend(name: str, options: BackendOptions | None = None) -> Transport:
    """Open the backend ``name`` or ``name:preset``.

    Raises :class:`InvalidArgumentError` for an unknown name and ``ValueError`` for settings that
    the backend or the configuration refuses. Opening ``rtl`` first builds the simulator if these
    sources and settings have not been built yet, which takes about a minute.
    """
    backend, preset = parse_device(name)
    settings = options or BackendOptions()
    _check_window(settings)
    if preset is not None:
        settings = replace(settings, preset=preset)
    return BACKENDS[backend](settings)


def module_config(options: BackendOptions) -> ModuleConfig:
    """Return the module configuration of ``options``.

    Raises ``ValueError`` if there is none, or if its memory or host cannot be simulated.
    """
    from hw.axdimm.config import configure

    settings = options.settings
    config = configure(*[options.preset] if options.preset else [], **settings)
    if config.memory != "ddr4":
        raise ValueError(
            f"memory is {config.memory!r}, a port for an external controller, which only 'nearmem "
            "verilog' supports: simulate with memory 'ddr4'"
        )
    sized = settings.keys() & {"capacity_bytes", "rows"}
    if config.host != "link":
        raise ValueError(
            f"the backends simulate a host on the link, got host={config.host!r}: leave it out; it "
            "is a setting of 'nearmem verilog'"
        )
    if not sized and config.capacity_bytes > SIMULATED_CAPACITY_BYTES:
        config = config.with_capacity(SIMULATED_CAPACITY_BYTES)
    return config


def _check_window(options: BackendOptions) -> None:
    """Raise :class:`InvalidArgumentError` for an impossible window of a waveform."""
    window = options.wave_window
    if window is None:
        return
    if options.wave is None:
        raise InvalidArgumentError(f"wave_window is {window}, but wave is None: name a file, too")
    begin, until = (check_integer("wave_window", cycle, 0, 2**63) for cycle in window)
    if begin >= until:
        raise InvalidArgumentError(
            f"wave_window is {window}: expected the first fabric cycle, and a later one before "
            "which the waveform ends"
        )


def _refuse_files(name: str, options: BackendOptions) -> None:
    for kind, path in (("waveform", options.wave), ("trace of DRAM commands", options.dram_trace)):
        if path is not None:
            raise ValueError(
                f"the {name} backend has no signals and cannot write a {kind} to {str(path)!r}: "
                "use the backend 'rtl'"
            )


def _open_golden(options: BackendOptions) -> Transport:
    from .golden import GoldenTransport, golden_settings

    _refuse_files("golden", options)
    if not options.arithmetic:
        raise ValueError(
            "the golden backend only does arithmetic: without it use 'rtl' or 'cycles'"
        )
    return GoldenTransport(**golden_settings(module_config(options)))


def _open_cycles(options: BackendOptions) -> Transport:
    from .cycles import CyclesTransport

    _refuse_files("cycles", options)
    return CyclesTransport(module_config(options), arithmetic=options.arithmetic)


def _open_rtl(options: BackendOptions) -> Transport:
    for cycle in options.wave_window or ():
        check_integer("a fabric cycle of wave_window", cycle, 0, 2**64 - 1)
    from sw_driver.axdimm.backends.rtl import VerilatedTransport

    return VerilatedTransport(
        config=module_config(options),
        arithmetic=options.arithmetic,
        wave=None if options.wave is None else Path(options.wave),
        wave_window=options.wave_window,
        dram_trace=None if options.dram_trace is None else Path(options.dram_trace),
        announce=options.announce,
    )


BACKENDS: dict[str, Callable[[BackendOptions], Transport]] = {
    "rtl": _open_rtl,
    "golden": _open_golden,
    "cycles": _open_cycles,
}
"""Functions that open the backends, by name."""
