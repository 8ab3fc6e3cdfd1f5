"""Which of this project's files something depends on, found in what its modules import."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

__all__ = ["ROOT", "hardware_modules", "imported", "modules", "sources_of"]

ROOT = Path(__file__).parents[2]
"""The folder of the packages."""

PACKAGES = ("hw", "golden", "sw_driver")


def sources_of(roots: Iterable[str], *, apart_from: Iterable[str] = ()) -> set[Path]:
    """The files of the modules ``roots`` and of all that they import, directly or not.

    With the files beside a module that it names, such as its Verilog, and all modules of a package
    that imports ``pkgutil``, for it looks for them itself. Without what is reached only through the
    modules ``apart_from``; see :func:`imported`.
    """
    here = modules()
    found = set(apart_from)
    waiting = set(roots)
    files: set[Path] = set()
    while waiting:
        module = waiting.pop()
        if module in found:
            continue
        found.add(module)
        path = here[module]
        files |= {path, *_named_beside(path)}
        waiting |= imported(module, here)
        if any(source == "pkgutil" for source, _ in _imports(path)):
            waiting |= {each for each in here if each.rpartition(".")[0] == module}
        if "." in module:  # the package that it is in is run, too
            waiting.add(module.rpartition(".")[0])
    return files


def modules() -> dict[str, Path]:
    """The project's modules by their names."""
    paths = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    return {".".join(_parts(path)): path for path in paths}


def hardware_modules() -> set[str]:
    """Names of the modules that describe hardware: those that import Amaranth."""
    return {
        module
        for module, path in modules().items()
        if any(name.partition(".")[0] == "amaranth" for name, _ in _imports(path))
    }


def imported(
    module: str, here: dict[str, Path] | None = None, *, for_types: bool = False
) -> set[str]:
    """The modules of ``here``, all of the project's, that one imports.

    Also in its functions; those for its types alone only if asked for.
    """
    here = modules() if here is None else here
    found = set()
    for source, name in _imports(here[module], for_types):
        inside = f"{source}.{name}"
        found.add(inside if inside in here else source)
    return (found & here.keys()) - {module}


def _parts(path: Path) -> tuple[str, ...]:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def _imports(path: Path, for_types: bool = False) -> frozenset[tuple[str, str]]:
    """The modules that one imports, and what from each."""
    parts = _parts(path)
    package = parts if path.name == "__init__.py" else parts[:-1]
    return _parsed_imports(path.read_bytes(), package, for_types)


def _named_beside(path: Path) -> Iterator[Path]:
    texts = _file_names(path.read_bytes())
    for each in path.parent.iterdir():
        if each.suffix not in (".py", "") and any(fnmatch(each.name, text) for text in texts):
            yield each


@cache
def _parsed_imports(
    content: bytes, package: tuple[str, ...], for_types: bool
) -> frozenset[tuple[str, str]]:
    """Return what a module of ``package`` imports: modules, and what from them."""
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
    """Return the texts in a module that may be names of files."""
    texts = {
        node.value
        for node in ast.walk(ast.parse(content))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return frozenset(text for text in texts if "." in text and " " not in text)


def _statements(parent: ast.AST, for_types: bool) -> Iterator[ast.AST]:
    """Yield all statements in one, in order, without looking into expressions."""
    for field in ("body", "handlers", "cases", "orelse", "finalbody"):
        for child in getattr(parent, field, ()):
            typing = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
            if for_types or not typing:
                yield child
                yield from _statements(child, for_types)
