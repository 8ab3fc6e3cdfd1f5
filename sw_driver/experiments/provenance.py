"""Which program made a figure."""

from __future__ import annotations

import os
import subprocess
from importlib.metadata import version
from pathlib import Path

__all__ = ["provenance"]


def provenance() -> dict[str, str | None]:
    """The package's ``version``, and the ``commit`` if it runs from a checkout, else None.

    ``+changes`` behind the commit: the checkout has what is not in it.
    """
    return {"version": version("nearmem"), "commit": _commit(Path(__file__).resolve().parents[2])}


def _commit(root: Path) -> str | None:
    if not (root / ".git").exists():
        return None
    found = []
    for command in (["rev-parse", "HEAD"], ["status", "--porcelain"]):
        try:
            done = subprocess.run(
                ["git", "-C", str(root), *command],
                env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},  # it only looks
                capture_output=True,
                text=True,
                check=True,
                timeout=10,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        found.append(done.stdout.strip())
    commit, changes = found
    return f"{commit}+changes" if changes else commit
