"""Examples of classes: they do what they show, and every class that a user constructs has one."""

from __future__ import annotations

import ast
import doctest
import re
from collections import defaultdict
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from textwrap import dedent

import pytest

from hw_tests.test_words import ROOMS, ROOT, files

PROGRAM = re.compile(r"^ *```python[^\n]*\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
WITHOUT = {
    r"golden\..*\.(PacketFlit|Room|Rule)": "part of an argument",
    r"hw\..*\.(HostRequest|HostResult|Jobs|Port|RoundWalker|RunFormats|Unpacked)": "inside hw",
    r"hw\.sim\..*\.(Ddr4Device|SimulatedChannel)": "the rtl backend places it",
    r"sw_driver\..*\.(Event|Handle|StepHandle|StepReport)": "calls return it",
    r"sw_driver\..*\.(RegisterWindow|Ring|Unfinished|Watch)": "the driver and commands make it",
    r"sw_driver\.predict\..*": "part of a prediction: the model's functions make it",
    r"sw_driver\.system\..*\.(MoveQueue|Phase|Runs|StepRecord)": "policies and experiments get it",
}
"""Classes without an example, and why; each line is of some class."""


def module_of(path: object) -> str:
    return re.sub(r"^\W*|(/__init__)?\.py$", "", str(path)[len(str(ROOT)) :]).replace("/", ".")


TEXTS = {module_of(path): path.read_text() for path in files(*(ROOT / room for room in ROOMS))}


@pytest.mark.parametrize(
    "name",
    [  # what builds a simulator takes a minute
        pytest.param(name, marks=[pytest.mark.soak] * name.endswith("backends.rtl"))
        for name, text in TEXTS.items()
        if ">>> " in text
    ],
)
def test_examples_show_what_happens(name: str) -> None:
    if name.startswith("sw_driver.torch.") or ">>> import torch" in TEXTS[name]:
        pytest.importorskip("torch", reason="PyTorch is not installed")
    module = import_module(name)
    public = {name: getattr(module, name) for name in module.__all__}
    for test in doctest.DocTestFinder().find(module, globs=public):
        failures: list[str] = []
        doctest.DocTestRunner(optionflags=FLAGS).run(test, out=failures.append)
        assert not failures, "".join(failures)
        lines = (test.docstring or "").partition("Examples\n")[2].rstrip().count("\n")
        assert not test.examples or 3 <= lines <= 8, f"{test.name}: {lines} lines"


def constructed(text: str) -> Iterator[type]:
    """Classes of the rooms that a program calls by a name that it imports."""
    nodes = [*ast.walk(ast.parse(text))]
    places = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module and not node.level
        for alias in node.names
    }
    called = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
    for module, name in map(places.get, called & places.keys()):
        if module.split(".")[0] in (*ROOMS, "nearmem"):
            thing = getattr(import_module(module), name)
            if isinstance(thing, type) and thing.__name__[0] != "_":
                yield thing


def test_classes_that_users_construct_have_examples() -> None:
    """``nearmem`` exports them, a page constructs them, or two files outside their room do."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    users: defaultdict[type, set[str]] = defaultdict(set)
    for package in map(import_module, ("nearmem", "nearmem.torch")):
        for thing in map(vars(package).get, package.__all__):
            if isinstance(thing, type):
                users[thing] |= {"", "nearmem"}
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for kind in constructed("\n".join(map(dedent, PROGRAM.findall(page.read_text())))):
            users[kind] |= {"", page.name}
    tests = {module_of(path): path.read_text() for path in files(ROOT / "hw_tests")}
    for name, text in (TEXTS | tests).items():
        for kind in constructed(text):
            if name.split(".")[:2] != kind.__module__.split(".")[:2]:
                users[kind].add(name)
    missing = [
        f"{kind.__module__}.{kind.__name__}"
        for kind, names in users.items()
        if len(names) > 1 and not issubclass(kind, BaseException | Enum)
        if ">>> " not in (kind.__doc__ or "")
        and not re.search(rf"(>>>|\.\.\.) .*\b{kind.__name__}\(", TEXTS[kind.__module__])
    ]
    assert not [name for name in missing if not any(re.fullmatch(rule, name) for rule in WITHOUT)]
    assert all(any(re.fullmatch(rule, name) for name in missing) for rule in WITHOUT)
