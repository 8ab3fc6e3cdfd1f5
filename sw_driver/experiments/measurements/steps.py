"""Training steps of published measurements: model, training, machine and system of a row."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf, isqrt

from sw_driver.machine.gpus import GPUS
from sw_driver.machine.hosts import HOSTS, PCIE
from sw_driver.machine.parts import Figure, given
from sw_driver.workload.networks import DECODERS, VITS, DecoderConfig, VitConfig
from sw_driver.workload.training import Training

from .rows import Row, RowError

__all__ = [
    "KINDS",
    "LORA_RANK",
    "MeasuredStep",
    "gpu_of",
    "is_range",
    "kind_of",
    "model_of",
    "step_of",
]

KINDS = ("compute-bound", "FSDP", "offload", "NVMe", "peak memory", "input")
"""Kinds of rows; ``FSDP`` is all data parallelism, and inputs are rates that the model takes."""

LORA_RANK = 16
"""Rank of adapters, which no row gives: the default of ``--trainable`` in many examples."""
_ASPECT, _HEAD = 64, 128
"""Width of a GPT over its layers, and width of a head, where a row has neither."""
_OFF = 0.25
"""Share by which a number of parameters may change the width of the MLP; it is rounded in names."""
LOSS_CHUNKS = 8
"""Chunks of a chunked loss: torchtune's default."""

_FAMILIES = {
    r"llama *-?3\.2": "llama3.2-", r"llama *-?3": "llama3-", r"llama *-?2": "llama2-",
    r"llama|mistral": "llama2-", r"mpt": "mpt-", r"falcon": "falcon-", r"qwen *-?2": "qwen2.5-",
    r"qwen": "qwen-", r"vit": "vit-", r"gpt|megatron|opt|bloom": "gpt2-",
}  # fmt: skip
"""Begins of the names of networks, by a pattern of the model's name; the first one counts."""
_GPUS = {
    r"a100.*40 ?g": "a100-40", r"a100": "a100", r"h100.*96 ?g": "h100-96", r"h100": "h100",
    r"h200": "h200", r"v100": "v100", r"4070 ?ti ?super": "rtx4070tis", r"4090": "rtx4090",
    r"3090": "rtx3090", r"a5000": "a5000", r"a6000": "a6000",
}  # fmt: skip
_PRECISIONS = {
    r"fp8|float8": "fp8-mixed", r"bf16.*(pure|lora)|lora|^bf16$": "bf16", r"bf16": "bf16-mixed",
    r"fp16": "fp16-mixed", r"tf32": "tf32", r"fp32": "fp32",
}  # fmt: skip
_OPTIMIZERS = {
    r"adamw?.*8 ?bit": "adamw8bit", r"adamw": "adamw", r"adam": "adam", r"lion": "lion",
    r"momentum": "momentum", r"sgd": "sgd",
}  # fmt: skip
_SYSTEMS = {
    r"smart": "Smart-Infinity", r"infinity|nvme": "ZeRO-Infinity",
    r"delay": "ZeRO-Offload, delayed update", r"activation": "activation offload",
    r"paged": "8-bit optimizer, paged", r"fsdp": "FSDP, CPU offload", r"zero-?3": "ZeRO-3 offload",
    r"ao cpu": "ZeRO-Offload", r"offload": "ZeRO-Offload, as run",
}  # fmt: skip
"""Systems, by a pattern of what is offloaded."""
_PLAIN = "all on the GPU"
_FUSED = r"nemo|megatron|oneflow"
"""Frameworks with kernels for runs of element-wise operations, as a compiler makes them."""
_UNFUSED = r"megatron|oneflow|math attention"
"""Measurements that are older than fused attention; a V100 has no kernel of it either."""
_TORCHTUNE = "torchtune"
"""A library with tables of compiled steps, unless they say eager; with checkpoints, the loss is in
chunks."""


@dataclass(frozen=True, kw_only=True)
class MeasuredStep:
    """A training step to be simulated."""

    config: DecoderConfig | VitConfig
    is_fused: bool
    """True if attention is one operation that keeps no scores."""
    training: Training
    micro_batches: int
    gpu: str
    network: Figure | None
    """Rate of a host's network in 10^9 bytes/s, if the row gives it."""
    changes: Mapping[str, str]
    """Other settings of the machine that the row gives."""
    system: str
    """System that runs it, by its name in the comparison of systems."""


