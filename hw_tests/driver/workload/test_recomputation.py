"""Activations computed again, by hand and as PyTorch's checkpoints do it."""

from __future__ import annotations

from typing import Any

import pytest

from sw_driver.workload import GptConfig, Op, Stage, Tensor, Trace, load_trace, peak_bytes
from sw_driver.workload.accumulation import accumulated
from sw_driver.workload.recomputation import recomputed
from sw_driver.workload.trace import LASTING


def op(number: int, phase: str, module: int, reads: list[int], writes: list[int]) -> Op:
    return Op(
        id=number, kind="mul_" if set(reads) & set(writes) else "mul", layer=module, phase=phase,
        stage=module if phase == "forward" else 5 - module, reads=tuple(reads),
        writes=tuple(writes), read_bytes=(1,) * len(reads), write_bytes=(1,) * len(writes), flops=1,
    )  # fmt: skip


def by_hand() -> Trace:
    """Three modules of two parts. The first makes 1, 2 and the temporary 3, the second 4 and 5,
    which it changes in place and which only lives there; the last is followed by its backward."""
    forward = [
        op(0, "forward", 0, [0], [1]), op(1, "forward", 0, [1], [3]),
        op(2, "forward", 0, [3], [2]), op(3, "forward", 1, [2], [4]),
        op(4, "forward", 1, [4], [5]), op(5, "forward", 1, [5], [5]),
        op(6, "forward", 1, [5], [6]), op(7, "forward", 2, [6], [7]),
    ]  # fmt: skip
    backward = [
        op(8, "backward", 2, [6, 7], [8]), op(9, "backward", 1, [5, 8], [9]),
        op(10, "backward", 1, [4, 9], [10]), op(11, "backward", 0, [1, 10], [11]),
    ]  # fmt: skip
    lives = {
        0: (0, None), 1: (0, 12), 2: (2, 4), 3: (1, 3), 4: (3, 11), 5: (4, 10), 6: (6, 9),
        7: (7, 9), 8: (8, 10), 9: (9, 11), 10: (10, 12), 11: (11, 12),
    }  # fmt: skip
    kinds = {0: "input", **dict.fromkeys((1, 4, 5, 6, 7), "activation")}
    return Trace(
        name="by hand",
        tensors=tuple(
            Tensor(
                id=each, nbytes=100, kind=kinds.get(each, "temporary"), allocated=begin, freed=end
            )
            for each, (begin, end) in lives.items()
        ),
        ops=(*forward, *backward),
        layers=("a", "b", "c"),
        stages=tuple(
            Stage(name=each, phase=phase)
            for phase, names in (("forward", "abc"), ("backward", "cba"))
            for each in names
        ),
    )


def test_what_one_segment_has_is_freed_and_made_again() -> None:
    trace = recomputed(by_hand())
    assert trace.origin["recomputed"] == [9, 10, 11, 14]
    assert recomputed(trace) is trace
    # 3 and 6 cross, 2 does and is no activation but for what is repeated; 7 is of the last.
    shown = [(each.reads, each.writes, each.stage) for each in trace.ops[8:]]
    assert shown == [
        ((6, 7), (8,), 3),
        ((2,), (12,), 4), ((12,), (13,), 4), ((13,), (13,), 4),
        ((13, 8), (9,), 4), ((12, 9), (10,), 4),
        ((0,), (14,), 5), ((14, 10), (11,), 5),
    ]  # fmt: skip
    lives = {each.id: (each.kind, each.allocated, each.freed) for each in trace.tensors}
    assert lives[1] == ("temporary", 0, 2)
    assert lives[2] == ("activation", 2, 10)  # was freed, and is needed until it is read again
    assert lives[4] == ("temporary", 3, 5)
    assert lives[5] == ("temporary", 4, 7)
    assert lives[6] == ("activation", 6, 9)
    assert lives[12] == ("temporary", 9, 14)
    assert lives[13] == ("temporary", 10, 13)
    assert lives[14] == ("temporary", 14, 16)


CONFIG = GptConfig(n_layers=12, d_model=64, n_heads=4, batch=2, context=32, vocabulary=96)


