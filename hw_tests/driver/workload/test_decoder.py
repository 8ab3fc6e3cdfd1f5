"""Decoders and vision transformers: sizes as published, work and bytes by hand, refusals."""

from __future__ import annotations

import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[torch]'")

from torch.nn import functional

from hw_tests.driver.refusals import assert_refused
from hw_tests.driver.workload.test_batches import different
from sw_driver.cli import main
from sw_driver.device.errors import InvalidArgumentError
from sw_driver.system.compare import page
from sw_driver.workload import Trace, TraceError
from sw_driver.workload.batches import batched
from sw_driver.workload.capture import capture_config
from sw_driver.workload.loading import load_workload
from sw_driver.workload.models import MODELS
from sw_driver.workload.networks import (
    CAPTURED,
    DECODERS,
    VITS,
    DecoderConfig,
    VitConfig,
)

PARAMETERS = {
    "gpt2-124m": 124_439_808 + 47 * 768,
    "gpt2-355m": 354_823_168 + 47 * 1024,
    "gpt2-774m": 774_030_080 + 47 * 1280,
    "gpt2-xl": 1_557_611_200 + 47 * 1600,
    "mpt-125m": 125_311_488,
    "mpt-350m": 355_985_408,
    "mpt-760m": 760_470_528,
    "mpt-1b": 1_315_950_592,
    "mpt-3b": 2_651_837_440,
    "mpt-7b": 6_658_859_008,
    "mpt-13b": 12_853_954_560,
    "mpt-30b": 29_975_214_080,
    "mpt-70b": 64_862_437_376,
    "mpt-7b-alibi": 6_649_286_656,
    "falcon-7b": 6_921_720_704,
    "llama2-7b": 6_738_415_616,
    "llama3-8b": 8_030_261_248,
    "llama3.1-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3.1-70b": 70_553_706_496,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "qwen-1.8b": 1_836_828_672,
    "qwen-7b": 7_721_324_544,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "vit-l": 304_326_632,
    "vit-g": 1_136_480_768 - 1536 + 1000 * (1536 + 1),
}
"""GPT-2's as Hugging Face has them, with the 47 words of nanoGPT's padding. MPT's as in
llm-foundry's training benchmarks; others as on their pages at Hugging Face, and ViT-L/16 as in
torchvision and timm. DINOv2's ViT-g has a token for masked patches instead of a head."""

LLAMA = DecoderConfig(
    n_layers=2, d_model=32, n_heads=4, group=2, d_inner=48, gated=True, norm="rms", bias="none",
    fused=False, batch=3, context=8, vocabulary=64, positions="rotary", tied=False,
)  # fmt: skip
GPT = DecoderConfig(
    n_layers=2, d_model=32, n_heads=4, d_inner=128, batch=3, context=8, vocabulary=64
)
ALIBI = replace(GPT, positions="alibi", norm="layer without bias", bias="none")
KINDS = {
    "gpt": GPT,
    "llama": LLAMA,
    "alibi": ALIBI,
    "falcon": replace(ALIBI, positions="rotary", parallel=True, group=4, norm="layer"),
    "qwen": replace(LLAMA, bias="qkv", fused=True, group=1),
}


def built(config: Any) -> Any:
    """Return the model without memory for it."""
    with torch.device("meta"):
        return MODELS[type(config)][1](config)[0]


def parameters(config: Any) -> int:
    return sum(parameter.numel() for parameter in built(config).parameters())


def capture(config: Any) -> Trace:
    return capture_config("x", config)


@pytest.mark.parametrize("name", CAPTURED)
def test_networks_have_their_published_parameters(name: str) -> None:
    assert parameters(CAPTURED[name]) == PARAMETERS[name]


@pytest.mark.parametrize(
    ("name", "seq", "published"),
    [
        ("mpt-3b", 512, 2_647_905_280),
        ("mpt-7b", 1024, 6_654_664_704),
        ("mpt-7b", 4096, 6_667_247_616),
        ("mpt-30b", 8192, 30_019_254_272),
    ],
)
def test_mpts_positions_are_as_many_as_tokens(name: str, seq: int, published: int) -> None:
    assert parameters(replace(DECODERS[name], context=seq)) == published


