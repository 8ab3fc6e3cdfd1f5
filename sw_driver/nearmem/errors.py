"""Exceptions of the driver."""

from sw_driver.device.errors import *  # noqa: F403
from sw_driver.device.errors import __all__ as __all__
