"""Random programs for the calculator."""

from __future__ import annotations

import random

from hw.pim.front.microcode import NONZERO, Label, Microcode, Operation, Place, When

__all__ = ["random_program"]


def random_program(seed: int, length: int) -> Microcode:
    """A program of about ``length`` instructions in which every operation is met, many times."""
    rng, p = random.Random(seed), Microcode()
    results = [p.value(f"result {number}") for number in range(10)]
    words = [Place(address) for address in (*range(4), *range(4, 12, 2), *range(12, 48), NONZERO)]
    counts = [Place(address) for address in (*range(4), *range(12, 32), NONZERO)]
    numbers = [0, 1, -1, 7, (1 << 63) - 1, -(1 << 63), 1 << 48, 65535, 65536, -(1 << 31)]
    dividend, small, divisor = p.value("dividend"), p.value("small"), p.value("divisor")
    ends: list[tuple[int, Label]] = []
    for place in (*results, dividend, small, divisor):
        p.move(place, rng.choice(words))
    while len(p.instructions) < length:
        for at, label in [each for each in ends if each[0] <= len(p.instructions)]:
            p.put(label)
            ends.remove((at, label))
        when = rng.choice(list(When))
        to, a = rng.choice(results), rng.choice([*words, *results, *numbers])
        match rng.choice(list(Operation)[1:]):
            case Operation.JUMP:
                label = p.label()
                ends.append((len(p.instructions) + rng.randint(2, 6), label))
                p.jump(label, when)
            case Operation.MULTIPLY:
                p.multiply(
                    to, a, rng.choice([*counts, *(each for each in numbers if each >= 0)]), when
                )
            case Operation.DIVIDE:
                p.do(Operation.SHIFT, dividend, rng.choice(counts[:-1]), 16)
                p.do(Operation.SHIFT, divisor, rng.choice(counts[:-1]), rng.randrange(32))
                p.add(divisor, divisor, 1)
                p.do(
                    Operation.DIVIDE, to, dividend, rng.choice([divisor, 1, 65535, 65536, 3]), when
                )
            case Operation.SHIFT:
                p.do(Operation.SHIFT, small, rng.choice(counts[:4]), 1)
                p.do(Operation.LENGTH, small, small)
                p.do(Operation.SHIFT, to, a, rng.choice([small, 0, 31, 16]), when)
            case Operation.IS_LESS | Operation.IS_EQUAL | Operation.IS_COMMON as test:
                a, b = (rng.choice([a, rng.choice(numbers), rng.choice(words)]) for _ in range(2))
                p.do(test, None, a, b, when)
            case operation:
                p.do(operation, to, a, rng.choice([*words, *results, *numbers]), when)
    for _, label in ends:
        p.put(label)
    # And a loop.
    again = p.label()
    p.move(small, 5)
    p.put(again)
    p.add(results[0], results[0], small)
    p.subtract(small, small, 1)
    p.is_less(0, small)
    p.jump(again, When.FLAG)
    p.stop()
    return p
