"""How simulators are compiled: to be fast, or to be ready soon."""

from __future__ import annotations

import os
from dataclasses import dataclass

__all__ = ["PROFILES", "BuildProfile", "chosen_profile"]


@dataclass(frozen=True, kw_only=True)
class BuildProfile:
    """The compiler's work on a simulator."""

    optimization: str
    """The compiler's option for what is run in every cycle."""
    once: str
    """The compiler's option for what is run once."""
    output_split: int
    """Size of Verilator's files, as its ``--output-split``; 0: all is compiled as one."""
    precompiled: bool
    """Whether Verilator's headers are compiled beforehand, for all simulators: 140 MB on the disk
    for a second less a file."""


PROFILES = {
    "fast": BuildProfile(optimization="-O2", once="-O0", output_split=20000, precompiled=False),
    "quick": BuildProfile(optimization="-Og", once="-Og", output_split=0, precompiled=True),
}
"""Profiles by name: ``fast`` is the one for use. ``quick`` is for tests, which build many
simulators and run each for a short time."""


def chosen_profile() -> BuildProfile:
    """The profile that the environment variable ``NEARMEM_BUILD_PROFILE`` names, else ``fast``.

    Raises ``ValueError`` for another name.
    """
    name = os.environ.get("NEARMEM_BUILD_PROFILE", "fast")
    if name not in PROFILES:
        raise ValueError(
            f"NEARMEM_BUILD_PROFILE must be one of {', '.join(PROFILES)}, got {name!r}"
        )
    return PROFILES[name]
