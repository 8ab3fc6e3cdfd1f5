"""One point of a sweep, on a device of its own."""

from __future__ import annotations

from typing import Any

from sw_driver.axdimm import Axdimm
from sw_driver.axdimm.measure import FIGURES, measure_step

from .grid import Point

__all__ = ["failed", "measure_point"]


def measure_point(point: Point) -> dict[str, Any]:
    """The figures of a point, on a device opened for it.

    A point that fails has all :data:`~sw_driver.axdimm.measure.FIGURES` None but ``error``, which
    says why.
    """
    try:
        config = point.config()
        with Axdimm(point.backend, stagger=point.stagger, options=point.options()) as device:
            # The golden model need not be compared with itself.
            check = point.backend == "rtl" and point.arithmetic
            return measure_step(device, config, point.count, check=check, formats=point.formats)
    except Exception as error:  # one point must not end the sweep, whatever it is
        return failed(f"{type(error).__name__}: {error}")


def failed(error: str) -> dict[str, Any]:
    """The figures of a point that has none."""
    return {**dict.fromkeys(FIGURES), "error": " ".join(error.split())}
