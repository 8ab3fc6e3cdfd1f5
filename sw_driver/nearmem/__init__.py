"""Near-memory training hardware, simulated: the public API under one name.

:class:`Axdimm` is the memory module with its kernels. :class:`Pim` is the memory stack with
fixed-function units. :class:`DeviceNode` is a device beside memory-nodes. Devices that get the same
:class:`Clock` share their time. :mod:`nearmem.torch` has the PyTorch optimizers,
:mod:`nearmem.errors` the exceptions. The other packages are ``sw_driver`` (machines, workloads,
systems), ``hw`` (the hardware and its configuration) and ``golden`` (the reference models).
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
