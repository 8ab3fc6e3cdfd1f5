"""The PIM driver's descriptors: words, spans and counts, against the golden model's."""

from __future__ import annotations

import os
import struct
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

import golden.pim as golden
from golden.pim.descriptor import FORMS
from hw.pim.work.descriptor import PLAN_BITS
from sw_driver.device.errors import InvalidArgumentError
from sw_driver.pim.descriptor import Opcode, StridedTensor, TilingPlan, Work

SEED = int(os.environ.get("NEARMEM_TEST_SEED", "1"))
TENSORS = ("a", "b", "result")


def as_golden(work: Work) -> golden.Descriptor:
    """The same work as the golden model has it."""
    tensors = {
        name: golden.StridedTensor(
            address_bytes=getattr(work, name).address_bytes, strides=getattr(work, name).strides
        )
        for name in TENSORS
    }
    rest = {item.name: getattr(work, item.name) for item in fields(work)}
    plan = work.plan or TilingPlan()
    flags = plan.exchanged | plan.first_across << 1 | plan.second_across << 2
    sizes = plan.chunk, plan.depth, plan.seconds, plan.block, plan.channels
    return golden.Descriptor(**rest | tensors | {"plan": golden.TilingPlan(*sizes, flags)})


def random_work(rng: np.random.Generator) -> Work:
    """A work of any opcode with small sizes, at any place, not necessarily a good one."""
    opcode = Opcode(rng.choice(list(Opcode)))
    form = FORMS[golden.Opcode(opcode)]
    values: dict[str, Any] = {size: int(rng.integers(1, 9)) for size in form.sizes}
    values |= {size: int(rng.integers(0, 3)) for size in form.pads}
    for name, indices in form.tensors.items():
        strides = tuple(int(stride) for stride in rng.integers(-40, 400, len(indices)))
        values[name] = StridedTensor(address_bytes=int(rng.integers(1 << 20)), strides=strides)
    return Work(opcode=opcode, units=7, **values)


def test_words_are_the_golden_models() -> None:
    rng = np.random.default_rng(SEED)
    names = [item.name for item in fields(Work) if item.name not in (*TENSORS, "plan")]
    for _ in range(100):
        values = {name: int(rng.integers(0, 1 << 32)) for name in names}
        places = {
            name: StridedTensor(
                address_bytes=int(rng.integers(0, 1 << 63)),
                strides=tuple(map(int, rng.integers(-(1 << 31), 1 << 31, rng.integers(0, 5)))),
            )
            for name in TENSORS
        }
        plan = TilingPlan(
            **{name: int(rng.integers(0, 1 << bits)) for name, bits in PLAN_BITS.items()}
        )
        work = Work(**values, **places, plan=plan)
        assert struct.pack("<48I", *work.encode()) == as_golden(work).encode()


def test_opcodes_are_the_golden_models() -> None:
    assert {opcode.name: int(opcode) for opcode in Opcode} == {
        opcode.name: int(opcode) for opcode in golden.Opcode
    }


def test_spans_and_counts_are_the_golden_models() -> None:
    rng = np.random.default_rng(SEED)
    for _ in range(300):
        work = random_work(rng)
        other = as_golden(work)
        assert work.operands == other.operands
        for name in (*work.operands, "result"):
            assert work.span(name) == other.span(name)
            assert work.extents(name) == other.extents(name)
        account = golden.account(other)
        assert work.operations == (account.multiplications, account.additions)


def test_overlaps_are_the_golden_models() -> None:
    """Of small works in little room, some of them in place."""
    rng = np.random.default_rng(SEED)
    stack = golden.StackMap(banks=1, bank_bytes=1 << 20)
    seen = {True: 0, False: 0}
    for _ in range(5000):
        work = random_work(rng)
        places = {}
        for name in (*work.operands, "result"):
            strides = rng.choice([1, 2, 8, 60, 400], len(getattr(work, name).strides))
            address = (1 << 18) + 4 * int(rng.integers(6000))
            places[name] = StridedTensor(address_bytes=address, strides=tuple(map(int, strides)))
        if rng.random() < 0.3:
            places["a"] = places["result"]
        work = replace(work, **places)
        cause = golden.check(as_golden(work), stack=stack, units=7)
        assert cause in (golden.Cause.NONE, golden.Cause.OVERLAP)
        assert work.overlaps == (cause == golden.Cause.OVERLAP)
        seen[work.overlaps] += 1
    assert min(seen.values()) > 500
    row, behind = (StridedTensor(address_bytes=at, strides=(8, 1)) for at in (0, 32))
    assert not Work(opcode=Opcode.ADD, rows=1, columns=8, a=row, b=row, result=behind).overlaps


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (Work(opcode=-1), "opcode is -1: expected an integer from 0 to 4294967295"),
        (Work(opcode=1, rows=1 << 32), "rows is 4294967296"),
        (Work(opcode=1, a=StridedTensor(address_bytes=-4)), "address of a is -4"),
        (Work(opcode=1, b=StridedTensor(address_bytes=1 << 64)), "address of b is"),
        (Work(opcode=1, b=StridedTensor(strides=(0, 1 << 31))), "stride 1 of b is 2147483648"),
        (
            Work(opcode=1, result=StridedTensor(strides=(-(1 << 31) - 1,))),
            "stride 0 of result is -2147",
        ),
        (Work(opcode=1, a=StridedTensor(strides=(1,) * 5)), "a has 5 strides"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refuses_what_a_field_cannot_hold(work: Work, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        work.encode()
