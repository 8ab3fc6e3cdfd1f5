"""The rooms of the source tree: what may import what, and that nothing goes round in a circle."""

from __future__ import annotations

import re
from functools import cache
from graphlib import TopologicalSorter

import pytest

from sw_driver.simulator.sources import ROOT, imported, modules

FLOORS = [
    {"cli", "nearmem"},
    {"commands"},
    {"experiments"},
    {"torch"},
    {"system"},
    {"axdimm", "memory_node", "pim"},
    {"fpga"},
    {"simulator"},
    {"machine"},
    {"predict", "workload"},
    {"numbers"},
    {"device"},
    {"report"},
    {"files"},
]
"""The driver's rooms, from what uses others to what others use."""


@cache
def import_graph() -> dict[str, set[str]]:
    """Return what each module imports, for types alone too: to need others' types is to know
    them."""
    here = modules()
    return {module: imported(module, here, for_types=True) for module in here}


def _room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def test_no_module_imports_itself_in_a_circle() -> None:
    list(TopologicalSorter(import_graph()).static_order())


def test_the_drivers_rooms_use_those_below_them_only() -> None:
    floor = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
    for module, imports in import_graph().items():
        for other in imports:
            if not (module.startswith("sw_driver.") and other.startswith("sw_driver.")):
                continue
            here, there = _room(module), _room(other)
            assert here == there or floor[here] < floor[there], f"{module} imports {other}"


def test_no_system_uses_another_but_the_comparison() -> None:
    for module, imports in import_graph().items():
        here = _system(module)
        if here is not None and here != "compare":
            others = {other for other in imports if _system(other) not in (None, here)}
            assert not others, f"{module} imports {others}"


def _system(module: str) -> str | None:
    """A folder of ``sw_driver/system``, that of a system or the comparison."""
    parts = module.split(".")
    inside = parts[:2] == ["sw_driver", "system"] and len(parts) > 2
    return parts[2] if inside and (ROOT / "sw_driver" / "system" / parts[2]).is_dir() else None


@pytest.mark.parametrize(
    ("package", "allowed"), [("hw", {"hw"}), ("golden", {"golden"})], ids=["hw", "golden"]
)
def test_hardware_and_golden_model_know_nobody(package: str, allowed: set[str]) -> None:
    for module, imports in import_graph().items():
        if module.split(".")[0] == package:
            others = {other for other in imports if other.split(".")[0] not in allowed}
            assert not others, f"{module} imports {others}"


def test_a_machine_is_data_without_hardware_of_ours() -> None:
    for module, imports in import_graph().items():
        if module.startswith("sw_driver.machine"):
            others = {other for other in imports if other.partition(".")[0] != "sw_driver"}
            assert not others, f"{module} imports {others}"


def test_no_two_rooms_of_the_hardware_use_each_other() -> None:
    uses: dict[str, set[str]] = {}
    for module, imports in import_graph().items():
        if (here := _hardware_room(module)) is not None:
            others = {_hardware_room(other) for other in imports} - {None, here}
            uses.setdefault(here, set()).update(others)
    list(TopologicalSorter(uses).static_order())


def _hardware_room(module: str) -> str | None:
    """A folder of ``hw``, or one of the files beside them."""
    parts = module.split(".")
    return parts[1] if parts[0] == "hw" and len(parts) > 1 else None


def test_only_the_simulation_uses_what_is_for_simulation_only() -> None:
    for module, imports in import_graph().items():
        if module.startswith("hw.") and not module.startswith("hw.sim"):
            used = {other for other in imports if other.startswith("hw.sim")}
            assert not used, f"{module} imports {used}"


def test_no_hardware_knows_its_writer() -> None:
    for module, imports in import_graph().items():
        if module.startswith("hw.") and not module.startswith("hw.verilog"):
            used = {other for other in imports if other.startswith("hw.verilog")}
            assert not used, f"{module} imports {used}"


def test_the_picture_shows_every_room() -> None:
    picture = (ROOT / "docs" / "pictures" / "rooms.svg").read_text()
    shown = set(re.findall(r"[\w.]+/|\w+\.py", picture))
    for package in ("hw", "golden", "sw_driver"):
        folders = {f"{path.parent.name}/" for path in (ROOT / package).glob("*/*.py")}
        assert folders <= shown, f"{package}: {folders - shown}"
