"""Inputs and expected outputs of a design's self test, from the golden models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from golden import floats
from golden.narrow import Quantized, code_of_zero, decode, packed, step, thresholds
from golden.rules import Reference, reference
from hw.float.operator import FloatOperator
from hw.kernel.config import PARAMETERS_PER_BEAT, KernelConfig
from hw.kernel.registers import kernel_map
from hw.kernel.unit import RuleUnit
from hw.logic.line import LINE_BYTES
from hw.narrow.formats import BLOCK_PARAMETERS, CODES, FP32_FORMATS, PAIR_BYTES, Formats
from hw.rules.update_rule import UpdateRule

__all__ = [
    "VECTORS",
    "KernelRun",
    "RegisterAccess",
    "Vector",
    "kernel_run",
    "operator_vectors",
    "unit_vectors",
]

VECTORS = 256
"""Operand sets for an operator or a unit, a power of two."""

HYPERPARAMETERS = {
    "lr": 0.001,
    "beta1": 0.9,
    "beta2": 0.999,
    "eps": 1e-8,
    "weight_decay": 0.01,
    "t": 3,
}
"""Hyper-parameters of the tested step; others are 0.5."""

_SPECIAL = (0, 1 << 31, 1, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000)
"""Bits of zeros, subnormal, smallest and largest numbers, infinities and NaN."""


class Vector(NamedTuple):
    """Inputs and expected outputs, as bits."""

    operands: list[int]
    results: list[int]


def operator_vectors(operator: FloatOperator) -> list[Vector]:
    """Return :data:`VECTORS` vectors of an operator."""
    random = Random(operator.module_name)
    form = floats.BinaryFormat(**asdict(operator.format))
    compute = getattr(floats, operator.operation)
    vectors = []
    for _ in range(VECTORS):
        operands = [_operand(random) for _ in operator.operands]
        vectors.append(Vector(operands, [compute(form, *operands)]))
    return vectors


def unit_vectors(unit: RuleUnit) -> tuple[dict[str, int], list[Vector]]:
    """Return a unit's constants as bits by name, and :data:`VECTORS` vectors.

    Raises ``ValueError`` if the rule has no golden model.
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


class RegisterAccess(NamedTuple):
    """An access to a register; its kind is one of :class:`KernelRun`."""

    kind: int
    address: int
    data: int


@dataclass
class KernelRun:
    """Runs of a kernel: register accesses with expected values, and memory contents."""

    WRITE, READ, WAIT = range(3)
    """Kinds of steps. ``WAIT`` reads until bit 0, ``busy``, is clear."""

    script: list[RegisterAccess] = field(default_factory=list)
    """Register accesses in order."""
    before: list[bytes] = field(default_factory=list)
    """Lines of the memory before the runs; their number is a power of two."""
    after: list[bytes] = field(default_factory=list)
    """Lines of the memory after the runs."""


