"""Training with tensors on the module and storage behind it (paper sections 5.1 to 5.3)."""

from .optimizer import OffloadedOptimizer
from .policy import DeviceMemory, Offloading
from .store import ModuleStore, StoreStatistics

__all__ = ["DeviceMemory", "ModuleStore", "OffloadedOptimizer", "Offloading", "StoreStatistics"]
