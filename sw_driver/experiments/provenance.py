"""Which program made a figure."""

from __future__ import annotations

import subprocess
from importlib.metadata import version
from pathlib import Path

__all__ = ["provenance"]

_ROOT = Path(__file__).resolve().parents[2]


def provenance() -> dict[str, str | None]:
    """The package's ``version``, and the ``commit`` if it runs from a checkout, else None.

    ``+changes`` behind the commit: files of the checkout are not as they are there.
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
