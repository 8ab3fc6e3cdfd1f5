"""The AXDIMM module: the runtime's API, and the devices behind it."""

from hw.narrow.formats import Formats

from ..device.memory import AxdimmPointer, MemoryStatistics
from .backends import BackendOptions, open_backend
from .backends.mapped import MappedTransport
from .channel import CopiedBytes, Mode, ModePolicy
from .device import Axdimm, Configuration
from .runs import KernelRun, RunResult

AdamResult, AdamRun = RunResult, KernelRun
"""Aliases of the result and the handle of a run, for Adam."""

__all__ = [
    "AdamResult",
    "AdamRun",
    "Axdimm",
    "AxdimmPointer",
    "BackendOptions",
    "Configuration",
    "CopiedBytes",
    "Formats",
    "KernelRun",
    "MappedTransport",
    "MemoryStatistics",
    "Mode",
    "ModePolicy",
    "RunResult",
    "open_backend",
]
