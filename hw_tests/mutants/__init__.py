"""Small faults, one line each, and the test that must see each of them.

Each file ``AREA.toml`` beside this one lists mutants of one area of the source. ``make mutate``
draws some, applies each in a copy of the tree and runs its test: a test that passes there guards
nothing.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ROOT", "Mutant", "load_mutants"]

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A fault in one line of a source file."""

    name: str
    """Unique name, ``AREA/...``."""
    file: str
    """Source file, relative to the root of the project."""
    line: str
    """Line as it is, without its indentation; stands once in the file."""
    becomes: str
    """Line with the fault, without its indentation."""
    test: str
    """Test that must fail with it, as pytest names it."""

    def apply(self, root: Path) -> None:
        """Put the fault into the tree at ``root``.

        Raise ``ValueError`` if the line is not there, or is not unique.
        """
        path = root / self.file
        lines = path.read_text().splitlines(keepends=True)
        places = [number for number, text in enumerate(lines) if text.strip() == self.line]
        if len(places) != 1:
            raise ValueError(
                f"mutant {self.name}: the line {self.line!r} stands {len(places)} times in "
                f"{self.file}, expected once: mend its entry"
            )
        lines[places[0]] = lines[places[0]].replace(self.line, self.becomes)
        path.write_text("".join(lines))


def load_mutants() -> list[Mutant]:
    """Return all mutants, ordered by name."""
    mutants = [
        Mutant(**entry | {"name": f"{path.stem}/{entry['name']}"})
        for path in sorted(FOLDER.glob("*.toml"))
        for entry in tomllib.loads(path.read_text())["mutant"]
    ]
    return sorted(mutants, key=lambda mutant: mutant.name)
