"""Small training steps of two layers at random, and a machine for them."""

from __future__ import annotations

from random import Random

from sw_driver.machine import Machine
from sw_driver.machine.sentinel import SENTINEL
from sw_driver.workload.trace import KINDS, LASTING, Op, Stage, Tensor, Trace


def random_step(random: Random, tensors: int, ops: int) -> Trace:
    made = []
    for number in range(tensors):
        kind, nbytes = random.choice(KINDS), random.randrange(1, 40) * 1000
        begin = 0 if kind in LASTING else random.randrange(ops)
        end = None if kind in LASTING else random.randrange(begin + 1, ops + 1)
        made.append(Tensor(id=number, nbytes=nbytes, kind=kind, allocated=begin, freed=end))

    def some(op: int, most: int) -> tuple[int, ...]:
        there = [tensor.id for tensor in made if tensor.allocated <= op < (tensor.freed or ops)]
        return tuple(random.sample(there, min(len(there), random.randrange(most + 1))))

    accesses = [(some(op, 4), some(op, 1)) for op in range(ops)]
    return Trace(
        name="random",
        tensors=tuple(made),
        ops=tuple(
            Op(
                id=number,
                kind="mm",
                layer=0,
                phase="forward",
                stage=number * 4 // ops,
                reads=reads,
                writes=writes,
                read_bytes=tuple(made[read].nbytes for read in reads),
                write_bytes=tuple(made[write].nbytes for write in writes),
                flops=random.choice((0, 10**6)),
            )
            for number, (reads, writes) in enumerate(accesses)
        ),
        layers=("a", "b"),
        stages=tuple(
            Stage(name=name, phase=phase)
            for phase, names in (("forward", "ab"), ("backward", "ba"))
            for name in names
        ),
    )


def with_fast(nbytes: int, transfers: str = "shared", **changes: str) -> Machine:
    """Sentinel's machine with so much fast memory; ``transfers`` is of both memories."""
    return SENTINEL.override(
        {
            "fast.capacity_bytes": str(nbytes),
            "fast.transfers": transfers,
            "slow.transfers": transfers,
            **{key.replace("__", "."): value for key, value in changes.items()},
        }
    )
