"""``nearmem cache``: the simulators that were built."""

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
    """remove all of them"""


def run(options: Annotated[Options, FLAT] = Options()) -> int:
    """List the simulators that were built, or remove them.

    Lists what was built and is kept, so that it need not be built again: in the user's cache, or in
    $NEARMEM_CACHE_DIR. Beyond 2 GiB, builds that were not used for longest are removed.
    """
    from sw_driver.simulator.buildcache import report

    return show(report(clear=options.clear), options)
