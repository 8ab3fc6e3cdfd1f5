"""Training with tensors on the module and storage behind it (paper sections 5.1 to 5.3)."""

from .channel import StoreStatistics
from .optimizer import OffloadedOptimizer
from .platform import Offloading
from .policy import DeviceMemory
from .store import TensorStore

__all__ = ["DeviceMemory", "OffloadedOptimizer", "Offloading", "StoreStatistics", "TensorStore"]
