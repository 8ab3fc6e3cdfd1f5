"""Measurement of a sweep's point, on its own device."""

from __future__ import annotations

from typing import Any

from sw_driver.axdimm import Axdimm
from sw_driver.axdimm.measure import FIGURES, measure_step

from .grid import Point

__all__ = ["failed", "measure_point"]


def measure_point(point: Point) -> dict[str, Any]:
    """Return the figures of a point, on a device opened for it.

    For a point that fails, all :data:`~sw_driver.axdimm.measure.FIGURES` are None except ``error``,
    which has the reason.
    """
    try:
        config = point.config()
        with Axdimm(point.backend, stagger=point.stagger, options=point.options()) as device:
            # The golden model need not be compared with itself.
            check = point.backend == "rtl" and point.arithmetic
            return measure_step(device, config, point.count, check=check, formats=point.formats)
    except Exception as error:  # no failure of a point may end the sweep
        return failed(f"{type(error).__name__}: {error}")


def failed(error: str) -> dict[str, Any]:
    """Return the figures of a failed point."""
    return {**dict.fromkeys(FIGURES), "error": " ".join(error.split())}
