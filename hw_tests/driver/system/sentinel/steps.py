"""Training steps by hand, as Sentinel's tests need them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sw_driver.machine import Device, Machine, Memory, assumed
from sw_driver.machine.parts import link
from sw_driver.workload.trace import LASTING, Op, Stage, Tensor, Trace

KINDS = {"p": "parameter", "g": "gradient", "i": "input", "a": "activation", "s": "optimizer_state"}
"""Kinds of tensors by the first letter of their names; others are temporaries."""

_WHY = "a round number"


def a_step(layers: int, *ops: tuple[int, str], sizes: Mapping[str, int]) -> Trace:
    """A step of so many layers. Operations are of a stage, and such as ``ab cd>e``, which reads ab
    and cd and writes e; those of stage -1 - n update, and belong to stage n. Tensors have memory
    from their first access to their last, but gradients to the end."""
    split = [tuple(side.split() for side in text.split(">")) for _, text in ops]
    accesses: dict[str, list[int]] = {size: [] for size in sizes}
    for number, sides in enumerate(split):
        for name in [*sides[0], *sides[1]]:
            accesses[name].append(number)
    ids = {name: number for number, name in enumerate(sizes)}

    def tensor(name: str) -> Tensor:
        kind = KINDS.get(name[0], "temporary")
        if kind in LASTING:
            return Tensor(id=ids[name], nbytes=sizes[name], kind=kind, name=name)
        first, *_, last = accesses[name] * 2
        freed = len(ops) if kind == "gradient" else last + 1
        return Tensor(
            id=ids[name], nbytes=sizes[name], kind=kind, name=name, allocated=first, freed=freed
        )

    def op(number: int, stage: int, reads: Sequence[str], writes: Sequence[str]) -> Op:
        updates, stage = stage < 0, max(stage, -1 - stage)
        return Op(
            id=number,
            kind="sgd" if updates else "mm",
            layer=min(stage, 2 * layers - 1 - stage),
            phase="update" if updates else "forward" if stage < layers else "backward",
            stage=stage,
            reads=tuple(ids[read] for read in reads),
            writes=tuple(ids[write] for write in writes),
            read_bytes=tuple(sizes[read] for read in reads),
            write_bytes=tuple(sizes[write] for write in writes),
            flops=0,
        )

    names = [f"layer {index}" for index in range(layers)]
    return Trace(
        name="by hand",
        tensors=tuple(map(tensor, sizes)),
        ops=tuple(op(n, stage, *split[n]) for n, (stage, _) in enumerate(ops)),
        layers=tuple(names),
        stages=(
            *(Stage(name=layer, phase="forward") for layer in names),
            *(Stage(name=layer, phase="backward") for layer in reversed(names)),
        ),
    )


def a_machine(fast_bytes: int) -> Machine:
    """Whose processor reads fast memory at 2 bytes a ns, slow memory at 1, over the link that moves
    go, and does 1 flop a ns."""
    return Machine(
        name="round",
        memories=(
            Memory(name="fast", capacity_bytes=assumed(fast_bytes, _WHY)),
            Memory(name="slow", capacity_bytes=assumed(1 << 30, _WHY)),
        ),
        devices=(
            Device(
                name="cpu",
                memory="fast",
                tflop_per_s=assumed(0.001, _WHY),
                gb_per_s=assumed(2, _WHY),
                launch_ns=assumed(0, _WHY),
            ),
        ),
        links=(link("cross", "fast", "slow", assumed(1, _WHY), assumed(0, _WHY)),),
    )
