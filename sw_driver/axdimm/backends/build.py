"""Builds the Verilated channel as a shared library."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hw.axdimm.config import ModuleConfig
from hw.dram.timing import DramTiming

from ...simulator.library import MAKE_ARGS, verilated_library, verilator_args

__all__ = ["build_library"]

_STORAGE = "channel__DOT__dram__DOT__device__DOT__mem"
"""Verilator's name of the DRAM model's array, see :mod:`hw.sim.channel`."""

_VERILATOR_ARGS = verilator_args("channel", f"-DNEARMEM_STORAGE={_STORAGE}")
_MAKE_ARGS = MAKE_ARGS

# One copy of the code of a functional unit, run for each of them: it stays in the cache.
_SETTINGS = '`verilator_config\nno_inline -module "adam_unit"\n'


def build_library(
    config: ModuleConfig,
    *,
    wave: bool = False,
    announce: Callable[[str], None] | None = None,
    memory_timing: DramTiming | None = None,
    arithmetic: bool = True,
    shared: bool = False,
) -> Path:
    """The shared library of ``config``, built unless one of the same sources is there.

    ``wave`` and ``announce`` are those of :func:`~sw_driver.simulator.library.verilated_library`,
    the rest is that of :class:`hw.sim.channel.SimulatedChannel`.

    Raises :class:`~sw_driver.simulator.runtime.BuildError`.
    """

    def design() -> Any:
        from hw.sim.channel import SimulatedChannel

        return SimulatedChannel(
            config, memory_timing=memory_timing, arithmetic=arithmetic, shared=shared
        )

    return verilated_library(
        design,
        top="channel",
        parameters=[
            json.dumps(config.describe(), sort_keys=True),
            repr(memory_timing),
            repr((arithmetic, shared)),
        ],
        harness=Path(__file__).with_name("harness.cpp"),
        arguments=_VERILATOR_ARGS,
        make_arguments=_MAKE_ARGS,
        settings=_SETTINGS,
        unused=["pim"],
        wave=wave,
        announce=announce,
    )
