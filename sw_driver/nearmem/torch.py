"""PyTorch on the simulated hardware: optimizers, and training in less memory.

An optimizer takes the arguments of its namesake in :mod:`torch.optim`. Its ``device`` is an opened
:class:`nearmem.Axdimm` or a backend's name.
"""

from sw_driver.torch import (
    SGD,
    Adagrad,
    Adam,
    Adam8bit,
    AdamW,
    AdamW8bit,
    Lion,
    RMSprop,
    StepHandle,
    StepReport,
)
from sw_driver.torch.memferry import MemFerry
from sw_driver.torch.offloading import DeviceMemory, Offloading
from sw_driver.torch.overlay import MemoryOverlay
from sw_driver.torch.sentinel import Sentinel
from sw_driver.torch.training import train_in

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "Adam8bit",
    "AdamW",
    "AdamW8bit",
    "DeviceMemory",
    "Lion",
    "MemFerry",
    "MemoryOverlay",
    "Offloading",
    "RMSprop",
    "Sentinel",
    "StepHandle",
    "StepReport",
    "train_in",
]
