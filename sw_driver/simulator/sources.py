"""Source files of this project that a module depends on, from its imports."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

__all__ = ["ROOT", "hardware_modules", "imported", "modules", "sources_of"]

ROOT = Path(__file__).parents[2]
"""Parent folder of the project's packages."""

PACKAGES = ("hw", "golden", "sw_driver")


def sources_of(roots: Iterable[str], *, apart_from: Iterable[str] = ()) -> set[Path]:
    """Return the files of the modules ``roots`` and of all their direct and indirect imports.

    They include files beside a module that it names, such as its Verilog. A package that imports
    ``pkgutil`` counts with all its modules, because it searches for them itself. Files that are
    reached only through the modules ``apart_from`` are left out. See :func:`imported`.
    """
    here = modules()
    visited = set(apart_from)
    waiting = set(roots)
    files: set[Path] = set()
    while waiting:
        module = waiting.pop()
        if module in visited:
            continue
        visited.add(module)
        path = here[module]
        files |= {path, *_named_beside(path)}
        waiting |= imported(module, here)
        if any(source == "pkgutil" for source, _ in _imports(path)):
            waiting |= {name for name in here if name.rpartition(".")[0] == module}
        if "." in module:  # importing a module also runs its package
            waiting.add(module.rpartition(".")[0])
    return files


def modules() -> dict[str, Path]:
    """Return the files of the project's modules by module name."""
    paths = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    return {".".join(_parts(path)): path for path in paths}


def hardware_modules() -> set[str]:
    """Return the names of the modules that describe hardware, which import Amaranth."""
    return {
        module
        for module, path in modules().items()
        if any(name.partition(".")[0] == "amaranth" for name, _ in _imports(path))
    }


def imported(
    module: str, here: dict[str, Path] | None = None, *, for_types: bool = False
) -> set[str]:
    """Return the modules of ``here``, all of the project by default, that ``module`` imports.

    Imports in functions count. Imports for type checking count only with ``for_types``.
    """
    here = modules() if here is None else here
    names = set()
    for source, name in _imports(here[module], for_types):
        inside = f"{source}.{name}"
        names.add(inside if inside in here else source)
    return (names & here.keys()) - {module}


def _parts(path: Path) -> tuple[str, ...]:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def _imports(path: Path, for_types: bool = False) -> frozenset[tuple[str, str]]:
    """Return the imports of a module: source modules, and the imported name of each."""
    parts = _parts(path)
    package = parts if path.name == "__init__.py" else parts[:-1]
    return _parsed_imports(path.read_bytes(), package, for_types)


def _named_beside(path: Path) -> Iterator[Path]:
    texts = _file_names(path.read_bytes())
    for file in path.parent.iterdir():
        if file.suffix not in (".py", "") and any(fnmatch(file.name, text) for text in texts):
            yield file


@cache
def _parsed_imports(
    content: bytes, package: tuple[str, ...], for_types: bool
) -> frozenset[tuple[str, str]]:
    """Return the imports of a module in ``package``: source modules and imported names."""
    imports = set()
    for node in _statements(ast.parse(content), for_types):
        if isinstance(node, ast.Import):
            imports |= {(alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            source = ".".join([*above, *([node.module] if node.module else [])])
            imports |= {(source, alias.name) for alias in node.names}
    return frozenset(imports)


@cache
def _file_names(content: bytes) -> frozenset[str]:
    """Return the strings in a module that may be file names."""
    texts = {
        node.value
        for node in ast.walk(ast.parse(content))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return frozenset(text for text in texts if "." in text and " " not in text)


def _statements(parent: ast.AST, for_types: bool) -> Iterator[ast.AST]:
    """Yield all nested statements of a node in order; skip expressions."""
    for field in ("body", "handlers", "cases", "orelse", "finalbody"):
        for child in getattr(parent, field, ()):
            typing = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
            if for_types or not typing:
                yield child
                yield from _statements(child, for_types)
