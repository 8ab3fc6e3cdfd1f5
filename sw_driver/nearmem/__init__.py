"""Near-memory training hardware, simulated: what a program needs of it, under one name.

The module with its memory and kernels is :class:`Axdimm`, the stack of memory with fixed-function
units :class:`Pim`, a device beside memory-nodes :class:`DeviceNode`; devices that are given one
:class:`Clock` share their time. :mod:`nearmem.torch` has the optimizers of PyTorch,
:mod:`nearmem.errors` all that is raised. The rest is in the packages ``sw_driver`` (machines,
workloads, systems), ``hw`` (the hardware and its configuration) and ``golden`` (its oracles).
"""

from importlib.metadata import version as _version

from sw_driver.axdimm import Axdimm, BackendOptions, Formats, MappedTransport
from sw_driver.device.clock import Clock
from sw_driver.memory_node import DeviceNode, Direction, Placement
from sw_driver.pim.device import Pim

from . import errors

__version__ = _version("nearmem")

__all__ = [
    "Axdimm",
    "BackendOptions",
    "Clock",
    "DeviceNode",
    "Direction",
    "Formats",
    "MappedTransport",
    "Pim",
    "Placement",
    "__version__",
    "errors",
]
