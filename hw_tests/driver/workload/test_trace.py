"""Traces as data: what follows from them, their files, and the shipped ones. None needs PyTorch."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sw_driver.workload import (
    GPTS,
    NETWORKS,
    GptConfig,
    Op,
    Profile,
    Stage,
    Tensor,
    Trace,
    TraceError,
    load_trace,
    peak_bytes,
    trace_names,
)
from sw_driver.workload.trace import KINDS, PHASES

PRODUCTS = ("mm", "addmm", "bmm")


def a_trace(*accesses: tuple[tuple[int, ...], tuple[int, ...]], name: str = "random") -> Trace:
    """Operations with these reads and writes, of tensors of 1, 2, 4 ... bytes."""
    count = 1 + max(each for reads, writes in accesses for each in reads + writes)
    return Trace(
        name=name,
        tensors=tuple(Tensor(id=each, nbytes=1 << each, kind="temporary") for each in range(count)),
        ops=tuple(
            Op(
                id=number, kind=f"kind{number % 3}", layer=number % 2, phase=PHASES[number % 3],
                stage=number % 2, reads=reads, writes=writes, flops=10 * number,
                read_bytes=tuple(1 << each for each in reads), write_bytes=(number,) * len(writes),
            )
            for number, (reads, writes) in enumerate(accesses)
        ),
        layers=("first", "second"),
        stages=(Stage(name="first", phase="forward"), Stage(name="first", phase="backward")),
        origin={"seed": 1},
    )  # fmt: skip


def random_trace(seed: int) -> Trace:
    chance = random.Random(seed)

    def some(least: int) -> tuple[int, ...]:
        return tuple(chance.sample(range(6), chance.randint(least, 3)))

    return a_trace(*((some(0), some(1)) for _ in range(25)))


def closure(edges: set[tuple[int, int]], count: int) -> set[tuple[int, int]]:
    """Who has to wait for whom, by others too."""
    reached = set(edges)
    for between in range(count):
        before = [first for first, then in reached if then == between]
        after = [then for first, then in reached if first == between]
        reached.update((first, then) for first in before for then in after)
    return reached


TRACES = [
    *(random_trace(seed) for seed in range(20)),
    *(load_trace(name) for name in ("gpt-tiny", "alexnet")),
    load_trace("alexnet").unrolled(2),
]


@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: trace.name)
def test_operations_wait_for_what_they_conflict_with(trace: Trace) -> None:
    conflicts = {
        (first.id, then.id)
        for then in trace.ops
        for first in trace.ops[: then.id]
        if {*first.writes} & {*then.reads, *then.writes} or {*first.reads} & {*then.writes}
    }
    waits = {(first, op) for op, needed in enumerate(trace.dependencies) for first in needed}
    assert waits <= conflicts
    assert closure(waits, len(trace.ops)) == closure(conflicts, len(trace.ops))


@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: trace.name)
def test_accesses_are_who_reads_or_writes(trace: Trace) -> None:
    for tensor in trace.tensors:
        times = [op.id for op in trace.ops if tensor.id in op.reads + op.writes]
        assert trace.accesses[tensor.id] == tuple(times)


@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: trace.name)
def test_memory_is_taken_from_allocation_to_free(trace: Trace) -> None:
    living = [
        [each for each in trace.tensors if each.allocated <= now and now < (each.freed or 1 << 60)]
        for now in range(len(trace.ops))
    ]
    assert peak_bytes(trace) == max(sum(each.nbytes for each in now) for now in living)
    for kind in KINDS:
        sizes = [sum(each.nbytes for each in now if each.kind == kind) for now in living]
        assert peak_bytes(trace, kind) == max(sizes)


@pytest.mark.parametrize(("allocated", "freed"), [(1, None), (0, 2), (0, 4)])
def test_what_is_used_has_memory(allocated: int, freed: int | None) -> None:
    trace = a_trace(((), (0,)), ((1,), (2,)), ((0,), (1,)))
    first = replace(trace.tensors[0], allocated=allocated, freed=freed)
    with pytest.raises(TraceError, match="operation 0 to 2, of 3, but is not allocated in"):
        replace(trace, tensors=(first, *trace.tensors[1:]))


def test_steps_on_end_share_what_lasts() -> None:
    """Parameter 0 is read, activation 1 made, and parameter 0 written from it."""
    trace = a_trace(((0,), (1,)), ((1, 0), (0,)))
    kinds = {"kind": "parameter"}, {"kind": "activation", "allocated": 0, "freed": 2}
    tensors = [replace(each, **kind) for each, kind in zip(trace.tensors, kinds, strict=True)]
    three = replace(trace, tensors=tuple(tensors)).unrolled(3)
    assert [(op.id, op.reads, op.writes) for op in three.ops] == [
        (0, (0,), (1,)), (1, (1, 0), (0,)),
        (2, (0,), (2,)), (3, (2, 0), (0,)),
        (4, (0,), (3,)), (5, (3, 0), (0,)),
    ]  # fmt: skip
    assert [(each.id, each.allocated, each.freed) for each in three.tensors] == [
        (0, 0, None), (1, 0, 2), (2, 2, 4), (3, 4, 6),
    ]  # fmt: skip
    assert (three.steps, three.stages, peak_bytes(three)) == (3, trace.stages, 1 + 2)
    assert three.unrolled(2).steps == 6
    assert trace.unrolled(1) == trace
    with pytest.raises(TraceError, match="steps is 0: expected an integer of 1 or more"):
        trace.unrolled(0)


# Files.


def test_a_saved_trace_is_the_same_when_loaded(tmp_path: Path) -> None:
    for trace in TRACES:
        path = tmp_path / "step"
        trace.save(path)
        assert load_trace(path) == trace
        assert load_trace(str(path)).origin == trace.origin
        first = path.read_bytes()
        trace.save(path)
        assert path.read_bytes() == first


def _without_end(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 16]) + data[middle + 1 :]


def _changed(change: Callable[[Any], object]) -> Callable[[bytes], bytes]:
    def changed(data: bytes) -> bytes:
        content = json.loads(gzip.decompress(data))
        change(content)
        return gzip.compress(json.dumps(content).encode())

    return changed


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_without_end, "is damaged or no trace"),
        (_flipped, "is damaged or no trace"),
        (lambda data: b"", "capture it again"),
        (lambda data: b"not a trace", "is damaged or no trace: Not a gzipped file"),
        (lambda data: gzip.compress(b"\xff"), "is no trace"),
        (lambda data: gzip.compress(b"[1]"), "is no trace"),
        (lambda data: gzip.compress(b'{"name": "x"}'), "is no trace: no 'format'"),
        (_changed(lambda content: content.update(format=1)), "its format is 1: expected 2"),
        (_changed(lambda content: content.update(format=3)), "its format is 3: expected 2"),
        (_changed(lambda content: content["part_bytes"].append(0)), "is no trace: zip()"),
        (_changed(lambda content: content["tensors"]["freed"].append(0)), "is no trace: zip()"),
        (_changed(lambda content: content["ops"]["geometry"].insert(0, 9)), "is no trace"),
        (_changed(lambda content: content["stages"].clear()), "operation .* is Op"),
        (_changed(lambda content: content["ops"].pop("flops")), "is no trace: no 'flops'"),
        (_changed(lambda content: content["ops"]["flops"].pop()), "is no trace: zip()"),
        (_changed(lambda content: content["accessed"].pop()), "access 99 tensors, but it"),
        (_changed(lambda content: content["accessed"].append(0)), "tensors, but it lists 100"),
        (_changed(lambda content: content["layers"].pop()), "operation .* is Op"),
        (_changed(lambda content: content["op_kinds"].clear()), "is no trace"),
        (_changed(lambda content: content["tensors"]["nbytes"].insert(0, -1)), "is no trace"),
        (_changed(lambda content: content["stages"].append(["0", "update"])), "the phase of Stage"),
        (_changed(lambda content: content["geometries"].append({"operands": [], "result": {}})),
         "invalid shape: expected tuples"),
        (_changed(lambda content: content["geometries"].append({"operands": [[.5]], "result": []})),
         "invalid shape: expected tuples"),
        (_changed(lambda content: content.update(origin=3)), "is no trace: 'int' object is not"),
    ],
)  # fmt: skip
def test_a_spoiled_file_is_refused(
    spoil: Callable[[bytes], bytes], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "step"
    random_trace(1).save(path)
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(TraceError, match=said) as caught:
        load_trace(path)
    assert str(path) in str(caught.value)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        TraceError, match=r"no trace .gpt-4.: give one of alexnet, .*gpt-tiny, .*gpt3-13b"
    ):
        load_trace("gpt-4")


def test_a_trace_that_cannot_be_saved_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file") as caught:
        random_trace(1).save(tmp_path / "none" / "step")
    assert caught.value.filename == str(tmp_path / "none" / "step")
    assert not [*tmp_path.iterdir()]


# The shipped traces.


def test_every_shipped_trace_loads_without_pytorch() -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from sw_driver.workload import load_trace, trace_names\n"
        "print(*(load_trace(name).name for name in trace_names()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=100
    )
    assert done.stdout.split() == sorted(NETWORKS) == [*trace_names()]


@pytest.fixture(params=GPTS)
def gpt(request: pytest.FixtureRequest) -> tuple[GptConfig, Trace]:
    """A configuration, and its trace."""
    return GPTS[request.param], load_trace(request.param)


def test_a_gpt_has_the_parameters_of_its_configuration(gpt: tuple[GptConfig, Trace]) -> None:
    config, trace = gpt
    width = config.d_model
    parts = {
        "input_layernorm.weight": width,
        "input_layernorm.bias": width,
        "attention.query_key_value.weight": 3 * width**2,
        "attention.query_key_value.bias": 3 * width,
        "attention.dense.weight": width**2,
        "attention.dense.bias": width,
        "post_attention_layernorm.weight": width,
        "post_attention_layernorm.bias": width,
        "mlp.dense_h_to_4h.weight": 4 * width**2,
        "mlp.dense_h_to_4h.bias": 4 * width,
        "mlp.dense_4h_to_h.weight": 4 * width**2,
        "mlp.dense_4h_to_h.bias": width,
    }
    expected = [
        ("embedding.word_embeddings.weight", config.vocabulary * width),
        ("embedding.position_embeddings.weight", config.context * width),
        *(
            (f"layers.{layer}.{name}", count)
            for layer in range(config.n_layers)
            for name, count in parts.items()
        ),
        ("final_layernorm.weight", width),
        ("final_layernorm.bias", width),
    ]
    found = [each for each in trace.tensors if each.kind == "parameter"]
    assert [(each.name, each.nbytes) for each in found] == [(name, 4 * n) for name, n in expected]
    updates = [op for op in trace.ops if op.phase == "update"]
    assert [op.writes[0] for op in updates] == [each.id for each in found]
    for op, parameter in zip(updates, found, strict=True):
        assert [trace.tensors[each].kind for each in op.reads] == [
            "parameter", "gradient", "optimizer_state", "optimizer_state",
        ]  # fmt: skip
        assert [trace.tensors[each].parameter for each in op.reads[1:]] == 3 * [parameter.id]
        assert op.writes == (op.reads[0], *op.reads[2:])
        assert op.kind == "adam"
        assert op.nbytes == 7 * parameter.nbytes


def test_a_gpts_products_are_those_of_its_matrices(gpt: tuple[GptConfig, Trace]) -> None:
    config, trace = gpt
    tokens, width = config.batch * config.context, config.d_model
    matrices = config.n_layers * 12 * width**2 + config.vocabulary * width
    attention = 4 * config.n_layers * tokens * config.context * width
    expected = 2 * tokens * matrices + attention
    sums = dict.fromkeys(PHASES, 0)
    for op in trace.ops:
        if op.kind in PRODUCTS:
            sums[op.phase] += op.flops
    assert sums == {"forward": expected, "backward": 2 * expected, "update": 0}


def test_a_gpts_tied_embedding_is_one_tensor(gpt: tuple[GptConfig, Trace]) -> None:
    _, trace = gpt
    (weight,) = (each for each in trace.tensors if each.name == "embedding.word_embeddings.weight"
                 and each.kind == "parameter")  # fmt: skip
    (gradient,) = (each for each in trace.tensors if each.kind == "gradient"
                   and each.parameter == weight.id)  # fmt: skip
    users = [trace.ops[each] for each in trace.accesses[weight.id]]
    assert [(op.phase, op.kind, trace.layers[op.layer]) for op in users] == [
        ("forward", "embedding", "embedding.word_embeddings"),
        ("forward", "mm", "logits"),
        ("backward", "mm", "logits"),
        ("update", "adam", "embedding.word_embeddings"),
    ]
    total, update = (trace.ops[each] for each in trace.accesses[gradient.id])
    assert (total.kind, update.kind) == ("add", "adam")
    made = {trace.ops[trace.accesses[each][0]].kind for each in total.reads}
    assert made == {"mm", "embedding_dense_backward"}


def test_a_gpts_layers_run_there_and_back(gpt: tuple[GptConfig, Trace]) -> None:
    _, trace = gpt
    order = {phase: [] for phase in PHASES}
    for op in trace.ops:
        order[op.phase].append(trace.layers[op.layer])
    products = [
        [layer for layer, _ in zip(order[phase], trace.ops, strict=False) if "dense" in layer]
        for phase in ("forward", "backward")
    ]
    assert [*dict.fromkeys(products[0])] == [*dict.fromkeys(products[1])][::-1]
    assert {*order["forward"]} == {*order["backward"]} == {*trace.layers}


TABLE_4 = {
    "gpt3-large": (0.76, 3.0, 6.1),
    "gpt3-xl": (1.3, 5.2, 10.4),
    "gpt3-2.7b": (2.7, 10.8, 20.2),
    "gpt3-6.7b": (6.7, 26.8, 53.6),
    "gpt3-13b": (13.0, 52.0, 104.0),
}
"""Of Kim et al.: parameters in billions, and GB of parameters and of optimizer states."""


def test_the_paper_has_rounded_the_sizes_of_its_models() -> None:
    for name, (n_params, m_params, m_os) in TABLE_4.items():
        trace = load_trace(name)
        sizes = {
            kind: sum(each.nbytes for each in trace.tensors if each.kind == kind) for kind in KINDS
        }
        assert sizes["parameter"] / 4e9 == pytest.approx(n_params, rel=0.03)
        assert sizes["gradient"] == sizes["parameter"]
        assert sizes["optimizer_state"] == 2 * sizes["parameter"]
        assert 4 * n_params == pytest.approx(m_params, rel=0.02)
        # Theirs is 20.2 of the model of 2.7 billions, where 8 bytes of each are 21.6.
        assert (8 * n_params == pytest.approx(m_os, rel=0.02)) == (name != "gpt3-2.7b")


def test_none_of_the_papers_models_leaves_room_on_a_gpu_of_32_gb() -> None:
    """The paper has chosen them so. CUDA itself takes some, and what the allocator loses."""
    sizes = [peak_bytes(load_trace(name)) for name in GPTS if name != "gpt-tiny"]
    assert min(sizes) > 31 << 30


def test_a_configuration_that_heads_cannot_share_is_refused() -> None:
    with pytest.raises(ValueError, match="d_model is 100, which 3 heads cannot share"):
        GptConfig(n_layers=1, d_model=100, n_heads=3, batch=1, context=1)


# Profiles.


def test_a_profile_asks_once_for_operations_that_are_alike() -> None:
    trace = load_trace("gpt3-13b")
    asked = []

    def cost(op: Op) -> int:
        asked.append(op)
        return op.nbytes + op.flops

    profile = Profile({"slow": lambda op: 2 * cost(op), "fast": cost})
    assert profile.devices == ("slow", "fast")
    for op in trace.ops:
        assert profile.ns(op, "fast") == op.nbytes + op.flops
        assert profile.ns(op, "slow") == 2 * profile.ns(op, "fast")
    assert len(asked) < 200 < len(trace.ops)


@pytest.mark.parametrize("cost", [-1, 1.5, None])
def test_a_cost_that_is_no_time_is_refused(cost: Any) -> None:
    profile = Profile({"gpu": lambda op: cost})
    with pytest.raises(ValueError, match=r"takes .* ns on 'gpu': expected an integer of 0 or more"):
        profile.ns(TRACES[0].ops[0], "gpu")
    with pytest.raises(ValueError, match="no device 'tpu': give one of gpu"):
        profile.ns(TRACES[0].ops[0], "tpu")
