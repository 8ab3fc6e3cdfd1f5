"""Operations in the parts that TensorFlow has of them, in steps that do the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sw_driver.system.sentinel.apart import taken_apart
from sw_driver.workload.trace import load_trace

from .steps import a_step


def test_an_operation_is_its_parts() -> None:
    sizes = {"p": 8, "i": 400, "p1": 4, "y": 80, "z": 80}
    step = a_step(1, (0, "i p p1>y"), (1, "y>z"), sizes=sizes)
    kinds = "convolution", "leaky_relu"
    step = replace(
        step,
        ops=tuple(replace(op, kind=k, flops=7) for op, k in zip(step.ops, kinds, strict=True)),
    )
    trace = taken_apart(step)
    names = [each.name for each in trace.tensors]
    parts = [
        (op.kind, [names[each] for each in op.reads], [names[each] for each in op.writes], op.flops)
        for op in trace.ops
    ]
    assert parts == [
        ("Conv2D", ["i", "p"], ["y"], 7),
        ("BiasAdd", ["y", "p1"], ["y"], 20),
        ("Mul", ["y"], ["z"], 7),
        ("Maximum", ["y", "z"], ["z"], 20),
    ]
    assert [(each.allocated, each.freed) for each in trace.tensors[3:]] == [(0, 4), (2, 4)]


def test_temporaries_live_among_the_parts() -> None:
    step = a_step(
        1, (0, "i a0>y m"), (1, "y>z"), sizes={"i": 40, "a0": 1, "y": 40, "m": 10, "z": 4}
    )
    names = "native_dropout", "sum"
    step = replace(
        step, ops=tuple(replace(op, kind=k) for op, k in zip(step.ops, names, strict=True))
    )
    assert taken_apart(step) == step, "one that reads other than is known stays"
    reads = replace(step.ops[0], reads=(0,), read_bytes=(40,))
    trace = taken_apart(replace(step, ops=(reads, step.ops[1])))
    assert [op.kind for op in trace.ops] == [
        "RandomUniform", "GreaterEqual", "Mul", "Cast", "Mul", "sum"
    ]  # fmt: skip
    made = [(each.nbytes, each.allocated, each.freed) for each in trace.tensors[5:]]
    assert made == [(40, 0, 2), (40, 3, 5)]


@pytest.mark.parametrize(
    ("name", "gone"),
    [
        ("resnet32", {"native_batch_norm", "native_batch_norm_backward", "addmm"}),
        ("lstm-ptb", {"native_dropout", "native_dropout_backward"}),
        ("dcgan", {"convolution", "leaky_relu"}),
    ],
)
def test_recipes_are_of_what_networks_have(name: str, gone: set[str]) -> None:
    trace = load_trace(name)
    assert gone <= {op.kind for op in trace.ops}
    assert not gone & {op.kind for op in taken_apart(trace).ops}
