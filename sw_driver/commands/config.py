"""``nearmem config``: the configurations there are, and one as a file."""

from __future__ import annotations

import argparse
import json
from typing import Any

from . import Refusal, add_output_options

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Describes the options."""
    parser = subparsers.add_parser(
        "config",
        help="list the configurations, or print one as a file",
        description="Lists the presets of the module, of the PIM and of the memory-node, or prints "
        "one of the first two, with changes, as a TOML file that --config of other commands takes.",
    )
    parser.add_argument("preset", nargs="?", metavar="PRESET|FILE", help="what to print")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a change to it"
    )
    add_output_options(parser, "it")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints."""
    from hw.memory_node.config import MEMORY_NODE_PRESETS
    from sw_driver.experiments.settings import (
        MODULE_KEYS,
        PIM_KEYS,
        SweepError,
        module_values,
        pim_values,
        read_settings,
        toml,
    )

    modules, pims = (keys["preset"].choices for keys in (MODULE_KEYS, PIM_KEYS))
    if arguments.preset is None:
        if arguments.set:
            raise Refusal("--set changes a configuration: name one")
        if arguments.json:
            nodes = list(MEMORY_NODE_PRESETS)
            print(json.dumps({"module": modules, "pim": pims, "memory-node": nodes}))
        elif not arguments.quiet:
            print(f"module: {', '.join(modules)}\npim: {', '.join(pims)}")
            print(f"memory-node (nearmem verilog --node): {', '.join(MEMORY_NODE_PRESETS)}")
        return 0
    # `tiny` is one of each; the module's is meant.
    pim = arguments.preset in pims and arguments.preset not in modules
    try:
        settings = read_settings(arguments.preset, arguments.set, PIM_KEYS if pim else MODULE_KEYS)
        values = pim_values(settings) if pim else module_values(settings)
    except (SweepError, ValueError) as error:
        raise Refusal(str(error)) from error
    if arguments.json:
        print(json.dumps(values, indent=2))
    elif not arguments.quiet:
        print(toml(values), end="")
    return 0
