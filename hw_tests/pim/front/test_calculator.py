"""The calculator of the pool's front: every operation, and what its assembler refuses."""

from __future__ import annotations

import pytest

from hw.pim.front.calculator import Calculator
from hw.pim.front.microcode import ADDRESS_BITS, VALUES, Microcode
from hw_tests.bench import run_bench
from hw_tests.pim.front.calculator_model import random_program

SEED, LENGTH = 1, 700


def test_random_programs() -> None:
    run_bench(
        Calculator(random_program(SEED, LENGTH)),
        top="calculator",
        module="hw_tests.pim.front.calculator_bench",
        parameters={"seed": SEED, "length": LENGTH, "runs": 25},
    )


def test_a_program_has_room_for_so_many_values() -> None:
    program = Microcode()
    for number in range((1 << ADDRESS_BITS) - VALUES - 1):
        program.value(str(number))
    assert program.value("0").address == VALUES
    assert program.constant(5).address == (1 << ADDRESS_BITS) - 1
    assert program.constants == {(1 << ADDRESS_BITS) - 1: 5}
    with pytest.raises(ValueError, match="192 values and constants or fewer"):
        program.constant(6)


def test_a_label_must_be_somewhere() -> None:
    program = Microcode()
    program.jump(program.label())
    with pytest.raises(ValueError, match="put somewhere"):
        list(program.assembled())
