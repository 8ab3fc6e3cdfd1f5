"""Offloading: bytes in every place and on every way by hand, and refusals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sw_driver.workload import Trace, TraceError, load_trace, offloading, peak_bytes
from sw_driver.workload.activation_offloading import AHEAD, activations_offloaded
from sw_driver.workload.offloading import MOVE, Offload, offloaded, paged, place_of
from sw_driver.workload.trace import LASTING
from sw_driver.workload.training import Training

HALF = Training(precision="bf16", has_masters=True)
STREAMED = replace(HALF, is_streamed=True)


def step(training: Training = HALF) -> Trace:
    return training.apply(load_trace("gpt-tiny"))


def held(trace: Trace, place: str, *kinds: str) -> int:
    return peak_bytes(trace, *kinds, place=place)


def moved(trace: Trace) -> Counter[tuple[str, str]]:
    """Return the bytes that moves take away, by both places."""
    ways = Counter[tuple[str, str]]()
    for op in trace.ops:
        if op.kind == MOVE:
            ends = (trace.tensors[op.reads[0]].place, trace.tensors[op.writes[0]].place)
            ways[ends] += sum(op.read_bytes)
    return ways


def offloaded_to_host(trace: Trace) -> Trace:
    return offloaded(trace, Offload(parameters="host", is_clipped=False))


def elements(trace: Trace) -> int:
    return sum(one.elements for one in trace.tensors if one.kind == "parameter")


def test_zero_offload_has_two_bytes_there_and_twelve_on_the_host() -> None:
    before = step()
    count, made = elements(before), offloaded(before, Offload())
    assert held(made, "gpu", "parameter") == 2 * count
    assert held(made, "gpu", "optimizer_state") == 0
    assert held(made, "host", "optimizer_state") == 12 * count  # FP32: master and two moments
    assert held(made, "host", "gradient") == (2 + 4) * count  # as they came, and in FP32
    assert moved(made) == {("gpu", "host"): 2 * count, ("host", "gpu"): 2 * count}
    buckets = 2 * 2 * count  # all gradients of so small a network are one
    assert held(made, "gpu") <= held(before, "gpu") - 12 * count + buckets


def test_gradients_leave_the_gpu_as_they_are_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offloading, "BUCKET_BYTES", 1)
    made = offloaded(step(), Offload())
    assert held(made, "gpu", "gradient") < 2 * elements(made) / 4
    gone = [
        one for op in made.ops if op.kind == MOVE and op.phase == "backward" for one in op.writes
    ]
    assert len(gone) == sum(op.kind == made.origin["rule"] for op in made.ops)
    slots = {op.reads[0] for op in made.ops if op.kind == MOVE and op.phase == "backward"}
    assert len(slots) == 2  # one fills while the other leaves


def test_the_cores_read_and_write_forty_eight_bytes_a_parameter() -> None:
    """A cast 2 + 4, the norm 4, a scaling 4 + 4, Adam 16 + 12, and the copy in 16 bits 2."""
    made = offloaded(step(), Offload())
    there = [op for op in made.ops if op.kind != MOVE and place_of(op, made.tensors) == "host"]
    scalars = sum(4 for op in there if op.kind in ("mul_", "norm"))
    assert sum(op.nbytes for op in there) - scalars == 48 * elements(made)
    plain = offloaded(step(), Offload(is_clipped=False))
    there = [op for op in plain.ops if op.kind != MOVE and place_of(op, plain.tensors) == "host"]
    assert sum(op.nbytes for op in there) == (2 + 12 + 12 + 2) * elements(plain)


@pytest.mark.parametrize(
    "offload",
    [
        Offload(),
        Offload(is_delayed=True),
        Offload(parameters="host", is_clipped=False),
        Offload(states="drive", parameters="drive"),
        Offload(states="drive", updates="drive"),
    ],
)
def test_the_gpu_does_the_same_work(offload: Offload) -> None:
    before = step(STREAMED if offload.parameters != "gpu" else HALF)
    made = offloaded(before, offload)

    def work(trace: Trace) -> Counter[tuple[str, int]]:
        own = ("cat", MOVE, "all_gather", "reduce_scatter")
        ops = [op for op in trace.ops if op.phase != "update" and op.kind not in own]
        return Counter((op.kind, op.flops) for op in ops)

    assert work(made) == work(before)
    updates = [op for op in made.ops if op.kind == before.origin["rule"]]
    assert len(updates) == sum(op.phase == "update" for op in before.ops)
    assert {place_of(op, made.tensors) for op in updates} == {offload.updates}


def test_parameters_come_for_each_pass_and_leave_none_behind() -> None:
    before = step(STREAMED)
    made = offloaded(before, Offload(parameters="host"))
    assert held(made, "gpu", "parameter") == 0
    gathered = sum(sum(op.read_bytes) for op in before.ops if op.kind == "all_gather")
    assert moved(made)["host", "gpu"] == gathered > elements(before)
    assert held(made, "gpu") < held(offloaded(step(), Offload()), "gpu")


def test_states_pass_through_the_host_from_and_to_a_drive() -> None:
    before = step(STREAMED)
    made = offloaded(before, Offload(states="drive", parameters="drive"))
    count = elements(before)
    assert held(made, "drive") == (12 + 2) * count
    gathered = sum(sum(op.read_bytes) for op in before.ops if op.kind == "all_gather")
    assert moved(made) == {
        ("gpu", "host"): 2 * count,
        ("host", "gpu"): gathered,
        ("drive", "host"): 12 * count + gathered,
        ("host", "drive"): 12 * count + 2 * count,
    }
    assert held(made, "host") < held(offloaded(step(STREAMED), Offload(parameters="host")), "host")


def test_a_unit_leaves_the_drive_once_the_one_before_the_last_left_the_host() -> None:
    made = offloaded(step(STREAMED), Offload(states="drive", parameters="drive"))
    passes = [op for op in made.ops if op.kind == MOVE and op.phase != "update"]
    out = [op for op in passes if made.tensors[op.reads[0]].place == "drive"]
    on = [op for op in passes if made.tensors[op.writes[0]].place == "gpu"]
    assert len(out) == len(on) > 4
    for unit, before in zip(out[2:], on[:-2], strict=True):
        assert before.id in made.dependencies[unit.id]


def test_a_drive_that_computes_gets_gradients_and_gives_parameters() -> None:
    made = offloaded(step(), Offload(states="drive", updates="drive", is_clipped=False))
    count = elements(made)
    assert moved(made) == {
        ("gpu", "host"): 2 * count,
        ("host", "drive"): 2 * count,
        ("drive", "host"): 2 * count,
        ("host", "gpu"): 2 * count,
    }


def test_delayed_updates_come_before_the_passes_and_read_earlier_gradients() -> None:
    made = offloaded(step(), Offload(is_delayed=True))
    rule = made.origin["rule"]
    updates = [op.id for op in made.ops if op.kind == rule]
    assert max(updates) < min(op.id for op in made.ops if op.phase == "forward")
    arriving = {one for op in made.ops if op.kind == "_to_copy" for one in op.writes}
    assert arriving.isdisjoint(one for op in made.ops if op.kind == rule for one in op.reads)
    late = elements(made) * 4
    once = held(offloaded(step(), Offload()), "host", "optimizer_state")
    assert held(made, "host", "optimizer_state") == once + late


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("offload", [Offload(), Offload(states="drive", updates="drive")])
def test_a_gpu_of_several_gets_its_share_of_parameters(precision: str, offload: Offload) -> None:
    half = Training(precision=precision, has_masters=True)
    several = offloaded(step(replace(half, shard="zero2", gpus=8)), offload)
    single, share = offloaded(step(half), offload), pytest.approx(1 / 8, rel=0.01)
    for way, nbytes in moved(single).items():
        assert moved(several)[way] / nbytes == share
    place = offload.states
    states = (held(one, place, "optimizer_state") for one in (several, single))
    assert next(states) / next(states) == share
    moves = [op for op in several.ops if op.kind == MOVE]
    assert all(sum(op.read_bytes) == sum(op.write_bytes) for op in moves)


def unwritten(trace: Trace) -> set[int]:
    """Return the tensors of the step that an operation reads before another writes them."""
    written, early = set[int](), set[int]()
    for op in trace.ops:
        early |= {*op.reads} - written
        written |= {*op.writes}
    return {one for one in early if trace.tensors[one].kind not in LASTING}


@pytest.mark.parametrize("change", [offloaded_to_host, activations_offloaded])
def test_micro_batches_add_up_what_they_made(change: Callable[[Trace], Trace]) -> None:
    one, three = (
        change(step(replace(STREAMED, precision="fp32", accumulate=count))) for count in (1, 3)
    )
    assert not unwritten(three)
    sums = 4 * elements(one)
    assert held(three, "gpu") <= held(one, "gpu") + sums
    assert moved(three)["gpu", "host"] in (moved(one)["gpu", "host"] * n for n in (1, 3))


def test_gathered_copies_come_in_the_format_of_the_parameter() -> None:
    before = step(Training(precision="bf16-mixed", is_streamed=True))
    made = offloaded_to_host(before)
    gathered = [op for op in before.ops if op.kind == "all_gather"]
    assert moved(made)["host", "gpu"] == sum(sum(op.read_bytes) for op in gathered)
    moves = [op for op in made.ops if op.kind == MOVE]
    assert all(sum(op.read_bytes) == sum(op.write_bytes) for op in moves)


def test_pages_leave_only_if_there_is_no_room() -> None:
    before = Training(precision="bf16", optimizer="adamw8bit").apply(load_trace("gpt-tiny"))
    peak = held(before, "gpu")
    assert paged(before, peak) is before
    for nbytes in (peak - 1, peak - 50_000):
        made = paged(before, nbytes)
        assert held(made, "gpu") <= nbytes
        states = [one for one in made.tensors if one.kind == "optimizer_state"]
        out = sum(one.nbytes for one in states if one.place == "host")
        assert moved(made) == {("host", "gpu"): out, ("gpu", "host"): out}
        assert {place_of(op, made.tensors) for op in made.ops if op.kind == "adamw"} == {"gpu"}
    least = paged(before, 0)
    assert {one.place for one in least.tensors if one.kind == "optimizer_state"} == {"host"}


@pytest.mark.parametrize("is_delayed", [True, False])
def test_parameters_are_gathered_once_they_came_back(is_delayed: bool) -> None:
    made = offloaded(step(replace(HALF, shard="zero2", gpus=8)), Offload(is_delayed=is_delayed))
    back = {one for op in made.ops if op.kind == MOVE for one in op.writes}
    gathers = [op for op in made.ops if op.kind == "all_gather"]
    came = set[int]()
    for op in made.ops:
        came.update(op.writes if op.kind == MOVE else ())
        assert op.kind != "all_gather" or came.issuperset(back.intersection(op.reads))
    assert gathers


def test_a_drive_gets_all_gradients_before_it_gives_what_it_updated() -> None:
    made = offloaded(step(), Offload(states="drive", updates="drive"))
    moves = [op for op in made.ops if op.kind == MOVE]
    arrive, leave = (
        [op.id for op in moves if made.tensors[ids(op)[0]].place == "drive"]
        for ids in (lambda op: op.writes, lambda op: op.reads)
    )
    updates = [op.id for op in made.ops if op.kind == made.origin["rule"]]
    assert max(arrive) < min(updates) < min(leave)
    assert len(arrive) == len(leave) == sum(one.kind == "parameter" for one in made.tensors)


@pytest.mark.parametrize("in_backward", [True, False])
def test_pages_that_come_and_go_have_room(in_backward: bool) -> None:
    """Two large states go last; their pages have memory beside those of their neighbours."""
    choices = Training(precision="bf16-mixed", optimizer="adamw", in_backward=in_backward)
    before = choices.apply(load_trace("dcgan"))
    most, least = held(before, "gpu"), held(paged(before, 0), "gpu")
    for share in (0.01, 0.1, 0.5):
        nbytes = int(least + share * (most - least))
        made = paged(before, nbytes)
        assert held(made, "gpu") <= nbytes
        leaving = {
            op.id for op in made.ops if op.kind == MOVE and place_of(op, made.tensors) != "gpu"
        }
        waits = [
            op for op, needs in zip(made.ops, made.dependencies, strict=True) if leaving & {*needs}
        ]
        updates = [op for op in waits if place_of(op, made.tensors) == "gpu" and op.kind == "adamw"]
        assert len(updates) >= len(leaving) - 1


def test_activations_go_and_come_once() -> None:
    before = step()
    made = activations_offloaded(before)
    ways = moved(made)
    assert ways["gpu", "host"] == ways["host", "gpu"] > 0
    assert held(made, "gpu", "activation", "temporary") < held(
        before, "gpu", "activation", "temporary"
    )
    assert held(made, "host") <= ways["gpu", "host"]
    moves = [op for op in made.ops if op.kind == MOVE]
    assert len(moves) > 2 * AHEAD
    others = [op for op in made.ops if op.kind != MOVE]
    assert [(op.kind, op.flops) for op in others] == [(op.kind, op.flops) for op in before.ops]
    out = {op.writes[0]: op.id for op in moves if place_of(op, made.tensors) == "host"}
    waits = [
        sum(out[number] < begun < op.id for begun in out.values())
        for op in others
        if op.phase == "forward"
        for number in op.reads
        if number in out
    ]
    assert len(waits) > len(out) // 2  # the rest is needed soon after
    assert min(waits) >= AHEAD - 2  # moves begun since the one that is waited for


def test_activations_of_each_micro_batch_go_and_come_once() -> None:
    one = activations_offloaded(step())
    three = activations_offloaded(step(replace(HALF, accumulate=3)))
    assert moved(three) == {way: 3 * nbytes for way, nbytes in moved(one).items()}
    assert held(three, "gpu", "activation") == held(one, "gpu", "activation")
    moves = [op for op in three.ops if op.kind == MOVE]
    out = {op.writes[0]: op.id for op in moves if place_of(op, three.tensors) == "host"}
    back = {op.reads[0]: op.id for op in moves if place_of(op, three.tensors) == "gpu"}
    assert out.keys() == back.keys()
    assert all(out[number] < back[number] for number in out)
    for place in ("gpu", "host"):
        assert held(three, place, "temporary") <= 1.5 * held(one, place, "temporary")


def test_offloaded_steps_are_saved_with_their_places(tmp_path: Path) -> None:
    from sw_driver.workload import load_trace as loaded

    made = offloaded(step(), Offload())
    made.save(tmp_path / "made.json.gz")
    assert loaded(tmp_path / "made.json.gz").tensors == made.tensors


def test_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(TraceError, match="gathered unit by unit; give shard zero3"):
        offloaded(step(), Offload(parameters="host"))
    early = Training(optimizer="adamw", in_backward=True).apply(load_trace("gpt-tiny"))
    with pytest.raises(TraceError, match="leave out in_backward"):
        offloaded(early, Offload())
    with pytest.raises(TraceError, match="offload=states host"):
        offloaded(offloaded(step(), Offload()), Offload())
    with pytest.raises(TraceError, match=r"updates is 'hots': did you mean host"):
        Offload(updates="hots")
    trace = load_trace("gpt-tiny")
    end = next(op.id for op in trace.ops if op.phase == "update")
    used = {one for op in trace.ops[:end] for one in op.reads + op.writes}
    tensors = [
        replace(one, freed=None if one.freed is None else min(one.freed, end))
        if one.id in used
        else replace(one, kind="input", freed=None, allocated=0)
        for one in trace.tensors
    ]
    passes = replace(trace, ops=trace.ops[:end], tensors=tuple(tensors))
    with pytest.raises(TraceError, match="updates no parameter"):
        offloaded(passes, Offload())
