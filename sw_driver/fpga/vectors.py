"""What a design's self test applies and expects, from the golden models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from golden import floats
from golden.rules import Reference, reference
from hw.float.operator import FloatOperator
from hw.kernel.config import PARAMETERS_PER_BEAT, KernelConfig
from hw.kernel.registers import kernel_map
from hw.kernel.unit import RuleUnit
from hw.logic.line import LINE_BYTES
from hw.rules.update_rule import UpdateRule

__all__ = [
    "VECTORS",
    "KernelRun",
    "Step",
    "Vector",
    "kernel_run",
    "operator_vectors",
    "unit_vectors",
]

VECTORS = 256
"""Operand sets that are applied to an operator or a unit, a power of two."""

HYPERPARAMETERS = {
    "lr": 0.001,
    "beta1": 0.9,
    "beta2": 0.999,
    "eps": 1e-8,
    "weight_decay": 0.01,
    "t": 3,
}
"""Hyper-parameters of the step that is compared; others are 0.5."""

_SPECIAL = (0, 1 << 31, 1, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000)
"""Bits of zeros, subnormal, smallest and largest numbers, infinities, NaN."""


class Vector(NamedTuple):
    """What goes in and what comes out, as bits."""

    operands: list[int]
    results: list[int]


def operator_vectors(operator: FloatOperator) -> list[Vector]:
    """:data:`VECTORS` vectors of an operator."""
    random = Random(operator.module_name)
    form = floats.BinaryFormat(**asdict(operator.format))
    compute = getattr(floats, operator.operation)
    vectors = []
    for _ in range(VECTORS):
        operands = [_operand(random) for _ in operator.operands]
        vectors.append(Vector(operands, [compute(form, *operands)]))
    return vectors


def unit_vectors(unit: RuleUnit) -> tuple[dict[str, int], list[Vector]]:
    """The constants of a unit as bits by their names, and :data:`VECTORS` vectors.

    Raises ``ValueError`` if there is no model of the rule.
    """
    rule = unit.rule
    random = Random(rule.name)
    model = _model(rule, "kept" if unit.format.subnormals else "flushed")
    constants = _constants(rule)
    tensors = {name: _floats([_operand(random) for _ in range(VECTORS)]) for name in rule.inputs}
    results = model.shares(tensors, constants)
    columns = [
        _bits(np.broadcast_to(results[name], VECTORS)) for name in (*rule.outputs, *rule.sums)
    ]
    rows = [
        Vector(
            [_bits(tensors[name])[index] for name in rule.inputs],
            [column[index] for column in columns],
        )
        for index in range(VECTORS)
    ]
    return {name: _bits(value)[0] for name, value in constants.items()}, rows


class Step(NamedTuple):
    """An access to a register, of a kind of :class:`KernelRun`."""

    kind: int
    address: int
    data: int


@dataclass
class KernelRun:
    """Runs of a kernel: what is written to and read from its registers, and its memory."""

    WRITE, READ, WAIT = range(3)
    """The kinds of steps; the last reads until bit 0, which is ``busy``, is clear."""

    script: list[Step] = field(default_factory=list)
    """The accesses, one after the other."""
    before: list[bytes] = field(default_factory=list)
    """Lines of the memory before the runs, a power of two of them."""
    after: list[bytes] = field(default_factory=list)
    """Lines of the memory when the runs are over."""


def kernel_run(config: KernelConfig) -> KernelRun:
    """A step of each rule of a kernel, each on tensors of its own.

    The registers are first read as the reset leaves them, and at the end as the settings left
    them. The memory between the tensors is compared, too.

    Raises ``ValueError`` if there is no model of a rule, or the memory is too small.
    """
    run = KernelRun()
    registers = kernel_map(config.rules, config.narrow)
    for register in registers.registers:
        if any(each.sw_readable and not each.pulse for each in register.fields):
            reset = sum(each.reset << each.lsb for each in register.fields if each.sw_readable)
            run.script.append(Step(run.READ, register.offset_bytes, reset))
    random = Random(",".join(config.rules))
    settings: dict[str, int] = {}
    for number, rule in enumerate(config.update_rules):
        model, constants = _model(rule, config.subnormals), _constants(rule)
        tensors: dict[str, Floats] = {}
        addresses: dict[str, int] = {}
        for name in dict.fromkeys((*rule.inputs, *rule.outputs)):
            addresses[name] = len(run.before) * LINE_BYTES
            tensors[name] = _floats([_number(random) for _ in range(_COUNT)])
            run.before += _lines(tensors[name], random)
        results = model.step(tensors, constants)
        run.after += run.before[len(run.after) :]
        for name in rule.outputs:
            first = addresses[name] // LINE_BYTES
            whole = b"".join(run.before[first : first + _LINES])
            data = results[name].tobytes() + whole[4 * _COUNT :]
            run.after[first : first + _LINES] = _cut(data)
        settings |= {
            "count": _COUNT,
            **{f"{name}_in": addresses[name] for name in rule.inputs},
            **{f"{name}_out": addresses[name] for name in rule.outputs},
            **{name: _bits(value)[0] for name, value in constants.items()},
            "rule": number,
        }
        status = registers["status"]
        run.script += [
            *(
                Step(run.WRITE, registers[name].offset_bytes, value)
                for name, value in settings.items()
            ),
            Step(run.WRITE, registers["control"].offset_bytes, registers["control"]["start"].mask),
            Step(run.WAIT, status.offset_bytes, status["done"].mask),
            *(
                Step(run.READ, registers[f"sum_{name}"].offset_bytes, _bits(results[name])[0])
                for name in rule.sums
            ),
        ]
    for name, value in settings.items():
        run.script.append(Step(run.READ, registers[name].offset_bytes, value))
    lines = 1 << len(run.before).bit_length()
    if lines * LINE_BYTES > config.memory_bytes:
        raise ValueError(
            f"the self test of {', '.join(config.rules)} needs {lines * LINE_BYTES} bytes of "
            f"memory, memory_bytes is {config.memory_bytes}; give it more, or fewer rules"
        )
    spare = [bytes(LINE_BYTES)] * (lines - len(run.before))
    run.before += spare
    run.after += spare
    return run


_LINES = 19
"""Lines of a tensor: more than a round of the small configurations, and no whole number of
rounds."""

_COUNT = _LINES * PARAMETERS_PER_BEAT - 4
"""Parameters of a tensor, of which the last line is not full."""

Floats = NDArray[np.float32]


def _model(rule: UpdateRule, subnormals: str = "kept") -> Reference:
    try:
        return reference(rule.name, subnormals)
    except ValueError as error:
        raise ValueError(f"the self test of {rule.name} needs a golden model: {error}") from None


def _constants(rule: UpdateRule) -> dict[str, np.float32]:
    values = {name: HYPERPARAMETERS.get(name, 0.5) for name in rule.hyperparameters}
    return _model(rule).constants(**values)


def _number(random: Random) -> int:
    """The bits of a number that is not far from 1, and now and then a subnormal one."""
    exponent = random.choice((0, *range(112, 136)))
    return random.getrandbits(1) << 31 | exponent << 23 | random.getrandbits(23)


def _operand(random: Random) -> int:
    """The bits of any number, of a special one, or of one that is not far from 1."""
    kind = random.randrange(8)
    if kind == 0:
        return random.choice(_SPECIAL)
    return random.getrandbits(32) if kind == 1 else _number(random)


def _floats(bits: Sequence[int]) -> Floats:
    return np.array(bits, np.uint32).view(np.float32)


def _bits(values: Any) -> list[int]:
    return np.atleast_1d(np.asarray(values, np.float32)).view(np.uint32).tolist()


def _lines(tensor: Floats, random: Random) -> list[bytes]:
    data = tensor.tobytes()
    return _cut(data + random.randbytes(-len(data) % LINE_BYTES))


def _cut(data: bytes) -> list[bytes]:
    return [data[start : start + LINE_BYTES] for start in range(0, len(data), LINE_BYTES)]
