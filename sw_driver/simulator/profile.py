"""Compiler settings of simulators: for fast simulation, or for short builds."""

from __future__ import annotations

import os
from dataclasses import dataclass

__all__ = ["PROFILES", "BuildProfile", "chosen_profile"]


@dataclass(frozen=True, kw_only=True)
class BuildProfile:
    """Compiler settings of a simulator."""

    optimization: str
    """Optimization option of code that runs in every cycle."""
    once: str
    """Optimization option of code that runs once."""
    output_split: int
    """Size of Verilator's files, as its ``--output-split``; 0 for a single file."""
    precompiled: bool
    """True to precompile Verilator's headers for all simulators.

    It costs 140 MB of disk space and saves a second for each file.
    """


PROFILES = {
    "fast": BuildProfile(optimization="-O2", once="-O0", output_split=20000, precompiled=False),
    "quick": BuildProfile(optimization="-Og", once="-Og", output_split=0, precompiled=True),
}
"""Profiles by name. ``fast`` is for normal use.

``quick`` is for tests, which build many simulators and run each for a short time.
"""


def chosen_profile() -> BuildProfile:
    """Return the profile named by ``NEARMEM_BUILD_PROFILE``, by default ``fast``.

    Raises ``ValueError`` for an unknown name.
    """
    name = os.environ.get("NEARMEM_BUILD_PROFILE", "fast")
    if name not in PROFILES:
        raise ValueError(
            f"NEARMEM_BUILD_PROFILE must be one of {', '.join(PROFILES)}, got {name!r}"
        )
    return PROFILES[name]
