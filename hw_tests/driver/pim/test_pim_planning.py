"""The PIM driver's plans and groups: what a pool accepts, and what the documents say of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from golden.pim import Cause, Descriptor, StackMap, check
from hw.pim.config import PimConfig, configure
from hw_tests.pim.front.front_works import front_configurations
from hw_tests.pim.plans import room_of
from sw_driver.experiments.pim.networks import NETWORKS, named_layer
from sw_driver.pim.descriptor import Opcode, StridedTensor, TilingPlan, Work
from sw_driver.pim.lowering import PASSES, lower
from sw_driver.pim.planning import planned

PAPER = configure("paper")


def convolution(network: str, name: str, **changes: Any) -> Work:
    (work,) = lower(named_layer(network, name), "forward", PAPER).works[:1]
    return replace(work, **changes)


def refusal(work: Work, config: PimConfig) -> Cause:
    descriptor = Descriptor.decode(work.encode_bytes())
    stack = StackMap(banks=config.banks, bank_bytes=config.bank_bytes)
    return check(descriptor, stack=stack, units=config.units, room=room_of(config))


@pytest.mark.parametrize("most", [0, 1_000_000])
def test_plans_of_all_layers_are_accepted(most: int) -> None:
    seen = set()
    for layers, name in product(NETWORKS.values(), PASSES):
        for layer in layers.values():
            for work in lower(layer.scaled(most) if most else layer, name, PAPER).works[:3]:
                made = planned(work, PAPER)
                assert refusal(made, PAPER) == Cause.NONE, made
                seen.add(made.plan)
    assert len(seen) > 20


@pytest.mark.parametrize("name", front_configurations())
def test_plans_of_any_sizes_are_accepted(name: str) -> None:
    config = front_configurations()[name]
    counts = (1, 3, 7, 8, 13, 32, 33, 800)
    for rows, columns, length in product(counts, counts, (1, 8, 9, 100, 1000, 1 << 20)):
        made = planned(
            Work(
                opcode=Opcode.MATMUL,
                a=StridedTensor(strides=(0, 1)),
                b=StridedTensor(strides=(0, 0)),
                result=StridedTensor(strides=(columns, 1)),
                rows=rows,
                columns=columns,
                length=length,
                units=1,
            ),
            config,
        )
        # Not all of them fit into each stack.
        assert refusal(made, config) != Cause.PLAN, made


def test_plans_by_hand() -> None:
    """Convolutions of 11 x 11 and 3 x 3 at full size, on all banks."""
    eleven = planned(convolution("alexnet", "conv1"), PAPER).plan
    # A chunk is a channel of 121 taps; a tile has four first vectors a lane, and all second ones.
    assert eleven == TilingPlan(
        chunk=7, depth=2, seconds=7, block=4, channels=1, first_across=0, second_across=0
    )
    short = planned(Work(opcode=Opcode.ADD, rows=1, columns=8, units=1), PAPER).plan
    assert short == TilingPlan(chunk=6)


def test_strides_that_are_not_given_are_zero() -> None:
    for opcode in Opcode:
        sizes = dict.fromkeys(("rows", "columns", "length", "filter_height", "filter_width"), 3)
        sizes |= dict.fromkeys(("images", "filters", "channels", "height", "width"), 2)
        work = Work(opcode=opcode, units=1, stride=1, dilation=1, **sizes)
        strided = replace(
            work, a=StridedTensor(strides=(0,) * 4), b=StridedTensor(strides=(0,) * 4)
        )
        assert planned(work, PAPER).plan == planned(strided, PAPER).plan


def test_a_plan_that_there_is_stays() -> None:
    plan = TilingPlan(chunk=3, exchanged=1)
    assert planned(convolution("alexnet", "conv1", plan=plan), PAPER).plan == plan


@pytest.mark.parametrize("changes", [{"opcode": 5}, {"rows": 0}, {"filters": -1}])
def test_what_the_pool_refuses_anyway_stays_as_it_is(changes: dict[str, int]) -> None:
    work = convolution("alexnet", "conv1", **changes)
    assert planned(work, PAPER) is work


@pytest.mark.parametrize(
    ("size", "channels", "units"), [(11, 3, 241), (3, 3, 17), (1, 2, 2), (1, 1, 1)]
)
def test_groups_of_filters(size: int, channels: int, units: int) -> None:
    """Of the paper's 444 an 11 x 11 filter takes 241, if it has one result; one tap needs an adder
    for several channels."""
    sizes = {"filter_height": size, "filter_width": size, "channels": channels}
    one = convolution("vgg-19", "conv3_1", rows=1, columns=1, images=1, filters=1, **sizes)
    assert planned(replace(one, units=444), PAPER).units == units


def test_units_of_a_convolution_are_limited_and_not_rounded() -> None:
    three = convolution("vgg-19", "conv3_1")
    assert [planned(replace(three, units=n), PAPER).units for n in (444, 35, 1)] == [444, 35, 1]
    one_output = replace(three, rows=1, columns=1, images=1, filters=1)
    assert [planned(replace(one_output, units=n), PAPER).units for n in (444, 16)] == [17, 16]
    assert planned(replace(one_output, units=445), PAPER).units == 445  # for the pool to refuse


@pytest.mark.parametrize(
    ("opcode", "most"),
    [
        *((Opcode.ADD, 30), (Opcode.MUL, 30), (Opcode.SCALEADD, 60), (Opcode.SUM, 210)),
        *((Opcode.DOT, 420), (Opcode.MATVEC, 420), (Opcode.MATMUL, 420)),
    ],
)
def test_units_that_a_work_has_use_for(opcode: Opcode, most: int) -> None:
    work = Work(opcode=opcode, images=1, rows=5, columns=6, length=7)
    offered = 1, most - 1, most, PAPER.units
    assert [planned(replace(work, units=n), PAPER).units for n in offered] == [
        *(1, most - 1, most, most),
    ]
