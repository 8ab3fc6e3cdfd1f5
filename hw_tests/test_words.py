"""Words that a reader understands at once: docstrings and names, beyond what ruff checks.

``python hw_tests/test_words.py PATH...`` lists what is wrong in files and folders.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("golden", "hw", "sw_driver")
NAMED = tuple(f"hw_tests/driver/{room}" for room in ("experiments", "pim", "system"))
"""Folders of tests whose names are plain; their docstrings are not judged."""

FRAGMENT = re.compile(
    r"(Of|What|Who|Whose|How|Whether|Where|Which|So many|So much|As|By|In which|That|Those|Its|It"
    r"|Has|Is)\b"
)
VAGUE = {"each", "found", "told", "asked", "said", "how", "what", "of"}
WITHOUT_METHODS = {"ABC", "Component", "Enum", "Exception", "Generic", "NamedTuple", "Protocol"}
"""Bases of other projects whose methods a class does not override."""
AMBIGUOUS = {
    *("Case", "Channel", "Clock", "Event", "Lane", "Lanes", "Link", "Outcome", "Placement", "Plan"),
    *("Step", "Steps", "Tensor", "Transfer", "Work"),
}
"""Words with one bare meaning (``docs/glossary.md``): other classes and aliases qualify them."""
NAMESAKES = {"Channel": 2, "Event": 2, "Lanes": 2}
"""A channel and its driver; public events of two runtimes; lanes of a kernel and of a bank."""
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield docstrings of modules, classes, functions and attributes, with their lines."""
    for node in ast.walk(tree):
        body = getattr(node, "body", ())
        if not isinstance(body, list):
            continue
        for before, after in pairwise([node, *body]):
            if not isinstance(before, (*DOCUMENTED, ast.Assign, ast.AnnAssign)):
                continue
            if before in body and isinstance(before, DOCUMENTED):
                continue
            match after:
                case ast.Expr(value=ast.Constant(value=str() as text)):
                    yield after.lineno, text


def _names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield variables, parameters and fields, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def _vague(tree: ast.Module) -> list[tuple[int, str]]:
    return [(line, f"is named {name!r}") for line, name in _names(tree) if name in VAGUE]


def _bases(node: ast.ClassDef) -> list[str]:
    """Return the names of a class's bases, without their modules and parameters."""
    bases = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
    return [base.attr if isinstance(base, ast.Attribute) else base.id for base in bases]


@cache
def _documented() -> dict[str, tuple[set[str], set[str]]]:
    """Return by class in the rooms its documented methods and its bases."""
    classes: dict[str, tuple[set[str], set[str]]] = {}
    for path in files(*(ROOT / room for room in ROOMS)):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                methods, bases = classes.setdefault(node.name, (set(), set()))
                bases |= {*_bases(node)}
                methods |= {
                    method.name
                    for method in node.body
                    if isinstance(method, ast.FunctionDef) and ast.get_docstring(method)
                }
    return classes


def _is_known(base: str, method: str) -> bool:
    """Return whether a base or one of its own documents a method, or is of another project."""
    if base not in _documented():
        return base not in WITHOUT_METHODS
    methods, bases = _documented()[base]
    return method in methods or any(_is_known(name, method) for name in bases - {base})


def _undocumented(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield public methods without a docstring that override no documented one."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
            continue
        for method in node.body:
            is_method = isinstance(method, ast.FunctionDef)
            if not is_method or method.name.startswith("_") or method.name == "elaborate":
                continue
            known = any(_is_known(base, method.name) for base in _bases(node))
            if not known and not ast.get_docstring(method):
                yield method.lineno, method.name


def faults(path: Path) -> list[str]:
    """Return what is wrong in a file, each with its line."""
    tree = ast.parse(path.read_text())
    wrong = [(n, f"begins with {m[0]!r}") for n, t in _docstrings(tree) if (m := FRAGMENT.match(t))]
    wrong += _vague(tree)
    wrong += [(n, f"{name} has no docstring") for n, name in _undocumented(tree)]
    return [f"{path}:{line}: {text}" for line, text in sorted(wrong)]


def files(*places: str | Path) -> Iterator[Path]:
    """Yield the Python files in files and folders."""
    for place in map(Path, places):
        yield from [place] if place.is_file() else sorted(place.rglob("*.py"))


@pytest.mark.parametrize("room", ROOMS)
def test_words_are_plain(room: str) -> None:
    assert not [fault for path in files(ROOT / room) for fault in faults(path)]


def test_an_ambiguous_word_is_the_name_of_one_class() -> None:
    counts: Counter[str] = Counter()
    for path in files(*(ROOT / room for room in ROOMS)):
        for node in ast.parse(path.read_text()).body:
            targets = [*getattr(node, "targets", ()), getattr(node, "target", node)]
            names = {getattr(target, "name", getattr(target, "id", "")) for target in targets}
            counts.update(AMBIGUOUS & names)
    assert {name: count for name, count in counts.items() if count > 1} == NAMESAKES


@pytest.mark.parametrize("room", NAMED)
def test_names_are_plain(room: str) -> None:
    trees = {path: ast.parse(path.read_text()) for path in files(ROOT / room)}
    assert not {path: vague for path, tree in trees.items() if (vague := _vague(tree))}


def test_faults_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "words.py"
    path.write_text(
        '"""What it is."""\nlane: int = 1\n"""So many."""\nclass A(Protocol):\n    "A thing."\n'
        "    def go(self, what):\n        for each in what:\n            self.found = each\n"
        "class B(Report):\n    def describe(self): pass\n    def other(self): pass\n"
    )
    lines = [fault.split(":")[1] for fault in faults(path)]
    assert lines == ["1", "3", "6", "6", "7", "8", "11"]


if __name__ == "__main__":
    print("\n".join(fault for path in files(*sys.argv[1:]) for fault in faults(path)))
