"""Version and commit of the program, for reports."""

from __future__ import annotations

import subprocess
from importlib.metadata import version
from pathlib import Path

__all__ = ["provenance"]

_ROOT = Path(__file__).resolve().parents[2]


def provenance() -> dict[str, str | None]:
    """Return the package's ``version``, and its ``commit`` in a checkout, else None.

    The commit ends in ``+changes`` if files of the checkout were changed since.
    """
    commit = None
    if (_ROOT / ".git").exists():
        command = ["git", "--no-optional-locks", "-C", str(_ROOT), "describe", "--always"]
        options = ["--exclude=*", "--abbrev=40", "--dirty=+changes"]
        try:
            done = subprocess.run(
                [*command, *options], capture_output=True, text=True, check=True, timeout=10
            )
            commit = done.stdout.strip()
        except (OSError, subprocess.SubprocessError):
            pass
    return {"version": version("nearmem"), "commit": commit}
