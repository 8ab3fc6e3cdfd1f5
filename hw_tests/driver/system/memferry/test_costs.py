"""Profiles by the cost model."""

from __future__ import annotations

import pytest

from sw_driver.machine.machine import Machine
from sw_driver.machine.parts import Device, Link, Memory, assumed
from sw_driver.machine.presets import PRESETS
from sw_driver.system.memferry.costs import profile_of
from sw_driver.system.memferry.planners import planned
from sw_driver.system.memferry.profile import MEASURED, read_profile
from sw_driver.workload import Geometry, Op, Stage, Tensor, Trace, TraceError, load_trace


def device(name: str) -> Device:
    """Of a byte in a ns, and a thousand FLOP."""
    one, launch = assumed(1, "test"), assumed(0, "test")
    return Device(name=name, memory=name, tflop_per_s=one, gb_per_s=one, launch_ns=launch)


LINK = Link(
    name="pcie",
    a="cpu",
    b="gpu",
    write_gb_per_s=assumed(0.25, "test"),
    read_gb_per_s=assumed(0.2, "test"),
    latency_ns=assumed(10, "test"),
    sharing="duplex",
)
"""A byte crosses it in 4 ns towards the GPU, in 5 ns from there."""

MACHINE = Machine(
    name="m",
    memories=tuple(
        Memory(name=place, capacity_bytes=assumed(1, "test")) for place in ("gpu", "cpu")
    ),
    devices=(device("gpu"), device("cpu")),
    links=(LINK,),
)


def trace(tensors: list[tuple], ops: list[tuple], *layers: str) -> Trace:
    """Of tensors' bytes, kind, allocated and freed, and of operations' kind, layer, phase, bytes
    read and bytes written. A product is of 129 samples of 10 weights: two rows of tiles."""
    return Trace(
        name="t",
        tensors=tuple(
            Tensor(
                id=number, nbytes=nbytes, kind=kind, allocated=allocated, freed=freed,
                parameter=0 if kind == "gradient" else None,
            )
            for number, (nbytes, kind, allocated, freed) in enumerate(tensors)
        ),
        ops=tuple(
            Op(
                id=number, kind=kind, layer=layer, phase=phase, stage=0,
                reads=tuple(reads), writes=tuple(writes),
                read_bytes=tuple(reads.values()), write_bytes=tuple(writes.values()),
                flops=2580 if kind == "mm" else 0,
                geometry=Geometry(operands=(), result=()) if kind == "mm" else None,
            )
            for number, (kind, layer, phase, reads, writes) in enumerate(ops)
        ),
        layers=layers,
        stages=(Stage(name=layers[0], phase="forward"),),
    )  # fmt: skip


TIED = trace(
    [
        (40, "parameter", 0, None),
        (8, "input", 0, None),
        (16, "activation", 0, 6),
        (16, "activation", 1, 5),
        (16, "temporary", 2, 5),
        (16, "temporary", 3, 7),
        (40, "temporary", 4, 8),
        (40, "temporary", 6, 8),
        (40, "gradient", 7, None),
    ],
    [
        ("embedding", 0, "forward", {0: 16, 1: 8}, {2: 16}),  # 2 rows of 5
        ("gelu", 2, "forward", {2: 16}, {3: 16}),
        ("mm", 1, "forward", {3: 16, 0: 40}, {4: 16}),
        ("mm", 1, "backward", {4: 16, 0: 40}, {5: 16}),
        ("mm", 1, "backward", {4: 16, 3: 16}, {6: 40}),
        ("gelu_backward", 2, "backward", {5: 16, 2: 16}, {5: 16}),
        ("embedding_dense_backward", 0, "backward", {5: 16, 1: 8}, {7: 40}),
        ("add", 0, "backward", {6: 40, 7: 40}, {8: 40}),
        ("sgd", 0, "update", {0: 40, 8: 40}, {0: 40}),
    ],
    "words",
    "output",
    "(model)",
)
"""A table that is looked up, and is the weight of the output."""


