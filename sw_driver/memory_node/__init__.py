"""Memory of a device and its two memory-nodes, with the API of the paper's Table I.

Kwon and Rhu, "Beyond the Memory Wall: A Case for Memory-centric HPC System for Deep Learning"
(MICRO 2018), section III-B.
"""

from .address_space import Placement
from .compression import CompressionStatistics
from .device import DeviceNode, Direction
from .streams import Event, Stream

__all__ = ["CompressionStatistics", "DeviceNode", "Direction", "Event", "Placement", "Stream"]
