"""Fields of configurations that are no integers, numbers or booleans are refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest

from hw.axdimm.config import MODULE_PRESETS, configure
from hw.dram.presets import part
from hw.float.format import FP32
from hw.float.mul import FloatMul
from hw.memory_node.config import MEMORY_NODE_PRESETS
from hw.pim.config import PIM_PRESETS
from hw.pim.vault.timing import vault_part

MODULE = MODULE_PRESETS["axdimm"]
NODE = MEMORY_NODE_PRESETS["paper"]
PIM = PIM_PRESETS["paper"]
VAULT = vault_part("hmc2")
RECORDS = [
    *(MODULE, MODULE.kernel, MODULE.part, MODULE.part.timing, MODULE.part.geometry),
    *(MODULE.controller, NODE, NODE.link, PIM, PIM.weights, VAULT.timing, VAULT.geometry, FP32),
]


def wrong(kind: str, value: Any) -> list[Any]:
    """Return values that are near ``value`` and not of its kind."""
    if kind == "bool":
        return [1, 0.0, "true", None]
    if kind == "float":
        return [True, str(value), float("nan"), float("inf"), None]
    return [value + 0.5, float(value), True, str(value), float("nan"), float("inf"), None]


def cases() -> Iterator[object]:
    for record in RECORDS:
        for field in fields(record):
            if field.init and field.type in ("int", "float", "bool"):
                name = f"{type(record).__name__}.{field.name}"
                yield pytest.param(record, field.name, str(field.type), id=name)


@pytest.mark.parametrize(("record", "name", "kind"), list(cases()))
def test_fields_of_another_type_are_refused(record: Any, name: str, kind: str) -> None:
    said = {
        "int": "an integer|a power of two",
        "float": "a finite number|from above 0|a positive, finite",
        "bool": "True or False",
    }
    for value in wrong(kind, getattr(record, name)):
        with pytest.raises(ValueError, match=rf"^{name} must be ({said[kind]}).* got {value!r}"):
            replace(record, **{name: value})


@pytest.mark.parametrize("value", [1250.5, 1250.0, True, "1250", float("nan"), None])
def test_a_clock_is_an_integer(value: Any) -> None:
    said = f"tck_ps must be an integer from .* got {value!r}"
    for allowed in (False, True):
        with pytest.raises(ValueError, match=said):
            configure(tck_ps=value, allow_nonstandard=allowed)
    with pytest.raises(ValueError, match=said):
        part("tiny").timing_at(value)


@pytest.mark.parametrize("value", [float(1 << 20), True, "1048576", float("nan"), None])
def test_a_capacity_is_an_integer(value: Any) -> None:
    for record in (MODULE, MODULE.part, VAULT):
        with pytest.raises(ValueError, match=f"capacity must be .* got {value!r}"):
            record.with_capacity(value)


@pytest.mark.parametrize("value", [4.0, True, "4"])
def test_stages_are_an_integer(value: Any) -> None:
    with pytest.raises(ValueError, match=f"stages of mul is {value!r}"):
        FloatMul(stages=value)


@pytest.mark.parametrize("options", [{"rules": 5}, {"rules": None}, {"part": 5}, {"part": None}])
def test_names_are_no_numbers(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=name.replace("part", "DRAM part")):
        configure(**options)
