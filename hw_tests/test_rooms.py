"""The rooms of the source tree: what may import what, and that nothing goes round in a circle."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

FLOORS = [
    {"cli"},
    {"commands"},
    {"experiments"},
    {"axdimm", "pim"},
    {"control", "memory", "simulator"},
    {"runtime"},
    {"transport"},
    {"errors"},
]
"""The driver's rooms, from what uses others to what others use."""


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    _name(path): path
    for package in ("hw", "golden", "sw_driver")
    for path in sorted((ROOT / package).rglob("*.py"))
}


def _imported(module: str) -> set[str]:
    """The modules of ours that one imports, also in its functions, but not for its types alone."""
    path = MODULES[module]
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    found = set()
    for node in _statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                inside = f"{source}.{alias.name}"
                found.add(inside if inside in MODULES else source)
    return (found & set(MODULES)) - {module}


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        yield child
        yield from _statements(child)


IMPORTS = {module: _imported(module) for module in MODULES}


def _room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def test_no_module_imports_itself_in_a_circle() -> None:
    list(TopologicalSorter(IMPORTS).static_order())


def test_the_drivers_rooms_use_those_below_them_only() -> None:
    floor = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
    for module, imports in IMPORTS.items():
        for other in imports:
            if not (module.startswith("sw_driver.") and other.startswith("sw_driver.")):
                continue
            here, there = _room(module), _room(other)
            assert here == there or floor[here] < floor[there], f"{module} imports {other}"


@pytest.mark.parametrize(
    ("package", "allowed"), [("hw", {"hw"}), ("golden", {"golden"})], ids=["hw", "golden"]
)
def test_hardware_and_golden_model_know_nobody(package: str, allowed: set[str]) -> None:
    for module, imports in IMPORTS.items():
        if module.split(".")[0] == package:
            others = {other for other in imports if other.split(".")[0] not in allowed}
            assert not others, f"{module} imports {others}"


def test_only_the_simulation_uses_what_is_for_simulation_only() -> None:
    for module, imports in IMPORTS.items():
        if module.startswith("hw.") and not module.startswith("hw.sim"):
            used = {other for other in imports if other.startswith("hw.sim")}
            assert not used, f"{module} imports {used}"


def test_the_picture_shows_every_room() -> None:
    picture = (ROOT / "docs" / "pictures" / "rooms.svg").read_text()
    shown = set(re.findall(r"[\w.]+/|\w+\.py", picture))
    for package in ("hw", "golden", "sw_driver"):
        folders = {f"{path.parent.name}/" for path in (ROOT / package).glob("*/*.py")}
        assert folders <= shown, f"{package}: {folders - shown}"