def kind_of(row: Row) -> str:
    """Return the kind of a row, one of :data:`KINDS`."""
    if row.model.startswith("matmul"):
        return "input"
    if "memory" in row.metric:
        return "peak memory"
    moved = f"{row.offload} {row.link}".lower()
    if re.search("nvme|infinity|smartssd", moved):
        return "NVMe"
    if _system(row.offload.partition(" over ")[0]) != _PLAIN:
        return "offload"
    return "FSDP" if (row.number("gpus") or 1) > 1 else "compute-bound"


def is_range(row: Row) -> bool:
    """Return whether a row is a range: a ratio, a single report of an issue, an uncertain size."""
    is_uncertain = "issue" in row.source or "?" in row.micro_batch + row.seq
    return row.unit in ("x", "%") or is_uncertain or row.span[0] < row.span[1]


def step_of(row: Row, offload: str | None = None) -> MeasuredStep:
    """Return the step of a row, with another system's ``offload`` than its own if given.

    Raises :class:`RowError` for a field that is unknown or has no model, and
    :class:`~sw_driver.device.errors.InvalidArgumentError` for choices that do not fit together.
    """
    words = f"{row.checkpointing} {row.offload} {row.link}".lower()
    if re.search(r"\bpp ?[0-9]", words):
        raise RowError("link has pipeline parallelism, which has no model")
    gpu, gpus = gpu_of(row), row.number("gpus") or 1
    width = int(match[1]) if (match := re.search(r"\btp ?([0-9]+)", words)) else 1
    micro_batches = row.number("accum")
    if micro_batches is None:
        # With context parallelism (CP) GPUs share samples; here each has its own, of equal work.
        batch = re.search(r"GBS ([0-9]+)", row.source)
        samples = int(batch[1]) if batch else row.known("accum")
        micro_batches = max(samples * width // (gpus * row.known("micro_batch")), 1)
    if "one micro-batch" in row.source:
        micro_batches = 1
    optimizer = _matched("optimizer", row.optimizer, _OPTIMIZERS)
    scheme = re.search(r"\b(ddp|zero-?[123])\b", words.replace("offload", ""))
    shard = scheme[1].replace("-", "") if scheme else "zero3"
    precision = _matched("precision", row.precision, _PRECISIONS)
    if precision.startswith("bf16") and "bf16 states" in row.optimizer:
        optimizer += "-bf16"
    ways, maker = row.checkpointing.lower(), f"{row.model} {row.source}".lower()
    checkpoint = re.match("no|full|yes|selective|none", ways)
    if not checkpoint:
        raise RowError(f"checkpointing is {row.checkpointing!r}: expected no, full or selective")
    is_lora = re.search("lora", row.precision, re.IGNORECASE)
    lora = f"{'q' * bool(re.search('q-?lora', row.precision, re.IGNORECASE))}lora:{LORA_RANK}"
    policy = {"no": "none", "yes": "full"}.get(checkpoint[0], checkpoint[0])
    tuned = _TORCHTUNE in maker and "eager" not in ways
    return MeasuredStep(
        config=model_of(row),
        is_fused=gpu != "v100" and not re.search(_UNFUSED, f"{maker} {ways}"),
        training=Training(
            trainable=lora if is_lora else "all",
            precision=precision,
            loss_chunks=LOSS_CHUNKS if "chunked" in ways or (tuned and policy != "none") else 1,
            checkpoint=policy,
            optimizer=optimizer,
            in_backward="backward" in row.optimizer,
            tensor_parallel=width,
            compiled="compile" in ways or tuned or bool(re.search(_FUSED, maker)),
            shard="none" if gpus == width else shard,
            gpus=gpus,
        ),
        micro_batches=micro_batches,
        gpu=gpu,
        network=_network(row.link),
        changes=_changes(row),
        system=_system(row.offload if offload is None else offload),
    )


def gpu_of(row: Row) -> str:
    """Return the name of a row's GPU in :data:`~sw_driver.machine.gpus.GPUS`."""
    return _matched("gpu", row.gpu, _GPUS)


def model_of(row: Row) -> DecoderConfig | VitConfig:
    """Return the model of a row, with its batch and its tokens.

    Family, layers and width choose one of the networks of today. If none has those sizes, the
    family's network that is nearest in width gets the layers, the width and the heads of the row.
    Layers and width of a GPT may follow from its number of parameters.
    """
    prefix = _matched("model", row.model, _FAMILIES)
    known = [one for name, one in {**DECODERS, **VITS}.items() if name.startswith(prefix)]
    layers, width = row.number("layers"), row.number("hidden")
    if layers is None or width is None:
        if prefix != "gpt2-":
            raise RowError(f"{'hidden' if layers else 'layers'} is not given")
        # The step hardly depends on it: a width of 64 times the layers, as Megatron's GPTs have.
        many = row.known("params")
        width = max(round((_ASPECT * many / 12) ** (1 / 3) / _HEAD), 1) * _HEAD
        layers = max(round(many / 12 / width**2), 1)
    config = min(known, key=lambda one: (abs(one.d_model - width), abs(one.n_layers - layers)))
    heads = row.number("heads") or -(-width // _HEAD)
    groups = row.number("heads", place=1) or heads
    sizes = (config.n_layers, config.d_model, config.n_heads)
    if sizes != (layers, width, heads):
        inner = config.d_inner * width / config.d_model
        if isinstance(config, DecoderConfig) and (many := row.number("params")):
            # The products of a block that the number of parameters leaves to the MLP.
            of_block = (many - config.vocabulary * width * (2 - config.tied)) / layers
            left = of_block / width - width * (2 + 2 * groups / heads)
            by_params = left / (3 if config.gated else 2)
            inner = by_params if abs(by_params / inner - 1) < _OFF else inner
        inner = round(inner / 64) * 64
        sized = {"n_layers": layers, "d_model": width, "n_heads": heads, "d_inner": inner}
        group = heads // groups if "/" in row.heads else config.group
        config = replace(config, **sized, group=group)
    batch, seq = row.known("micro_batch"), row.known("seq")
    if isinstance(config, DecoderConfig):
        return replace(config, batch=batch, context=seq)
    # Images have 224 places a side, as most have in training, if the tokens are uncertain.
    side = 224 // config.patch if "?" in row.seq else isqrt(seq - 1)
    return replace(config, batch=batch, image=side * config.patch)


def _system(offload: str) -> str:
    text = offload.lower()
    if re.fullmatch("none|no|-||fsdp|zero-?[123]|ddp", text):
        return _PLAIN
    if text == "none (paged)":
        return "8-bit optimizer, paged"
    return _matched("offload", offload, _SYSTEMS)


def _matched(column: str, text: str, patterns: dict[str, str]) -> str:
    """Return the name of the first pattern that a text has; raise ``RowError`` for none."""
    for pattern, name in patterns.items():
        if re.search(pattern, text, re.IGNORECASE):
            return name
    if text in ("", "-"):
        raise RowError(f"{column} is not given")
    raise RowError(
        f"{column} is {text!r}: expected one of {', '.join(dict.fromkeys(patterns.values()))}"
    )


def _changes(row: Row) -> dict[str, str]:
    """Return settings of the machine that a row's ``link`` gives: PCIe and the number of drives."""
    changes = {}
    if match := re.search(r"PCIe ?([345])", row.link):
        rate = str(PCIE[int(match[1])].value)
        changes |= {"pcie.read_gb_per_s": rate, "pcie.write_gb_per_s": rate}
    if match := re.search(r"([0-9]+) ?x (?:NVMe|SmartSSD)", row.link, re.IGNORECASE):
        gpu = gpu_of(row)
        _, link, inside = HOSTS[gpu].drive()
        times, most = int(match[1]) / HOSTS[gpu].drives, PCIE[GPUS[gpu].pcie].value
        changes |= {
            f"drive.{name}": str(min(rate.value * times, limit))
            for name, rate, limit in (
                ("read_gb_per_s", link.read_gb_per_s, most),  # one box behind an x16 link
                ("write_gb_per_s", link.write_gb_per_s, most),
                ("gb_per_s", inside.gb_per_s, inf),
            )
        }
    return changes


def _network(link: str) -> Figure | None:
    match = re.search(r"(?:([0-9]+) ?x ?)?([0-9]+) ?Gb/s", link)
    if not match:
        return None
    return given(int(match[1] or 1) * int(match[2]) / 8, f"the measurement: {match[0]} a host")