def test_a_table_that_is_the_outputs_weight_belongs_to_the_output() -> None:
    words, output = profile_of(TIED, MACHINE).layers
    assert (words.name, words.nbytes, words.transfer_ns) == ("words", 0, 10 + 16 * 4)
    assert (words.forward_ns, words.forward_dha_ns, words.gap_forward_ns) == (40, 16 * 4, 32)
    # On the way back: the weights' gradient, gelu's and the lookup's, then their sum.
    assert (words.gap_backward_ns, words.backward_ns) == (72 + 48 + 64, 120)
    assert (words.activation_bytes, words.workspace_bytes) == (16 + 16 + 8, 16 + 40 + 40)
    assert (output.name, output.nbytes, output.transfer_ns) == ("output", 40, 10 + 160)
    assert (output.forward_ns, output.forward_dha_ns) == (72, 2 * 160)  # read twice
    assert (output.backward_ns, output.backward_dha_ns) == (72, 2 * 160)
    assert output.backward_gradient_dha_ns == 200  # 80 more than the sum takes is less
    assert (output.gap_forward_ns, output.gap_backward_ns) == (0, 0)
    assert (output.activation_bytes, output.workspace_bytes) == (0, 16 + 16)


def test_a_gradient_is_written_by_the_operation_that_makes_it() -> None:
    (layer,) = profile_of(
        trace(
            [
                (40, "parameter", 0, None),
                (16, "input", 0, None),
                (16, "temporary", 0, 4),
                (16, "temporary", 1, 4),
                (40, "gradient", 2, None),
            ],
            [
                ("mm", 0, "forward", {1: 16, 0: 40}, {2: 16}),
                ("mm", 0, "backward", {2: 16, 0: 40}, {3: 16}),
                ("mm", 0, "backward", {2: 16, 1: 16}, {4: 40}),
                ("gelu_backward", 1, "backward", {3: 16}, {3: 16}),
            ],
            "dense",
            "(model)",
        ),
        MACHINE,
    ).layers
    assert (layer.backward_ns, layer.gap_backward_ns) == (72 + 72, 32)
    assert layer.backward_gradient_dha_ns == 72 + 40 * 5


def test_the_update_is_the_cpus() -> None:
    assert profile_of(TIED, MACHINE).update_ns == 120


def test_a_step_without_parameters_is_refused() -> None:
    bare = trace([(4, "input", 0, None)], [("gelu", 0, "forward", {0: 4}, {})], "m")
    with pytest.raises(TraceError, match="t reads no parameter"):
        profile_of(bare, MACHINE)


def test_of_bert_the_embeddings_and_norms_are_read_by_the_gpu_and_products_are_not() -> None:
    trace = load_trace("bert-base")
    machine = PRESETS["memferry_v100"]
    profile = profile_of(trace, machine)
    size = sum(tensor.nbytes for tensor in trace.tensors if tensor.kind == "parameter")
    assert sum(layer.nbytes for layer in profile.layers) == size
    times = sum(
        layer.forward_ns + layer.gap_forward_ns + layer.backward_ns + layer.gap_backward_ns
        for layer in profile.layers
    )
    assert times == sum(machine.device("gpu").cost(op) for op in trace.ops if op.phase != "update")
    names = [layer.name for layer in profile.layers]
    modes = dict(zip(names, planned(profile).modes, strict=True))
    read = ("words", "positions", "segments", "norm", "layers.11.attention_norm")
    copied = ("layers.11.attention.query_key_value", "layers.11.mlp.dense_h_to_4h", "logits")
    assert {modes[name] for name in read} == {"DHA"}
    assert {modes[name] for name in copied} == {"GFGB"}


def test_what_is_measured_has_the_same_layers_and_bytes() -> None:
    assert set(MEASURED) == {"bert-base-h100", "gpt2-medium-h100"}
    for name, file in MEASURED.items():
        measured = read_profile(file).layers
        modelled = profile_of(
            load_trace(name.removesuffix("-h100")), PRESETS["memferry_a100"]
        ).layers
        assert [(layer.name, layer.nbytes) for layer in measured] == [
            (layer.name, layer.nbytes) for layer in modelled
        ]
        measured_bytes, expected = (
            sum(layer.activation_bytes for layer in layers) for layers in (measured, modelled)
        )
        assert measured_bytes == pytest.approx(expected, rel=1e-5)