@pytest.mark.parametrize("kind", KINDS)
def test_work_is_six_for_each_weight_and_token_and_that_of_attention(kind: str) -> None:
    config = KINDS[kind]
    ops = [op for op in capture(config).ops if op.geometry]
    attention = {op.phase: op.flops for op in ops if "attention" in op.kind}
    scores = 2 * config.batch * config.context**2 * config.d_model
    assert attention == {"forward": 2 * scores, "backward": 5 * scores}
    width = config.d_model
    weights = config.n_layers * (
        2 * width * (width + width // config.group) + (2 + config.gated) * width * config.d_inner
    )
    tokens = config.batch * config.context
    others = sum(op.flops for op in ops if "attention" not in op.kind)
    assert others == 6 * tokens * (weights + width * config.vocabulary)


@pytest.mark.parametrize(("name", "billions"), [("gpt2-124m", 0.124), ("llama3.2-1b", 1.24)])
def test_work_of_a_whole_network_is_that_of_its_size(name: str, billions: float) -> None:
    trace = load_workload(name, seq=1024)
    config = DECODERS[name]
    products = sum(op.flops for op in trace.ops if op.geometry)
    attention = 14 * config.n_layers * 1024**2 * config.d_model
    assert products == pytest.approx(6 * 1024 * billions * 1e9 + attention, rel=0.05)


def activations(trace: Trace) -> int:
    return sum(tensor.nbytes for tensor in trace.tensors if tensor.kind == "activation")


def test_bytes_of_a_llama_are_those_by_hand() -> None:
    """There are rows of keys' and queries' maxima, but no scores."""
    norm = 2 * 32 + 1  # what is normalized, and the result; and a mean
    attention = 32 + 2 * 16 + 32 + 4  # queries, keys and values, the result, a number for each head
    block = (32 + norm + attention) + (32 + norm + 4 * 48)
    floats = 3 * 8 * (2 * block + 32 + norm + 64)
    assert activations(capture(LLAMA)) == 4 * (floats + 1)


@pytest.mark.parametrize("config", [GPT, ALIBI])
def test_bytes_of_a_gpt_are_those_by_hand(config: DecoderConfig) -> None:
    norm = 32 + 2  # the result; mean and deviation
    block = (32 + norm + 3 * 32 + 32 + 4) + (32 + norm + 2 * 128)
    floats = 3 * 8 * (2 * block + 32 + norm + 64)
    assert activations(capture(config)) == 4 * (floats + 1)


def test_alibi_is_a_bias_by_distance_beside_the_causal_mask() -> None:
    config = replace(ALIBI, n_layers=1)
    model = MODELS[DecoderConfig][1](config)[0]
    attention = model.blocks[0].attention
    values = torch.randn(3, 8, 32)
    mixed = attention.query_key_value[0](values).chunk(3, 2)
    query, key, value = (part.unflatten(2, (4, 8)).transpose(1, 2) for part in mixed)
    distance = torch.arange(8) - torch.arange(8)[:, None]
    bias = torch.tensor([1 / 4, 1 / 16, 1 / 64, 1 / 256])[:, None, None] * distance
    bias = bias.masked_fill(distance > 0, -math.inf)
    scores = query @ key.transpose(2, 3) / math.sqrt(8) + bias
    expected = attention.dense((scores.softmax(3) @ value).transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(values, None, model.bias), expected)


def test_heads_of_a_group_share_keys_and_rotations_are_by_distance() -> None:
    attention = MODELS[DecoderConfig][1](LLAMA)[0].blocks[0].attention
    model = MODELS[DecoderConfig][1](LLAMA)[0]
    query, key = torch.randn(2, 1, 4, 8)
    angles = torch.outer(torch.arange(8), torch.tensor([1, 1e-1, 1e-2, 1e-3]))

    def turned(vectors: Any) -> Any:
        pairs = torch.complex(vectors[..., :4], vectors[..., 4:]) * torch.polar(
            torch.ones(8, 4), angles
        )
        return torch.cat((pairs.real, pairs.imag), -1)

    values = torch.randn(3, 8, 32)
    query, key, value = (
        linear(values).unflatten(2, (-1, 8)).transpose(1, 2) for linear in attention.query_key_value
    )
    key, value = (part.repeat_interleave(2, 1) for part in (turned(key), value))
    scores = (turned(query) @ key.transpose(2, 3) / math.sqrt(8)).masked_fill(
        torch.ones(8, 8).triu(1) > 0, -math.inf
    )
    expected = attention.dense((scores.softmax(3) @ value).transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(values, model.waves, None), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_another_batch_is_as_captured(kind: str) -> None:
    made, truth = (capture(replace(KINDS[kind], batch=batch)) for batch in (2, 6))
    assert different(batched(made, 3), truth) == []
    products = [sum(op.flops for op in trace.ops if op.geometry) for trace in (made, truth)]
    assert products[1] == 3 * products[0]


def test_an_image_is_cut_into_patches_and_the_head_reads_one_token() -> None:
    config = VitConfig(
        n_layers=1, d_model=32, n_heads=2, d_inner=64, image=28, patch=14, classes=10, batch=2,
        scaled=True,
    )  # fmt: skip
    trace = capture(config)
    first, *others = (op.geometry for op in trace.ops if op.phase == "forward" and op.geometry)
    assert first is not None
    assert first.result == (2, 32, 2, 2)
    assert [geometry.result for geometry in others if geometry] == [
        (10, 96), (2, 2, 5, 16), (10, 32), (10, 64), (10, 32), (2, 10),
    ]  # fmt: skip
    model = MODELS[VitConfig][1](config)[0]
    images = torch.randn(2, 3, 28, 28)
    turned = torch.cat((images[..., 14:], images[..., :14]), 3)
    model.positions.data.zero_()
    torch.testing.assert_close(model(images), model(turned))  # no position and no mask
    assert functional.mse_loss(model(images), model(images.flip(2))) > 0


def test_a_network_is_captured_by_name_and_scaled(tmp_path: Path) -> None:
    small = load_workload("gpt2-124m", "sgd", batch=2, seq=64)
    assert small.origin["model"] == "decoder"
    assert [small.origin[name] for name in ("batch", "context", "rule")] == [2, 64, "sgd"]
    small.save(tmp_path / "small.json.gz")
    four = load_workload(str(tmp_path / "small.json.gz"), batch=4)
    assert four.origin["batch"] == 4
    assert activations(four) == 2 * activations(small) - 4
    with pytest.raises(TraceError, match="the rule is 'adamm': did you mean adam"):
        load_workload("gpt2-124m", "adamm")


def test_a_shipped_network_is_scaled() -> None:
    ten, half = load_workload("resnet32", batch=1280), load_workload("resnet32", batch=64)
    assert (ten.origin["batch"], half.origin["batch"]) == (1280, 64)
    assert activations(ten) == pytest.approx(20 * activations(half), rel=1e-3)


USERS = """\
import torch
from torch import nn

def step(model, values):
    return model(values).sum()

def sized(batch=2, seq=3):
    return nn.Linear(4, 2), torch.zeros(batch, seq, 4), step

def any(**sizes):
    return sized(**sizes)

def plain():
    return sized()
"""


@pytest.fixture
def users(tmp_path: Path) -> Path:
    (tmp_path / "users.py").write_text(USERS)
    return tmp_path / "users.py"


def test_a_function_takes_batch_and_tokens(users: Path) -> None:
    for function in ("sized", "any"):
        trace = load_workload(f"{users}:{function}", batch=5, seq=7)
        assert trace.ops[0].flops == 2 * 5 * 7 * 4 * 2
        assert (trace.origin["batch"], trace.origin["seq"]) == (5, 7)
    assert load_workload(f"{users}:sized", batch=5).ops[0].flops == 2 * 5 * 3 * 4 * 2
    with pytest.raises(TraceError, match=r"seq is 7, but plain\(\) takes no seq: add the argument"):
        load_workload(f"{users}:plain", seq=7)
    load_workload(f"{users}:plain").save(saved := users.parent / "plain.json.gz")
    with pytest.raises(TraceError, match=r"batch is 3, but .*plain.json.gz' does not say how many"):
        load_workload(str(saved), batch=3)


def test_a_network_needs_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # type: ignore[arg-type]
    with pytest.raises(TraceError, match=r"without which gpt2-124m cannot be captured, is not"):
        load_workload("gpt2-124m")


@pytest.mark.parametrize(
    ("workload", "sizes", "reason"),
    [
        ("gpt3-13b", {"seq": 8}, "seq is 8, but 'gpt3-13b' is captured already: leave it out"),
        ("vit-l", {"seq": 8}, "seq is 8, but 'vit-l' is no decoder: leave it out"),
        ("gpt2-124m", {"batch": 0}, "batch is 0: expected an integer of 1 or more"),
        ("gpt2-124m", {"seq": 1.5}, "seq is 1.5: expected an integer"),
        ("llama3.1-8", {}, "did you mean .*llama3.1-8b"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    workload: str, sizes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(TraceError, match=reason):
        load_workload(workload, **sizes)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"n_heads": 32}, "d_model is 32, of which 32 heads cannot have an even share"),
        ({"group": 3}, "group is 3, which does not divide 4 heads"),
        ({"norm": "batch"}, "norm is 'batch': expected one of layer, layer without bias, rms"),
        ({"bias": "some"}, "bias is 'some': expected one of all, qkv, none"),
        ({"positions": "rope"}, "positions is 'rope': expected one of learned, rotary, alibi"),
        ({"n_layers": 0}, "n_layers is 0: expected an integer of 1 or more"),
    ],
)
def test_configurations_that_do_not_fit_are_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises((ValueError, InvalidArgumentError), match=reason):
        replace(GPT, **fields)
    with pytest.raises(ValueError, match="patch is 15, which does not divide images of 224"):
        replace(VITS["vit-l"], patch=15)


def test_commands_take_batch_and_tokens(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CAPTURED, "small", GPT)
    monkeypatch.setattr(page, "SYSTEMS", page.SYSTEMS[:1])
    sizes = ["--batch", "2", "--seq", "32"]
    for command in ("workload", "plan memferry", "plan hetero-pim"):
        assert main([*command.split(), "small", *sizes, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        if command == "workload":
            origin = document["workload"]["origin"]
            assert [origin["batch"], origin["context"]] == [2, 32]
    assert main(["compare", "small", *sizes]) == 0
    assert "small, batch 2, 32 tokens, fp16-mixed, 1 x v100" in capsys.readouterr().out
    for command in ("workload", "compare", "plan memferry", "plan hetero-pim"):
        reason = "nearmem: seq is 32, but 'gpt-tiny' is captured already: leave it out"
        assert_refused(capsys, [*command.split(), "gpt-tiny", *sizes], [reason])
    profile = ["plan", "memferry", "bert-base-h100", "--seq", "32"]
    assert_refused(capsys, profile, ["--seq is 32, but a profile already has one: leave it out"])


def test_the_page_has_every_network() -> None:
    text = (Path(__file__).parents[3] / "docs" / "systems.md").read_text()
    lines = re.findall(r"^\| (\d+) \| (`.*) \|$", text, re.MULTILINE)
    rows = [
        (name, count, tokens)
        for tokens, cell in lines
        for name, count in re.findall(r"`(\S+)` (\d[\d,]*\d)", cell)
    ]
    expected = {name: config.context for name, config in DECODERS.items()}
    expected |= {name: (config.image // config.patch) ** 2 + 1 for name, config in VITS.items()}
    assert rows == [(name, f"{PARAMETERS[name]:,}", str(expected[name])) for name in CAPTURED]
