"""What the project's modules import, for the test of its rooms."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

__all__ = ["ROOT", "imported", "modules"]

ROOT = Path(__file__).parents[1]
"""The folder of the packages."""


def modules() -> dict[str, Path]:
    """The project's modules by their names."""
    packages = ("hw", "golden", "sw_driver")
    paths = (path for package in packages for path in sorted((ROOT / package).rglob("*.py")))
    return {".".join(_parts(path)): path for path in paths}


def imported(module: str, here: dict[str, Path]) -> set[str]:
    """The modules of ``here``, all of the project's, that one imports.

    Also in its functions, but not for its types alone.
    """
    path = here[module]
    parts = _parts(path)
    package = parts if path.name == "__init__.py" else parts[:-1]
    found = set()
    for node in _statements(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            source = ".".join([*above, *([node.module] if node.module else [])])
            inside = (f"{source}.{alias.name}" for alias in node.names)
            found |= {each if each in here else source for each in inside}
    return (found & here.keys()) - {module}


def _parts(path: Path) -> tuple[str, ...]:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        yield child
        yield from _statements(child)