def kernel_run(config: KernelConfig) -> KernelRun:
    """Return runs of each rule of a kernel, each on tensors of its own.

    One run has all tensors in FP32. With narrow formats further runs cover:

    - each format, each rounding, each table between formats, and all 256 codes;
    - gradients that are not finite, with and without ``skip_not_finite``;
    - each place of a block's scales in a line;
    - results on both sides of each threshold of each table. Their parameters are zero, so that all
      bits of the numbers of the other state's table show.

    The registers are read first after reset, and at the end with their last settings. Sums, and
    counts that do not depend on the memory's timing, are read after each run. Memory between the
    tensors is compared, too.

    Raises ``ValueError`` if a rule has no golden model, or the memory is too small.
    """
    run = KernelRun()
    registers = kernel_map(config.rules, config.narrow)
    for register in registers.registers:
        readable = [part for part in register.fields if part.sw_readable]
        if any(not part.pulse for part in readable):
            reset = sum(part.reset << part.lsb for part in readable)
            run.script.append(RegisterAccess(run.READ, register.offset_bytes, reset))
    random = Random(",".join(config.rules))
    settings: dict[str, int] = {}
    for number, rule in enumerate(config.update_rules):
        model, constants = _model(rule, config.subnormals), _constants(rule)
        for kind in _RUNS if config.narrow else _RUNS[:1]:
            formats = kind.formats
            count = BLOCK_PARAMETERS * kind.blocks if formats.narrow else _COUNT
            tensors = _tensors(rule, model, constants, formats, count, kind.not_finite, random)
            if kind.probed:
                _probe(rule, model, constants, formats, kind.probed, tensors, random)
            settings |= {name: _bits(value)[0] for name, value in constants.items()}
            settings |= {"count": count, "rule": number}
            if config.narrow:
                drawn = {"seed": random.getrandbits(64), "step": random.getrandbits(32)}
                settings |= {"formats": formats.code(), **drawn}
            results, wrong = _results(model, tensors, constants, formats, rule, settings)
            before = packed(tensors)
            for name in dict.fromkeys((*formats.loads(rule), *formats.stores(rule))):
                address = len(run.before) * LINE_BYTES
                nbytes = formats.tensor_bytes(rule, name, count)
                rest = random.randbytes(-nbytes % LINE_BYTES)
                held = before[name].tobytes() if name in before else random.randbytes(nbytes)
                run.before += _cut(held + rest)
                is_stored = name in results and name in formats.stores(rule)
                stored = results[name].tobytes() if is_stored else held
                run.after += _cut(stored + rest)
                ways = (("in", formats.loads(rule)), ("out", formats.stores(rule)))
                settings |= {f"{name}_{way}": address for way, names in ways if name in names}
            skipped = formats.skip_not_finite and wrong > 0
            lines = {
                name: formats.tensor_lines(rule, name, count) for name in formats.tensors(rule)
            }
            read = 0 if skipped else sum(lines[name] for name in formats.loads(rule))
            written = 0 if skipped else sum(lines[name] for name in formats.stores(rule))
            counters = {
                "beats_read": read + (lines["g"] if formats.skip_not_finite else 0),
                "beats_written": written,
                **{f"sum_{name}": _bits(results[name])[0] for name in rule.sums},
                **({"not_finite": wrong} if config.narrow else {}),
            }
            control, status = registers["control"], registers["status"]
            run.script += [
                *(
                    RegisterAccess(run.WRITE, registers[name].offset_bytes, value)
                    for name, value in settings.items()
                ),
                RegisterAccess(run.WRITE, control.offset_bytes, control["start"].mask),
                RegisterAccess(run.WAIT, status.offset_bytes, status["done"].mask),
                *(
                    RegisterAccess(run.READ, registers[name].offset_bytes, value)
                    for name, value in counters.items()
                ),
            ]
    for name, value in settings.items():
        run.script.append(RegisterAccess(run.READ, registers[name].offset_bytes, value))
    lines_needed = 1 << len(run.before).bit_length()
    if lines_needed * LINE_BYTES > config.memory_bytes:
        raise ValueError(
            f"the self test of {', '.join(config.rules)} needs {lines_needed * LINE_BYTES} bytes "
            f"of memory, memory_bytes is {config.memory_bytes}; give it more, or fewer rules"
        )
    spare = [bytes(LINE_BYTES)] * (lines_needed - len(run.before))
    run.before += spare
    run.after += spare
    return run


