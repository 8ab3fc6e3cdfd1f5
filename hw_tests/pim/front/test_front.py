"""The pool's front: causes of refusal at their limits, spans, units, canonical forms, plans."""

from __future__ import annotations

from collections import Counter

import pytest

from golden.pim import Cause, Opcode
from hw.pim.front.front import Front, front_program
from hw_tests.bench import run_bench
from hw_tests.pim.front.front_reference import FrontReference
from hw_tests.pim.front.front_works import Works, front_configurations, words_of
from sw_driver.pim.backends.calculator import CalculatorModel

WORKS, SMALL_WORKS = 1500, 300


class _Program:
    """The front as its program, run by the calculator's model."""

    def __init__(self, name: str) -> None:
        config = front_configurations()[name]
        program = front_program(config)
        self.reference = FrontReference(config)
        self.works = Works(config, 1)
        self._model = CalculatorModel(program)
        self._names = {address: name for name, address in program.values.items()}
        self._outputs = self.reference.fields({}).keys()

    def run(self, words: list[int]) -> dict[str, int]:
        computed = {self._names[address]: number for address, number in self._model.run(words)}
        return self.reference.fields(
            {name: number for name, number in computed.items() if name in self._outputs}
        )


@pytest.mark.parametrize("name", front_configurations())
def test_causes_and_works(name: str) -> None:
    front = _Program(name)
    causes: Counter[Cause] = Counter()
    accepted: Counter[int] = Counter()
    for words in [*front.works.limits(), *(front.works.words() for _ in range(WORKS))]:
        cause = front.reference.check(words, front.run(words))
        causes[cause] += 1
        accepted[words[0]] += cause == Cause.NONE
    # FULL is the pool's, and of 32 banks there is none that could not be asked for.
    never = {Cause.FULL, *([Cause.BANKS] if front_configurations()[name].banks == 32 else [])}
    assert {cause for cause in Cause if causes[cause] >= WORKS // 50} == set(Cause) - never
    assert {opcode for opcode in Opcode if accepted[opcode] >= WORKS // 30} == set(Opcode)


@pytest.mark.parametrize("name", front_configurations())
def test_canonical_forms(name: str) -> None:
    """Every result is made of the elements that the specification says, in its order."""
    front = _Program(name)
    seen: Counter[int] = Counter()
    while seen.total() < SMALL_WORKS:
        words = words_of(front.works.small())
        if front.reference.cause(words) == Cause.NONE:
            front.reference.check_products(words, front.run(words))
            seen[words[0]] += 1
    assert {opcode for opcode in Opcode if seen[opcode] >= SMALL_WORKS // 30} == set(Opcode)


@pytest.mark.parametrize("name", ["paper", "tiny"])
def test_front(name: str) -> None:
    """Some works, with the front itself."""
    run_bench(
        Front(front_configurations()[name]),
        top="front",
        module="hw_tests.pim.front.front_bench",
        parameters={"name": name, "seed": 1, "works": 250},
    )
