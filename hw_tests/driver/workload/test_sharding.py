"""Data parallelism, by hand after the ZeRO paper's table, and on shipped steps."""

from __future__ import annotations

import pytest

from sw_driver.workload import Op, Stage, Tensor, Trace, TraceError, load_trace, peak_bytes
from sw_driver.workload.collectives import COLLECTIVES
from sw_driver.workload.precision import in_precision
from sw_driver.workload.sharding import BUCKET_BYTES, SCHEMES, sharded
from sw_driver.workload.trace import DTYPES

BLOCKS = 3
ELEMENTS = 4096
"""Elements of a block's parameter, with 2 bytes, a gradient of 2, and 12 of optimizer states."""
PSI = BLOCKS * ELEMENTS


def op(kind: str, phase: str, layer: int, reads: list[int], writes: list[int]) -> Op:
    stage = layer if phase == "forward" else 2 * BLOCKS - 1 - layer
    sizes = {0: 2, 1: 2, 2: 12}
    read, written = (
        tuple(ELEMENTS * sizes[each // BLOCKS] if each < 3 * BLOCKS else 8 for each in ids)
        for ids in (reads, writes)
    )
    return Op(
        id=0, kind=kind, layer=2 * layer, phase=phase, stage=stage, reads=tuple(reads),
        writes=tuple(writes), read_bytes=read, write_bytes=written, flops=ELEMENTS, dtype="bf16",
    )  # fmt: skip


def by_hand() -> Trace:
    """Three blocks of a parameter: tensors 0 to 2, gradients 3 to 5, states 6 to 8; then values."""
    batch = 3 * BLOCKS
    ops = [op("mul", "forward", n, [n, batch + n], [batch + n + 1]) for n in range(BLOCKS)]
    ops += [op("mul", "backward", n, [n, batch + n], [BLOCKS + n]) for n in reversed(range(BLOCKS))]
    ops += [op("adam", "update", n, [n, 3 + n, 6 + n], [n, 6 + n]) for n in range(BLOCKS)]
    ops = [Op(**{**_fields(each), "id": number}) for number, each in enumerate(ops)]
    sizes = {"parameter": 2, "gradient": 2, "optimizer_state": 12}
    tensors = [
        Tensor(
            id=0, kind=kind, nbytes=ELEMENTS * size, element_bytes=4 if size == 12 else 2,
            name=f"layers.{n}.inner.weight", parameter=None if kind == "parameter" else n,
            allocated=5 - n if kind == "gradient" else 0, freed=9 if kind == "gradient" else None,
        )
        for kind, size in sizes.items()
        for n in range(BLOCKS)
    ]  # fmt: skip
    tensors.append(Tensor(id=0, nbytes=8, kind="input"))
    tensors += [
        Tensor(id=0, nbytes=8, kind="activation", allocated=n, freed=5 - n) for n in range(2)
    ]
    tensors.append(Tensor(id=0, nbytes=8, kind="temporary", allocated=2, freed=3))
    names = [f"layers.{n}" for n in range(BLOCKS)]
    return Trace(
        name="by hand",
        tensors=tuple(Tensor(**{**_fields(each), "id": n}) for n, each in enumerate(tensors)),
        ops=tuple(ops),
        layers=tuple(each for name in names for each in (f"{name}.inner", name)),
        stages=tuple(
            Stage(name=each, phase=phase)
            for phase, some in (("forward", names), ("backward", names[::-1]))
            for each in some
        ),
    )


def _fields(record: Op | Tensor) -> dict[str, object]:
    return {name: getattr(record, name) for name in record.__slots__}


@pytest.mark.parametrize("gpus", [2, 4, 64])
def test_the_states_take_what_the_papers_table_says(gpus: int) -> None:
    kinds = ("parameter", "gradient", "optimizer_state")
    least = {scheme: peak_bytes(sharded(by_hand(), scheme, gpus), *kinds) for scheme in SCHEMES}
    assert least == {
        "ddp": 16 * PSI,
        "zero1": 4 * PSI + 12 * PSI // gpus,
        "zero2": 2 * PSI + 14 * PSI // gpus,
        "zero3": 16 * PSI // gpus,
    }


def test_blocks_are_gathered_one_ahead_and_freed() -> None:
    trace = sharded(by_hand(), "zero3", 4)
    shown = [
        (each.kind, each.phase, trace.tensors[(each.reads + each.writes)[0]].name[7:8])
        for each in trace.ops
    ]
    assert shown == [
        ("all_gather", "forward", "0"), ("all_gather", "forward", "1"), ("mul", "forward", "0"),
        ("all_gather", "forward", "2"), ("mul", "forward", "1"), ("mul", "forward", "2"),
        ("all_gather", "backward", "1"), ("mul", "backward", "2"),
        ("reduce_scatter", "backward", "2"),
        ("all_gather", "backward", "0"), ("mul", "backward", "1"),
        ("reduce_scatter", "backward", "1"),
        ("mul", "backward", "0"), ("reduce_scatter", "backward", "0"),
        ("adam", "update", "0"), ("adam", "update", "1"), ("adam", "update", "2"),
    ]  # fmt: skip


def test_two_blocks_and_a_gradient_are_whole_at_once() -> None:
    trace = sharded(by_hand(), "zero3", 4)
    block = 2 * ELEMENTS
    whole = [each for each in trace.tensors if each.nbytes == block]
    alive = [
        sum(each.allocated <= number < (each.freed or 0) for each in whole)
        for number in range(len(trace.ops))
    ]
    assert alive == [1, 2, 2, 2, 2, 1, 2, 3, 3, 2, 3, 3, 2, 2, 0, 0, 0]
    # The last block stays between the passes; the last gradient has no share yet.
    assert peak_bytes(trace) == 16 * PSI // 4 - block // 4 + 3 * block + 8


def test_a_collectives_bytes_are_the_tensors() -> None:
    for scheme in SCHEMES:
        trace = sharded(by_hand(), scheme, 4)
        for each in trace.ops:
            if each.kind in COLLECTIVES:
                small, large = sorted((sum(each.read_bytes), sum(each.write_bytes)))
                assert small == (large if each.kind == "all_reduce" else large // 4)
                assert (each.flops, each.geometry, each.dtype) == (0, None, "bf16")


NAMES = ["gpt-tiny", "bert-base", "resnet-50", "lstm-ptb"]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", NAMES)
def test_a_share_computes_the_same_and_moves_every_gradient_once(name: str, scheme: str) -> None:
    trace = load_trace(name)
    ours = sharded(trace, scheme, 8)
    assert ours.origin["gpus"] == 8
    passes = [each for each in trace.ops if each.phase != "update"]
    own = [each for each in ours.ops if each.phase != "update" and each.kind not in COLLECTIVES]
    assert [(each.kind, each.flops, each.nbytes) for each in own] == [
        (each.kind, each.flops, each.nbytes) for each in passes
    ]
    reduced = [each for each in ours.ops if each.kind in ("all_reduce", "reduce_scatter")]
    assert {each.phase for each in reduced} == {"backward"}
    moved = dict.fromkeys(COLLECTIVES, 0)
    for each in ours.ops:
        if each.kind in COLLECTIVES:
            moved[each.kind] += max(sum(each.read_bytes), sum(each.write_bytes))
    gradients = peak_bytes(trace, "gradient")
    parameters = peak_bytes(trace, "parameter")
    if scheme == "ddp":
        assert moved == {"all_reduce": gradients, "all_gather": 0, "reduce_scatter": 0}
    elif scheme != "zero3":
        assert moved == {"all_reduce": 0, "all_gather": parameters, "reduce_scatter": gradients}
    else:
        assert moved["reduce_scatter"] == gradients
        assert parameters <= moved["all_gather"] <= 2 * parameters
    updates = [each for each in ours.ops if each.phase == "update" and each.kind not in COLLECTIVES]
    share = 1 if scheme == "ddp" else 8
    whole = [each for each in trace.ops if each.phase == "update"]
    for one, other in zip(updates, whole, strict=True):
        assert one.flops == -(-other.flops // share)
        assert other.nbytes <= one.nbytes * share <= other.nbytes + share * 4 * 7


@pytest.mark.parametrize("name", NAMES)
def test_a_scheme_takes_less_than_the_one_before(name: str) -> None:
    trace = load_trace(name)
    peaks = [peak_bytes(trace), *(peak_bytes(sharded(trace, each, 8)) for each in SCHEMES)]
    assert peaks[0] == peaks[1] >= peaks[2] >= peaks[3] > peaks[4]


def test_a_bucket_is_full_or_the_last() -> None:
    trace = sharded(load_trace("bert-base"), "ddp", 8)
    sizes = [sum(each.read_bytes) for each in trace.ops if each.kind == "all_reduce"]
    assert all(each >= BUCKET_BYTES for each in sizes[:-1])


def test_copies_in_another_format_are_gathered_instead() -> None:
    trace = by_hand()
    tensors, ops = [*trace.tensors], []
    for n in range(BLOCKS):  # parameters of 4 bytes, which the step reads as copies of 2
        tensors[n] = Tensor(**{**_fields(tensors[n]), "nbytes": 4 * ELEMENTS, "element_bytes": 4})
        copy = Tensor(id=len(tensors), nbytes=2 * ELEMENTS, kind="activation", element_bytes=2)
        tensors.append(Tensor(**{**_fields(copy), "allocated": 2 * n, "freed": 9 - n}))
    for each in trace.ops:
        n = each.layer // 2
        if each.phase == "forward":
            cast = Op(
                id=len(ops), kind="_to_copy", layer=each.layer, phase="forward", stage=each.stage,
                reads=(n,), writes=(13 + n,), read_bytes=(4 * ELEMENTS,),
                write_bytes=(2 * ELEMENTS,), flops=0, dtype="bf16",
            )  # fmt: skip
            ops.append(cast)
        reads = each.reads if each.phase == "update" else (13 + n, *each.reads[1:])
        ops.append(Op(**{**_fields(each), "id": len(ops), "reads": reads}))
    for number in (9, 10, 11, 12, 3, 4, 5):
        tensors[number] = Tensor(**{**_fields(tensors[number]), "allocated": 0, "freed": None})
    cast_trace = Trace(
        name="cast",
        tensors=tuple(tensors),
        ops=tuple(ops),
        layers=trace.layers,
        stages=trace.stages,
    )
    ours, plain = sharded(cast_trace, "zero3", 4), sharded(trace, "zero3", 4)
    assert [each.kind for each in ours.ops] == [each.kind for each in plain.ops]
    gathers = [each for each in ours.ops if each.kind == "all_gather"]
    assert {each.write_bytes for each in gathers} == {(2 * ELEMENTS,)}
    assert {each.read_bytes for each in gathers} == {(ELEMENTS,)}
    assert {each.dtype for each in gathers} == {"bf16"}


def test_a_message_has_one_format() -> None:
    trace = sharded(in_precision(load_trace("gpt-tiny"), "bf16-mixed"), "zero3", 4)
    for each in trace.ops:
        if each.kind in COLLECTIVES:
            sizes = {trace.tensors[one].element_bytes for one in each.writes}
            assert sizes == {DTYPES[each.dtype]}


def test_one_gpu_and_unknown_schemes() -> None:
    trace = by_hand()
    assert sharded(trace, "zero3", 1) is trace
    with pytest.raises(TraceError, match=r"shard is 'zero4': did you mean .* expected one of ddp"):
        sharded(trace, "zero4", 2)
    with pytest.raises(TraceError, match=r"gpus is 0: expected an integer of 1 or more"):
        sharded(trace, "ddp", 0)