def test_a_gpt_is_as_with_checkpoints_of_its_layers() -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[torch]'")
    from torch.utils.checkpoint import checkpoint

    from sw_driver.workload.capture import capture
    from sw_driver.workload.models.gpt import Gpt, dropout, gpt_loss, gpt_with_batch

    def again(run: Any, *values: Any) -> Any:
        return checkpoint(run, *values, use_reentrant=False)

    class Checkpointed(Gpt):
        def forward(self, tokens: Any, positions: Any, mask: Any) -> Any:
            words = self.embedding.word_embeddings(tokens)
            places = self.embedding.position_embeddings(positions)
            values = again(lambda a, b: dropout(a + b, 0.1), words, places)
            values = values.transpose(0, 1).contiguous()
            for layer in self.layers:
                values = again(layer, values, mask)
            return self.logits(again(self.final_layernorm, values.transpose(0, 1).contiguous()))

    def captured(model: type[Gpt]) -> Trace:
        return capture(lambda: (model(CONFIG), gpt_with_batch(CONFIG)[1]), gpt_loss, name="gpt")

    plain, truth = captured(Gpt), captured(Checkpointed)
    ours = recomputed(plain)
    assert [(each.kind, each.phase, each.stage, each.flops, each.nbytes) for each in ours.ops] == [
        (each.kind, each.phase, each.stage, each.flops, each.nbytes) for each in truth.ops
    ]
    for kind in ("activation", "temporary", "gradient"):
        assert peak_bytes(ours, kind) == peak_bytes(truth, kind)
    assert peak_bytes(ours, "activation") < peak_bytes(plain, "activation") / 10


def test_a_convolutional_network_repeats_a_little_less_than_with_checkpoints() -> None:
    """PyTorch makes a block's output again if the backward pass needs it, and it is kept."""
    torch = pytest.importorskip(
        "torch", reason="PyTorch is not installed: pip install -e '.[torch]'"
    )
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    from sw_driver.workload.capture import capture

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(
                nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
                nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8),
            )  # fmt: skip

        def forward(self, values: Any) -> Any:
            return (values + self.inner(values)).relu_()

    def captured(run: Any) -> Trace:
        def build() -> Any:
            blocks = nn.ModuleList(Block() for _ in range(8))
            images = torch.zeros(4, 8, 16, 16, requires_grad=True)
            return nn.ModuleDict({"blocks": blocks, "out": nn.Linear(2048, 4)}), (images,)

        def step(model: Any, values: Any) -> Any:
            for block in model["blocks"]:
                values = run(block, values)
            return model["out"](values.flatten(1)).sum()

        return capture(build, step, name="cnn", rule="sgd")

    plain = captured(lambda block, values: block(values))
    truth = captured(lambda block, values: checkpoint(block, values, use_reentrant=False))
    ours = recomputed(plain)
    work, whole = (sum(each.flops for each in trace.ops) for trace in (ours, truth))
    assert work < whole < 1.01 * work
    output_bytes = 4 * 4 * 8 * 16 * 16
    assert [peak_bytes(each, "activation") for each in (ours, truth)] == 2 * [8 * output_bytes]
    assert {ours.ops[each].phase for each in ours.origin["recomputed"]} == {"backward"}


NETWORKS = ["gpt3-2.7b", "bert-base", "vgg-19", "resnet-34", "rnn-gru", "dcgan"]


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_keep_little_and_run_forward_once_more(name: str) -> None:
    trace = load_trace(name)
    ours = recomputed(trace)
    repeated = ours.origin["recomputed"]
    assert peak_bytes(ours, "activation") < peak_bytes(trace, "activation") / 3
    forward = sum(each.flops for each in trace.ops if each.phase == "forward")
    again = sum(ours.ops[each].flops for each in repeated)
    assert 0.7 * forward < again <= forward
    rest = [each for each in ours.ops if each.id not in repeated]
    assert [each.kind for each in rest] == [each.kind for each in trace.ops]


def updates(trace: Trace) -> list[int]:
    """What each update reads, as a hash of all that it was made of, and how."""
    values = {each.id: each.id for each in trace.tensors if each.kind in LASTING}
    found = []
    for op in trace.ops:
        read = tuple(values.get(each) for each in op.reads)
        if op.phase == "update":
            found.append(hash(read))
            continue
        for place, each in enumerate(op.writes):
            if trace.tensors[each].kind not in LASTING:
                values[each] = hash((op.kind, place, op.flops, read, values.get(each)))
    return found


@pytest.mark.parametrize("name", [*NETWORKS, "lstm-ptb", "resnet152", "transformer-xl-0.7b"])
def test_updates_get_what_they_got(name: str) -> None:
    trace = load_trace(name)
    assert updates(recomputed(trace)) == updates(trace)


@pytest.mark.parametrize("name", ["resnet-50", "lstm-ptb", "bert-base"])
def test_micro_batches_are_divided_as_one_is(name: str) -> None:
    trace = load_trace(name)
    first, last = accumulated(recomputed(trace), 3), recomputed(accumulated(trace, 3))
    one, other = (
        [(op.kind, op.phase, op.layer, op.read_bytes, op.write_bytes) for op in each.ops]
        for each in (first, last)
    )
    assert one == other
    assert peak_bytes(first) == peak_bytes(last)
