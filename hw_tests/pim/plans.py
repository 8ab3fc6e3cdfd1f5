"""Plans for the golden model's descriptors: the driver's, and any others that fit."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from typing import Any

from golden.pim import Cause, Descriptor, Opcode, Room, StackMap, TilingPlan, check
from golden.pim.descriptor import ELEMENTWISE
from hw.pim.config import PimConfig
from sw_driver.pim import planning
from sw_driver.pim.descriptor import StridedTensor, Work

__all__ = ["any_plan", "planned", "room_of"]

_TENSORS = ("a", "b", "result")


def room_of(config: PimConfig) -> Room:
    """For what the banks of a pool have room."""
    return Room(config.first_words, config.second_words, config.state_words)


def planned(work: Descriptor, config: PimConfig) -> Descriptor:
    """The work with the driver's plan; its units stay."""
    values: dict[str, Any] = {item.name: getattr(work, item.name) for item in fields(Work)}
    values |= {name: StridedTensor(**vars(getattr(work, name))) for name in _TENSORS}
    made = planning.planned(Work(**values | {"plan": None}), config)
    return replace(work, plan=Descriptor.decode(made.encode_bytes()).plan)


def any_plan(work: Descriptor, config: PimConfig, rng: random.Random) -> Descriptor:
    """A good work with some plan that fits."""
    stack = StackMap(banks=config.banks, bank_bytes=config.bank_bytes)
    taps = work.length or work.filter_height * work.filter_width
    while True:
        if work.opcode in ELEMENTWISE:
            plan = TilingPlan(chunk=rng.randint(3, 9))
        else:
            chunk = rng.randint(3, max(3, config.first_words.bit_length() - 6))
            exchanged = work.opcode in (Opcode.MATMUL, Opcode.CONV2D) and rng.randrange(2)
            plan = TilingPlan(
                chunk=chunk,
                depth=rng.randint(0, 3),
                seconds=rng.choice((rng.randint(0, 3), rng.randint(0, 10))),
                block=rng.randint(0, 6),
                channels=rng.choice((0, rng.randint(0, (1 << chunk) // taps))),
                flags=exchanged | 2 * rng.randrange(4),
            )
        work = replace(work, plan=plan)
        if check(work, stack=stack, units=config.units, room=room_of(config)) != Cause.PLAN:
            return work
