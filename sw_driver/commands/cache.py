"""``nearmem cache``: builds of simulators on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from . import FLAT, OutputOptions
from .screen import show

__all__ = ["Options", "run"]


@dataclass(frozen=True, kw_only=True)
class Options(OutputOptions):
    """Options of the command."""

    clear: bool = False
    """remove all builds"""


def run(options: Annotated[Options, FLAT] = Options()) -> int:
    """List the simulators that are already built on this machine, or remove them.

    Commands reuse the builds in the user's cache, or in $NEARMEM_CACHE_DIR. Above 2 GiB, the least
    recently used builds are removed.

    Example: nearmem cache
    """
    from sw_driver.simulator.buildcache import report

    return show(report(clear=options.clear), options)
