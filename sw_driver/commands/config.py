"""``nearmem config``: the configurations there are, and one as a file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from . import FLAT, OutputOptions, Refusal, Settings, turning
from .screen import print_prose

__all__ = ["Options", "run"]


@dataclass(frozen=True, kw_only=True)
class Options(OutputOptions):
    """Options of the command."""

    set: Settings = ()
    """a change to it; may be given several times"""


def run(
    preset: Annotated[str | None, Parameter(metavar="PRESET|FILE")] = None,
    /,
    options: Annotated[Options, FLAT] = Options(),
) -> int:
    """List the configurations, or print one as a file.

    Lists the presets of the module, of the PIM and of the memory-node, or prints one of the first
    two, with changes, as a TOML file that --config of other commands takes.

    Parameters
    ----------
    preset
        what to print, a preset or a file
    """
    from hw.axdimm.config import MODULE_PRESETS
    from hw.memory_node.config import MEMORY_NODE_PRESETS
    from hw.pim.config import PIM_PRESETS
    from sw_driver.experiments.settings import (
        MODULE_KEYS,
        PIM_KEYS,
        meanings,
        module_values,
        pim_values,
        read_settings,
        toml,
    )

    if preset is None:
        if options.set:
            raise Refusal("--set changes a configuration: name one")
        known = {"module": MODULE_PRESETS, "pim": PIM_PRESETS, "memory-node": MEMORY_NODE_PRESETS}
        if options.json:
            print(json.dumps({name: list(presets) for name, presets in known.items()}))
        elif not options.quiet:
            for name, presets in known.items():
                print_prose(f"{name}: {', '.join(presets)}")
        return 0
    # `tiny` is one of each; the module's is meant.
    pim = preset in PIM_PRESETS and preset not in MODULE_PRESETS
    keys = PIM_KEYS if pim else MODULE_KEYS
    settings = read_settings(preset, options.set, keys)
    with turning(ValueError, into=Refusal):
        values = pim_values(settings) if pim else module_values(settings)
    if options.json:
        print(json.dumps(values, indent=2))
    elif not options.quiet:
        print(toml(values, meanings(keys)), end="")
    return 0