def _tensors(
    rule: UpdateRule,
    model: Reference,
    constants: dict[str, np.float32],
    formats: Formats,
    count: int,
    not_finite: bool,
    random: Random,
) -> dict[str, Any]:
    """Return a run's loaded tensors for the golden model: FP32, BF16, or codes and scales."""

    def tensor(name: str, count: int) -> Any:
        form = formats.form(rule, name)
        # A mean of squares is not negative, because its root is taken.
        mask = np.uint32(0x7FFFFFFF if rule.states.get(name) == "unsigned" else 0xFFFFFFFF)
        if form in ("fp32", "bf16"):
            bits = np.array([_number(random) for _ in range(count)], np.uint32) & mask
            return bits.view(np.float32) if form == "fp32" else (bits >> 16).astype(np.uint16)
        blocks = range(count // BLOCK_PARAMETERS)
        codes = [random.sample(range(256), BLOCK_PARAMETERS) for _ in blocks]
        scales = np.abs(_floats([_number(random) for _ in blocks]))
        return Quantized(codes=np.array(codes, np.uint8).ravel(), scales=scales)

    tensors = {name: tensor(name, count) for name in rule.inputs}
    if formats.copy == "bf16" and not formats.codes:
        # Numbers that copies round from halfway, and one beyond the largest of BF16.
        most = {name: tensor(name, 1 << 8) for name in rule.inputs}
        most = {name: np.repeat(values, 1 << 12) for name, values in most.items()}
        low = np.tile(np.arange(1 << 12, dtype=np.uint32), 1 << 8)
        most["p"] = (most["p"].view(np.uint32) & 0xFFFFF000 | low).view(np.float32)
        forms = formats.forms(rule)
        loaded = {name: decode(most[name], forms[name], model.subnormals) for name in most}
        bits = model.step(loaded, constants)["p"].view(np.uint32)
        for last_bit in range(2):
            halfway = np.flatnonzero(bits & 0x1FFFF == last_bit << 16 | 0x8000)
            for name, values in most.items():
                tensors[name][last_bit] = values[halfway[0]]
        tensors["p"][2] = _floats([0x7F7FFFFF])[0]
    if not_finite:
        infinity = 0x7F80 if formats.gradients == "bf16" else np.inf
        nan = 0x7FC1 if formats.gradients == "bf16" else np.nan
        tensors["g"][[5, 6]] = infinity, nan
    return tensors


def _probe(
    rule: UpdateRule,
    model: Reference,
    constants: dict[str, np.float32],
    formats: Formats,
    state: str,
    tensors: dict[str, Any],
    random: Random,
) -> None:
    """Set tensors that put the new ``state`` on both sides of each threshold of its table.

    Results are at the threshold or just below in the first block, just above in the second. The
    other states have all their codes in random order, and parameters are zero.
    """
    form = formats.form(rule, state)
    limits = thresholds(form)
    signs = np.copysign(np.float32(1), limits)

    def normal(gradients: Floats) -> Floats:
        """Return new numbers of the state, relative to the one of the largest gradient."""
        loaded = {name: np.zeros(gradients.size, np.float32) for name in rule.inputs}
        numbers = model.step(loaded | {"g": gradients}, constants)[state]
        return numbers[:-1] * (np.float32(1) / np.abs(numbers[-1]))

    # A gradient so small that it hardly changes the other states.
    most = np.float32(2.0**-40)
    below = np.zeros(limits.size, np.uint32)
    above = np.full(limits.size, most.view(np.uint32))
    while (above - below > 1).any():
        middle = (below + above) // 2
        numbers = normal(np.append(signs * middle.view(np.float32), most))
        is_above = np.where(signs < 0, numbers <= limits, numbers > limits)
        above, below = np.where(is_above, middle, above), np.where(is_above, below, middle)
    tensors["g"] = np.concatenate(
        [np.append(signs * bits.view(np.float32), most) for bits in (below, above)]
    )
    tensors["p"] = np.zeros_like(tensors["g"])
    zero = np.full(tensors["g"].size, code_of_zero(form), np.uint8)
    tensors[state] = replace(tensors[state], codes=zero)
    for name in rule.states:
        if name != state:
            scales = _floats([0x3F800000 | random.getrandbits(23) for _ in range(2)])
            tensors[name] = replace(tensors[name], scales=scales)


def _results(
    model: Reference,
    tensors: dict[str, Any],
    constants: dict[str, np.float32],
    formats: Formats,
    rule: UpdateRule,
    settings: dict[str, int],
) -> tuple[dict[str, Any], int]:
    """Return the outputs as in memory and the sums, and the number of gradients not finite.

    The number is 0 for a kernel without narrow formats.
    """
    if "formats" not in settings:
        results = dict(model.step(tensors, constants))
        return results, 0
    results, wrong = step(
        model,
        tensors,
        constants,
        formats.forms(rule),
        t=settings["step"],
        seed=settings["seed"],
        copy=formats.copy,
        skip_not_finite=formats.skip_not_finite,
    )
    return packed(results), wrong


class _Run(NamedTuple):
    """Formats and special values of a run, for each rule."""

    formats: Formats
    not_finite: bool = False
    """True for gradients that are infinite or NaN."""
    blocks: int = 2
    """Blocks of parameters, if a tensor is not in FP32."""
    probed: str = ""
    """State with results on both sides of each threshold, if any."""


_RUNS = (
    _Run(FP32_FORMATS),
    _Run(Formats(gradients="bf16", copy="bf16")),
    _Run(Formats(parameters="bf16", states="dynamic", copy="fp32", skip_not_finite=True)),
    _Run(
        Formats(gradients="bf16", parameters="bf16", states="linear", copy="bf16"),
        not_finite=True,
        # The scales fill a line and begin another one.
        blocks=LINE_BYTES // PAIR_BYTES + 1,
    ),
    _Run(Formats(states="dynamic", skip_not_finite=True), not_finite=True),
    *(_Run(Formats(states=table), probed=state) for table in CODES for state in "mv"),
)
"""Runs of a rule. Kernels without narrow formats have only the first."""

_LINES = 19
"""Lines of a tensor: more than a round of the small configurations, but no multiple of one."""

_COUNT = _LINES * PARAMETERS_PER_BEAT - 4
"""Parameters of a tensor that does not fill its last line."""

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
    """Return the bits of a number near 1, sometimes of a subnormal one.

    Half of the numbers have few bits, so that products lie halfway between two numbers.
    """
    exponent = random.choice((0, *range(112, 136)))
    fraction = random.getrandbits(23) & random.choice((-1, -1 << 11))
    return random.getrandbits(1) << 31 | exponent << 23 | fraction


def _operand(random: Random) -> int:
    """Return the bits of any number, of a special one, or of one near 1."""
    kind = random.randrange(8)
    if kind == 0:
        return random.choice(_SPECIAL)
    return random.getrandbits(32) if kind == 1 else _number(random)


def _floats(bits: Sequence[int]) -> Floats:
    return np.array(bits, np.uint32).view(np.float32)


def _bits(values: Any) -> list[int]:
    return np.atleast_1d(np.asarray(values, np.float32)).view(np.uint32).tolist()


def _cut(data: bytes) -> list[bytes]:
    return [data[start : start + LINE_BYTES] for start in range(0, len(data), LINE_BYTES)]
