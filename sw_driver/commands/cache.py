"""``nearmem cache``: the simulators that were built."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import Annotated

from . import FLAT, OutputOptions
from .screen import print_table

__all__ = ["Options", "run"]

MIB = 1 << 20


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
    from rich.table import Table

    from sw_driver.simulator.buildcache import (
        cache_root,
        cached_builds,
        remove_builds,
        remove_remains,
    )

    builds = cached_builds()
    total_bytes = sum(build.size_bytes for build in builds)
    if options.clear:
        remove_builds(builds)
        remove_remains()
    if options.json:
        listed = [{**asdict(build), "folder": str(build.folder)} for build in builds]
        print(json.dumps({"removed": options.clear, "builds": listed}, indent=2))
        return 0
    if options.quiet:
        return 0
    table = Table("build", "MiB", "last used")
    for build in builds:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(build.used_at))
        table.add_row(build.about, f"{build.size_bytes / MIB:.1f}", used)
    if builds:
        print_table(table)
    what = "removed from" if options.clear else "in"
    print(f"{len(builds)} builds, {total_bytes / MIB:.1f} MiB, {what} {cache_root()}")
    return 0
