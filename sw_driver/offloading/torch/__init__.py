"""Training models larger than the device's memory with PyTorch (paper sections 5.1 to 5.3)."""

import sw_driver.torch  # noqa: F401  # says so where PyTorch is missing

from .memory import DeviceMemory
from .optimizer import OffloadedOptimizer
from .platform import Offloading

__all__ = ["DeviceMemory", "OffloadedOptimizer", "Offloading"]
