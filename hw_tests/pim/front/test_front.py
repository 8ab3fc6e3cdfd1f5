"""The pool's front: causes of refusal at their limits, spans, units, canonical forms, plans."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest

from golden.pim import Cause, Opcode
from hw.pim.front.front import Front, front_program
from hw_tests.bench import run_bench
from hw_tests.pim.front.front_reference import FrontReference
from hw_tests.pim.front.front_works import Works, front_configurations, words_of
from sw_driver.pim.backends.calculator import CalculatorModel
from sw_driver.pim.lowering import PASSES, lower
from sw_driver.pim.networks import NETWORKS

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

    @property
    def cycles(self) -> int:
        """Of the last run."""
        return self._model.cycles

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
        assert front.cycles < 1100
        causes[cause] += 1
        accepted[words[0]] += cause == Cause.NONE
    # FULL is the pool's, and of 32 banks there is none that could not be asked for.
    never = {Cause.FULL, *([Cause.BANKS] if front_configurations()[name].banks == 32 else [])}
    assert {cause for cause in Cause if causes[cause] >= WORKS // 50} == set(Cause) - never
    assert {opcode for opcode in Opcode if accepted[opcode] >= WORKS // 30} == set(Opcode)


def test_how_long_checks_take() -> None:
    """Those of all passes of the networks' layers, as the specification says of each kind."""
    config = front_configurations()["paper"]
    model = CalculatorModel(front_program(config))
    taken: dict[int, set[int]] = {}
    for layers, most, pass_name in product(NETWORKS.values(), (0, 25_000_000, 1_000_000), PASSES):
        for layer in layers.values():
            scaled = layer.scaled(most) if most else layer
            for work in lower(scaled, pass_name, config).works:
                model.run(work.encode())
                taken.setdefault(work.opcode, set()).add(model.cycles)
    assert {kind: (min(cycles), max(cycles)) for kind, cycles in taken.items()} == {
        Opcode.ADD: (348, 402),
        Opcode.SCALEADD: (336, 390),
        Opcode.SUM: (452, 638),
        Opcode.MATMUL: (484, 728),
        Opcode.CONV2D: (752, 1052),
    }


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
