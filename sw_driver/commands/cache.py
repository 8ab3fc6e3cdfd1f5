"""``nearmem cache``: the simulators that were built."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from typing import Any

from . import add_output_options, print_table

__all__ = ["add_parser", "run"]

MIB = 1 << 20


def add_parser(subparsers: Any) -> None:
    """Describes the options."""
    parser = subparsers.add_parser(
        "cache",
        help="list the simulators that were built, or remove them",
        description="Lists what was built and is kept, so that it need not be built again: in the "
        "user's cache, or in $NEARMEM_CACHE_DIR. Beyond 2 GiB, builds that were not used for "
        "longest are removed.",
    )
    parser.add_argument("--clear", action="store_true", help="remove all of them")
    add_output_options(parser, "the list")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Lists or removes."""
    from rich.table import Table

    from sw_driver.simulator.buildcache import cache_root, cached_builds, remove_builds

    builds = cached_builds()
    total_bytes = sum(build.size_bytes for build in builds)
    if arguments.clear:
        remove_builds(builds)
    if arguments.json:
        listed = [{**asdict(build), "folder": str(build.folder)} for build in builds]
        print(json.dumps({"removed": arguments.clear, "builds": listed}, indent=2))
        return 0
    if arguments.quiet:
        return 0
    table = Table("build", "MiB", "last used")
    for build in builds:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(build.used_at))
        table.add_row(build.about, f"{build.size_bytes / MIB:.1f}", used)
    if builds:
        print_table(table)
    what = "removed from" if arguments.clear else "in"
    print(f"{len(builds)} builds, {total_bytes / MIB:.1f} MiB, {what} {cache_root()}")
    return 0
