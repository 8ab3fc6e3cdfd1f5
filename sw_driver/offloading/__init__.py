"""Training with tensors kept on the module, and storage behind it (paper sections 5.2 and 5.3)."""

from .entries import StoreStatistics
from .store import TensorStore

__all__ = ["StoreStatistics", "TensorStore"]
