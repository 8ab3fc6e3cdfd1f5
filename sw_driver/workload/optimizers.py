"""Traces with another optimizer: its states, updates and their place in the step."""

from __future__ import annotations

from dataclasses import replace

from hw.rules import RULES
from hw.rules.update_rule import UpdateRule
from sw_driver.numbers import check_name

from .edits import derived, marked, rebuilt
from .trace import Op, Tensor, Trace, TraceError

__all__ = ["BLOCK", "OPTIMIZERS", "SMALL", "with_optimizer"]

BLOCK = 256
"""Elements of an 8-bit state that share a scale in FP32. Given: bitsandbytes."""
SMALL = 4096
"""Elements from which a state has 8 bits; smaller ones stay in FP32. Given: bitsandbytes."""

_FORMATS = ("8bit", "-bf16")
_RULES = {
    name: rule
    for name, rule in RULES.items()
    if {"p", "g"} <= set(rule.inputs) and "p" in rule.outputs
}
OPTIMIZERS = (
    *_RULES,
    *(name + form for name, rule in _RULES.items() if len(rule.tensors) > 2 for form in _FORMATS),
)
"""Names of optimizers: rules of :mod:`hw.rules`, and those with states in 8 bits or BF16."""


def with_optimizer(trace: Trace, optimizer: str, *, in_backward: bool = False) -> Trace:
    """Return the step with the parameters updated by another of :data:`OPTIMIZERS`.

    States have the format of their parameter, as in PyTorch. With ``8bit`` they are those of
    bitsandbytes: a byte an element, and a scale for each :data:`BLOCK`. With ``-bf16`` they are in
    BF16. An update's work is the rule's; conversions of states are not counted.

    With ``in_backward`` a parameter is updated once the backward pass is done with it and its
    gradient, which is freed at once. Nothing may need all gradients, such as a limit of their norm
    or a sum over micro-batches.

    Apply it last, since it follows the parameters and gradients that others leave. Raises
    :class:`~sw_driver.workload.trace.TraceError` for another name, for a step with an optimizer
    applied, and for ``in_backward`` with several micro-batches.
    """
    check_name("optimizer", optimizer, OPTIMIZERS, TraceError)
    origin = marked(trace, "optimizer", optimizer + (", in backward" if in_backward else ""))
    several = next((text for text in origin["applied"] if text.startswith("accumulate=")), None)
    if in_backward and several:
        raise TraceError(
            f"the optimizer runs in the backward pass, but {trace.name} has {several}: expected "
            f"one micro-batch, since a gradient is freed after its update; leave out in_backward"
        )
    name = next((optimizer.removesuffix(form) for form in _FORMATS if form in optimizer), optimizer)
    rule, form = _RULES[name], optimizer.removeprefix(name)
    operations = len(rule.flow().placed)
    tensors = list(trace.tensors)
    groups: list[list[Op]] = [[] for _ in trace.ops]
    released = set[int]()
    for op in trace.ops:
        if op.phase != "update":
            groups[op.id].insert(0, op)  # updates moved here run after it
            continue
        parameter, gradient = _updated(trace, op)
        place = op.id
        if in_backward:
            uses = (*trace.accesses[parameter], *trace.accesses[gradient])
            place = max(use for use in uses if trace.ops[use].phase != "update")
            released.add(gradient)
        update = _update(op, rule, form, tensors, parameter, gradient)
        groups[place].append(replace(update, flops=operations * update.flops))
    return rebuilt(trace, groups, tensors, {**origin, "rule": name}, released)


def _updated(trace: Trace, op: Op) -> tuple[int, int]:
    """Return the parameter and the gradient of an update."""
    gradient = next(read for read in op.reads if trace.tensors[read].kind == "gradient")
    return next(read for read in op.reads if trace.tensors[read].kind == "parameter"), gradient


def _update(
    op: Op, rule: UpdateRule, form: str, tensors: list[Tensor], parameter: int, gradient: int
) -> Op:
    """Return the update by a rule, with one operation an element; add its states to tensors."""
    weights = tensors[parameter]
    elements, width = weights.elements, weights.element_bytes
    if form:
        width = 2 if form == "-bf16" else 1 if elements >= SMALL else 4
    size = int(elements * width) + (4 * -(-elements // BLOCK) if width == 1 else 0)
    ids = {"p": parameter, "g": gradient}
    for tensor in rule.tensors:
        if tensor not in ids:
            ids[tensor] = number = len(tensors)
            tensors.append(
                Tensor(
                    id=number, nbytes=size, kind="optimizer_state", name=weights.name,
                    parameter=parameter, element_bytes=width,
                )
            )  # fmt: skip
    reads, writes = (
        {ids[name]: tensors[ids[name]].nbytes for name in names}
        for names in (rule.inputs, rule.outputs)
    )
    return derived(op, rule.name, reads, writes, elements)
