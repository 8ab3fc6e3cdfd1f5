"""The Adam functional unit against the reference model, and what it takes on an FPGA."""

from __future__ import annotations

import os

from hw.float.format import FloatFormat
from hw.kernel.unit import AdamUnit
from hw.verilog import ports_of, to_verilog
from hw_tests.bench import run_bench
from hw_tests.float.player import PLAYER_BUILD_ARGS, PLAYER_TOP, player_text
from sw_driver.simulator.synthesis import dsp_cells

SEED = int(os.environ.get("NEARMEM_TEST_SEED", "1"))
VECTORS = 240_000


def test_matches_golden_bit_for_bit() -> None:
    unit = AdamUnit()
    run_bench(
        player_text([unit]),
        top=PLAYER_TOP,
        module="hw_tests.rules.adam_bench",
        build_args=PLAYER_BUILD_ARGS,
        parameters={"name": unit.module_name, "seed": SEED, "count": VECTORS},
    )


def test_latency_is_below_the_papers() -> None:
    # 110 is the design's limit, 128 the paper's figure.
    assert AdamUnit().latency <= 110


def test_ports() -> None:
    constants = "lam beta1 one_minus_beta1 beta2 one_minus_beta2 inv_bc1 inv_bc2 eps lr"
    names = "clk rst i_valid i_p i_g i_m i_v o_valid o_p o_m o_v " + constants
    ports = ports_of(AdamUnit())
    assert sorted(port.name for port in ports) == sorted(names.split())
    one_bit = {"clk", "rst", "i_valid", "o_valid"}
    assert all(port.width == (1 if port.name in one_bit else 32) for port in ports)


def test_module_name() -> None:
    assert AdamUnit().module_name == "adam_unit"
    small = FloatFormat(exponent_bits=5, fraction_bits=2)
    assert AdamUnit(format=small).module_name == "adam_unit_float_e5m2"


def test_takes_at_most_18_dsp_blocks() -> None:
    unit = AdamUnit()
    cells = dsp_cells(to_verilog(unit, unit.module_name), top=unit.module_name)
    assert set(cells) == {"DSP48E2"}
    assert cells["DSP48E2"] <= 18
