"""Backends that execute the works of the PIM."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sw_driver.device.errors import InvalidArgumentError
from sw_driver.pim.ring import driver_place
from sw_driver.pim.transport import PimTransport

if TYPE_CHECKING:
    from hw.pim.config import PimConfig

__all__ = ["PIM_BACKENDS", "SIMULATED_BANK_BYTES", "Announce", "open_pim"]

SIMULATED_BANK_BYTES = 4 << 20
"""Bytes of a bank that suffice for a layer scaled for RTL.

The 8 GiB of the paper's stack would have to fit into the host's memory. Tensors are spread over all
of a bank and touch nearly every page of it.
"""


Announce = Callable[[str], None]
"""Callback that gets a message before a long preparation, such as a build."""


def _open_golden(config: PimConfig, _: Announce | None) -> PimTransport:
    from .golden import GoldenPim

    return GoldenPim(config)


def _open_rtl(
    config: PimConfig, announce: Announce | None, dram_trace: Path | None = None
) -> PimTransport:
    from .rtl import RtlPim

    return RtlPim(config, announce=announce, dram_trace=dram_trace)


def _open_cycles(config: PimConfig, _: Announce | None) -> PimTransport:
    from .cycles import CyclesPim

    # This backend serves works that are too large to compute.
    return CyclesPim(config, computes=False)


PIM_BACKENDS: dict[str, Callable[[PimConfig, Announce | None], PimTransport]] = {
    "golden": _open_golden,
    "rtl": _open_rtl,
    "cycles": _open_cycles,
}
"""Functions that open a backend, by its name."""


def open_pim(
    backend: str,
    config: PimConfig,
    *,
    announce: Announce | None = None,
    dram_trace: Path | None = None,
) -> PimTransport:
    """Open ``backend`` with a stack of ``config``.

    ``dram_trace``: see :class:`~sw_driver.pim.backends.rtl.RtlPim`.

    Raises :class:`~sw_driver.device.errors.InvalidArgumentError` for an unknown backend,
    :class:`~sw_driver.device.errors.OutOfMemoryError` if the memory has no room for the cores,
    ``ValueError`` for a trace with another backend than ``rtl``.
    """
    if backend not in PIM_BACKENDS:
        raise InvalidArgumentError(
            f"no PIM {backend!r}: expected one of {', '.join(PIM_BACKENDS)}", name=backend
        )
    if config.cores and backend != "rtl":
        raise InvalidArgumentError(
            f"{backend} has no cores, and the configuration has {config.cores}: take the backend "
            "'rtl'",
            cores=config.cores,
        )
    driver_place(config)  # Raises before anything is built.
    if dram_trace is None:
        return PIM_BACKENDS[backend](config, announce)
    if backend != "rtl":
        raise ValueError(
            f"a trace of DRAM commands to {str(dram_trace)!r} was requested, but the backend "
            f"{backend} has no DRAM: take the backend 'rtl'"
        )
    return _open_rtl(config, announce, dram_trace)
