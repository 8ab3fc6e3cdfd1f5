"""Floating-point formats and what the operators refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hw.float.add import FloatAdd
from hw.float.div import FloatDiv
from hw.float.format import FP32, FP32_FLUSHED, FloatFormat
from hw.float.mul import FloatMul
from hw.float.sqrt import FloatSqrt
from hw.verilog.writer import to_verilog
from sw_driver.fpga.synthesis import dsp_cells, run_yosys


def test_fp32() -> None:
    assert (FP32.width, FP32.bias, FP32.max_exponent) == (32, 127, 255)
    assert FP32.infinity == 0x7F800000
    assert FP32.canonical_nan == 0x7FC00000
    assert FP32.name == "fp32"


def test_small_format() -> None:
    fmt = FloatFormat(exponent_bits=4, fraction_bits=3)
    assert (fmt.width, fmt.bias, fmt.infinity, fmt.canonical_nan) == (8, 7, 0x78, 0x7C)
    assert FloatAdd(format=fmt).module_name == "float_e4m3_add"


def test_names_without_subnormals() -> None:
    fmt = FloatFormat(exponent_bits=4, fraction_bits=3, subnormals=False)
    assert FloatAdd(format=fmt).module_name == "float_e4m3_flush_add"
    assert FloatMul(format=FP32_FLUSHED).module_name == "fp32_flush_mul"
    assert FloatMul(format=FP32_FLUSHED, stages=8).module_name == "fp32_flush_mul_8_stages"


@pytest.mark.parametrize(
    ("exponent_bits", "fraction_bits", "message"),
    [(8, 1, "fraction_bits is 1"), (1, 2, "exponent_bits is 1"), (3, 4, "exponent_bits is 3")],
)
def test_refuses_widths(exponent_bits: int, fraction_bits: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FloatFormat(exponent_bits=exponent_bits, fraction_bits=fraction_bits)


def test_refuses_what_is_not_a_format() -> None:
    with pytest.raises(ValueError, match="format is 32, expected a FloatFormat"):
        FloatAdd(format=32)  # pyright: ignore


def test_latencies() -> None:
    # The benches measure that these are the true ones.
    assert [kind().latency for kind in (FloatAdd, FloatMul, FloatDiv, FloatSqrt)] == [6, 6, 29, 27]


def test_depths() -> None:
    assert FloatAdd(stages=7).latency == 7
    assert FloatAdd(stages=7).module_name == "fp32_add_7_stages"
    assert FloatAdd(stages=6).module_name == "fp32_add"
    for kind in (FloatAdd, FloatMul, FloatDiv, FloatSqrt):
        for stages, cuts in kind.depths(FP32).items():
            assert len(set(cuts)) == stages - 1


@pytest.mark.parametrize("stages", [2, 12, -1, "five", 5.5])
def test_refuses_depths(stages: Any) -> None:
    known = "3, 4, 5, 6, 7, 8, 9"
    with pytest.raises(ValueError, match=f"stages of add is {stages!r}, expected one of {known}"):
        FloatAdd(stages=stages)


@pytest.mark.soak
def test_multiplier_takes_two_dsp_blocks() -> None:
    unit = FloatMul()
    assert dsp_cells(to_verilog(unit, unit.module_name), top=unit.module_name) == {"DSP48E2": 2}


@pytest.mark.soak
def test_multiplier_has_the_registers_of_dsp_blocks(tmp_path: Path) -> None:
    # Yosys takes registers into the blocks of the 7 series, which are alike, but not into these.
    unit = FloatMul()
    run_yosys(
        tmp_path,
        to_verilog(unit, "mul"),
        "read_verilog design.v; synth_xilinx -family xc7 -noiopad -noclkbuf -top mul; "
        "write_json mul.json",
    )
    cells = json.loads((tmp_path / "mul.json").read_text())["modules"]["mul"]["cells"].values()
    blocks = [cell["parameters"] for cell in cells if cell["type"] == "DSP48E1"]
    registers = ("AREG", "BREG", "MREG", "PREG")
    taken = sorted([int(block[name], 2) for name in registers] for block in blocks)
    assert taken == [[1, 1, 1, 0], [1, 1, 1, 1]]
