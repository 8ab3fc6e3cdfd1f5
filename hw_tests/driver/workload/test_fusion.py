"""Fused operations, by hand and on shipped steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sw_driver.workload import Op, Stage, Tensor, Trace, load_trace, peak_bytes
from sw_driver.workload.fusion import compiled
from sw_driver.workload.recomputation import checkpointed


def op(number: int, kind: str, phase: str, reads: dict[int, int], writes: dict[int, int]) -> Op:
    return Op(
        id=number, kind=kind, layer=0, phase=phase, stage=int(phase != "forward"),
        reads=tuple(reads), writes=tuple(writes), read_bytes=tuple(reads.values()),
        write_bytes=tuple(writes.values()), flops=number + 1,
    )  # fmt: skip


def by_hand() -> Trace:
    """Values 2 to 9 of an input 0 and a parameter 1.

    Forward: 2 and 3 in a chain, an unconnected 4 of a part of 0, a product 5, then 6 = gelu(5),
    which the backward pass needs, and 7 of it. Backward: 8 of 7, then the gradient 9 of 4 to 6.
    """
    kinds = {0: "input", 1: "parameter", 9: "gradient", 5: "activation", 6: "activation"}
    kinds |= {4: "activation"}
    lives = {
        2: (0, 2), 3: (1, 4), 4: (2, 8), 5: (3, 8), 6: (4, 8), 7: (5, 7), 8: (6, 8), 9: (7, 8),
    }  # fmt: skip
    return Trace(
        name="by hand",
        tensors=tuple(
            Tensor(
                id=number, nbytes=100, kind=kinds.get(number, "temporary"),
                allocated=lives.get(number, (0, None))[0], freed=lives.get(number, (0, None))[1],
                parameter=1 if number == 9 else None,
            )
            for number in range(10)
        ),
        ops=(
            op(0, "add", "forward", {0: 100}, {2: 100}),
            op(1, "mul", "forward", {0: 100, 2: 100}, {3: 100}),
            op(2, "exp", "forward", {0: 50}, {4: 100}),
            op(3, "mm", "forward", {3: 100, 1: 100}, {5: 100}),
            op(4, "gelu", "forward", {5: 100}, {6: 100}),
            op(5, "sum", "forward", {6: 100}, {7: 100}),
            op(6, "neg", "backward", {7: 100}, {8: 100}),
            op(7, "mul", "backward", {8: 100, 6: 100, 5: 100, 4: 100}, {9: 100}),
        ),
        layers=("a",),
        stages=(Stage(name="a", phase="forward"), Stage(name="a", phase="backward")),
    )  # fmt: skip


def test_chains_become_one_operation_that_reads_from_outside() -> None:
    trace = compiled(by_hand())
    shown = [
        (
            each.kind, each.phase, dict(zip(each.reads, each.read_bytes, strict=True)),
            dict(zip(each.writes, each.write_bytes, strict=True)), each.flops,
        )
        for each in trace.ops
    ]  # fmt: skip
    # 2, 4, 6 and 8 of the old step vanish: 4 and 6 are made again of 0 and of 5.
    assert shown == [
        ("fused", "forward", {0: 100}, {2: 100}, 1 + 2),
        ("mm", "forward", {2: 100, 1: 100}, {3: 100}, 4),
        ("fused", "forward", {3: 100}, {4: 100}, 5 + 6),
        ("fused", "backward", {4: 100, 0: 50, 3: 100}, {5: 100}, 7 + 3 + 5 + 8),
    ]
    assert [(each.kind, each.allocated, each.freed) for each in trace.tensors[2:]] == [
        ("temporary", 0, 2), ("activation", 1, 4), ("activation", 2, 4), ("gradient", 3, 4),
    ]  # fmt: skip
    assert "recomputed" not in trace.origin


NAMES = ["gpt-tiny", "bert-base", "resnet-50", "lstm-ptb", "transformer-xl-0.7b"]


@pytest.mark.parametrize("name", NAMES)
def test_fusion_keeps_products_and_moves_fewer_bytes(name: str) -> None:
    trace = load_trace(name)
    ours = compiled(trace)
    assert ours.origin["applied"] == ["compiled=yes"]
    assert len(ours.ops) < 0.8 * len(trace.ops)
    products = [
        [(each.kind, each.phase, each.flops, each.nbytes) for each in step.ops if each.geometry]
        for step in (ours, trace)
    ]
    assert products[0] == products[1]
    updates = [
        [each.nbytes for each in step.ops if each.phase == "update"] for step in (ours, trace)
    ]
    assert updates[0] == updates[1]
    assert sum(each.nbytes for each in ours.ops) < sum(each.nbytes for each in trace.ops)
    assert peak_bytes(ours) < 1.001 * peak_bytes(trace)
    for op in ours.ops:
        if op.kind == "fused":
            assert len({*op.reads}) == len(op.reads)
            assert len({*op.writes}) == len(op.writes)


def test_a_block_of_a_gpt_has_three_fused_operations_in_the_forward_pass() -> None:
    """Softmax with its scale, mask and dropout; and twice dropout, residual and norm."""
    trace = compiled(load_trace("gpt-tiny"))
    forward = [each for each in trace.ops if each.phase == "forward"]
    block = [each.kind for each in forward if trace.stages[each.stage].name.startswith("layers.0")]
    assert block == [
        "addmm", "bmm", "fused", "bmm", "clone", "addmm", "fused", "addmm", "gelu", "addmm",
        "fused",
    ]  # fmt: skip
    softmax = next(
        each
        for each in forward
        if each.kind == "fused"
        and "attention" in trace.layers[each.layer]
        and "norm" not in trace.layers[each.layer]
    )
    scores, mask, of_dropout = 4096, 256, 1024
    assert softmax.nbytes == (scores + mask) + (2 * scores + of_dropout)


def test_repeated_operations_stay_listed() -> None:
    trace = checkpointed(load_trace("gpt-tiny"), "full")
    ours = compiled(trace)
    again = [ours.ops[each] for each in ours.origin["recomputed"]]
    before = [trace.ops[each] for each in trace.origin["recomputed"]]
    assert {each.phase for each in again} == {"backward"}
    products = [[each.flops for each in some if each.geometry] for some in (again, before)]
    assert products[0] == products[1] != []
    # A fused operation counts if nothing in it belongs to the backward pass proper.
    work, old_work = (sum(each.flops for each in some) for some in (again, before))
    assert 0.95 * old_work < work < old_work


def test_one_operation_is_made_again_and_not_a_chain() -> None:
    trace = by_hand()
    chain = replace(trace.ops[1], kind="mul", reads=(4, 0), read_bytes=(100, 100), writes=(3,))
    ops = (*trace.ops[:1], trace.ops[2], chain, *trace.ops[3:-1])
    last = op(7, "mul", "backward", {8: 100, 6: 100, 5: 100, 4: 100, 3: 100}, {9: 100})
    ops = tuple(replace(each, id=number) for number, each in enumerate((*ops, last)))
    changed = {3: {"kind": "activation", "freed": 8}, 4: {"allocated": 1}}
    tensors = (replace(each, **changed.get(each.id, {})) for each in trace.tensors)
    ours = compiled(replace(trace, ops=ops, tensors=tuple(tensors)))
    kept = [each for each in ours.tensors if each.kind == "activation"]
    # 4 is made again; 3, which is made of it, is kept, as are the product and 7.
    assert len(kept) == 3
