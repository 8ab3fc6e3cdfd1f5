"""Longest paths of netlists whose answer is known, and the registers that multipliers take in."""

from __future__ import annotations

from typing import Any

import pytest

from sw_driver.fpga.netlist import MULTIPLICATION_LEVELS, absorb_registers, longest_path

OUTPUTS = {"O", "CO", "Q", "P"}


def module(cells: dict[str, tuple[str, dict[str, Any]]], **ports: Any) -> dict[str, Any]:
    """A module of Yosys' JSON; ports are ``name=(direction, bits)``."""
    return {
        "ports": {name: {"direction": way, "bits": bits} for name, (way, bits) in ports.items()},
        "cells": {
            name: {
                "type": kind,
                "parameters": {},
                "port_directions": {
                    port: "output" if port in OUTPUTS or port[0] == "P" else "input"
                    for port in connections
                },
                "connections": {
                    port: bits if isinstance(bits, list) else [bits]
                    for port, bits in connections.items()
                },
            }
            for name, (kind, connections) in cells.items()
        },
    }


def test_adder_between_registers() -> None:
    # A lookup table, one more into the chain, the chain through two blocks, and one after it.
    top = module(
        {
            "from": ("FDRE", {"C": 1, "D": 2, "Q": 3, "CE": "1", "R": "0"}),
            "other": ("FDRE", {"C": 1, "D": 2, "Q": 4, "CE": "1", "R": "0"}),
            "first": ("LUT2", {"I0": 3, "I1": 4, "O": 5}),
            "second": ("LUT6", {"I0": 5, "I1": "0", "O": 6}),
            "low": ("CARRY4", {"S": [6, 4], "DI": ["0", 3], "CI": "0", "O": [7, 8], "CO": [9, 10]}),
            "high": ("CARRY4", {"S": [4], "DI": [3], "CI": 10, "O": [11], "CO": [12]}),
            "last": ("LUT3", {"I0": 11, "I1": 4, "I2": 3, "O": 13}),
            "to": ("FDRE", {"C": 1, "D": 13, "Q": 14, "CE": 5, "R": "0"}),
        }
    )
    path = longest_path({"top": top}, "top")
    assert path.levels == 4
    names = [cell.split()[0] for cell in path.cells]
    assert names[1:] == ["first", "second", "low", "high", "last", "to"]


def test_paths_go_through_modules_and_wires() -> None:
    inner = module(
        {"one": ("LUT1", {"I0": 2, "O": 3})},
        a=("input", [2]), y=("output", [3]), same=("output", [2]),
    )  # fmt: skip
    top = module(
        {
            "from": ("FDRE", {"C": 1, "D": "0", "Q": 2}),
            "u": ("inner", {"a": 2, "y": 3, "same": 4}),
            "v": ("inner", {"a": 3, "y": 5}),
            "wires": ("wires", {"a": 4, "same": 9}),
            "w": ("inner", {"a": 9, "y": 6}),
            "to": ("FDRE", {"C": 1, "D": 5, "Q": 7}),
            "also": ("FDRE", {"C": 1, "D": 6, "Q": 8}),
        }
    )
    wires = module({}, a=("input", [2]), same=("output", [2]))
    for name in ("u", "v", "w", "wires"):
        top["cells"][name]["port_directions"] = {"a": "input", "y": "output", "same": "output"}
    path = longest_path({"top": top, "inner": inner, "wires": wires}, "top")
    assert path.levels == 2
    assert path.cells == ("from (FDRE)", "u.one (LUT1)", "v.one (LUT1)", "to (FDRE)")


@pytest.mark.parametrize("registers", [False, True])
def test_multiplication(registers: bool) -> None:
    top = module(
        {
            "a": ("FDRE", {"C": 1, "D": 2, "Q": 3, "CE": "1", "R": "0"}),
            "b": ("FDRE", {"C": 1, "D": 4, "Q": 5, "CE": "1", "R": "0"}),
            "lut": ("LUT2", {"I0": 3, "I1": 5, "O": 6}),
            "dsp": ("DSP48E2", {"A": [3, "0"], "B": [5], "P": [7], "C": ["0"]}),
            "p": ("FDRE", {"C": 1, "D": 7, "Q": 8, "CE": "1", "R": "0"}),
            "to": ("FDRE", {"C": 1, "D": 6, "Q": 9, "CE": "1", "R": "0"}),
        },
        y=("output", [8]), z=("output", [9]),
    )  # fmt: skip
    assert longest_path({"top": top}, "top").levels == MULTIPLICATION_LEVELS
    if registers:
        assert absorb_registers(top) == 3
        # The operands' registers have the lookup table to drive, too; the product's is gone.
        assert set(top["cells"]) == {"a", "b", "lut", "dsp", "to"}
        dsp = top["cells"]["dsp"]
        assert (dsp["connections"]["A"], dsp["connections"]["P"]) == ([2, "0"], [8])
        assert longest_path({"top": top}, "top").levels == 1


@pytest.mark.parametrize(
    ("port", "value"), [("CE", 20), ("LSR", 20), ("CLK", 20)], ids=["enable", "reset", "clock"]
)
def test_registers_that_differ_stay(port: str, value: int) -> None:
    def circuit() -> dict[str, Any]:
        flip_flop = {"CLK": 1, "CE": "1", "LSR": "0"}
        return module(
            {
                "a0": ("TRELLIS_FF", {**flip_flop, "DI": 2, "Q": 3}),
                "a1": ("TRELLIS_FF", {**flip_flop, "DI": 4, "Q": 5}),
                "mul": ("MULT18X18D", {"A0": 3, "A1": 5, "B0": 6, "B1": "0", "P0": 7}),
            },
            y=("output", [7]),
        )  # fmt: skip

    same = circuit()
    assert absorb_registers(same) == 1
    assert set(same["cells"]) == {"mul"}
    assert same["cells"]["mul"]["parameters"]["REG_INPUTA_CLK"] == "CLK0"
    assert same["cells"]["mul"]["connections"]["CLK0"] == [1]
    differs = circuit()
    differs["cells"]["a1"]["connections"][port] = [value]
    assert absorb_registers(differs) == 0
    assert differs["cells"]["mul"]["connections"]["A0"] == [3]


def test_refuses_what_it_cannot_judge() -> None:
    loop = {"x": ("LUT1", {"I0": 2, "O": 3}), "y": ("LUT1", {"I0": 3, "O": 2})}
    with pytest.raises(ValueError, match=r"combinational loop through [xy]"):
        longest_path({"top": module(loop)}, "top")
    with pytest.raises(ValueError, match="a cell STRANGE"):
        longest_path({"top": module({"s": ("STRANGE", {"A": 2, "O": 3})})}, "top")
