"""What the platform gains when tensors have fewer bytes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hw.narrow.formats import BLOCK_PARAMETERS, MIXTURES, Formats
from hw.rules import PAPER_RULES, rule
from sw_driver.axdimm.measure import own_mparams_per_s

from ..reproduction import Changes, Claim, Experiment, Progress, given, predicted
from .framework import StepResult
from .paper import MODELS
from .platform import machine_of
from .runs import BY_BYTES, Variant, run
from .settings import CHANNELS
from .tensors import kept_bytes

__all__ = ["formats"]

_FORMATS = {
    "FP32": MIXTURES["fp32"],
    "BF16 g": MIXTURES["bf16_g"],
    "BF16 g, 8-bit m, v": MIXTURES["bf16_g_8bit"],
    "and a BF16 copy of p": replace(MIXTURES["bf16_g_8bit"], copy="bf16"),
    "BF16 g, p, 8-bit m, v": MIXTURES["bf16_gp_8bit"],
}
_MODELS = (MODELS[0], MODELS[2], MODELS[-1])


def formats(changes: Changes, progress: Progress) -> Experiment:
    """A step's parts by the formats of tensors, and where the bottleneck goes."""
    columns: dict[str, dict[str, Claim | str]] = {}
    for name, of in _FORMATS.items():
        columns[name] = column = _of_all_models(of, changes)
        for model in _MODELS:
            variant = Variant(
                model=model,
                changes=changes,
                settings=replace(BY_BYTES, formats=of),
                own_rate=True,
            )
            result = run(variant, progress)
            parts = _parts(result, changes)
            column[f"{model}: step, s"] = predicted(result.total_ns / 1e9)
            column |= {f"{model}: {part}, s": predicted(ns / 1e9) for part, ns in parts.items()}
            column[f"{model}: most"] = max(parts, key=lambda part: parts[part])
    return Experiment(
        title="Where the bottleneck goes with fewer bytes",
        rows=[
            {"": name, **{formats: column[name] for formats, column in columns.items()}}
            for name in columns["FP32"]
        ],
        notes=[
            "Our kernel, tensors placed by bytes. Parts are what each would take alone: gradients "
            "to the module, parameters to the GPU, what has no room in the module to the drives "
            "and back, a channel's kernels on average, with the runtime's overhead, and the passes "
            "on the GPU, which computes in FP32. The runtime makes one transfer after the other; "
            "kernels and the GPU work beside them.",
            "[Formats](../formats.md): states have their scales with them. The GPU converts what "
            "it sends and fetches, and fetches the copy if there is one, which is gathered for an "
            "update as states are.",
        ],
    )


def _of_all_models(of: Formats, changes: Changes) -> dict[str, Claim | str]:
    """What depends on no model."""
    adam, machine = rule(PAPER_RULES[0]), machine_of(changes=changes)
    block = 4 * BLOCK_PARAMETERS
    tensors = ["p", *adam.states, *([] if of.copy == "none" else ["p_copy"])]
    kept = sum(kept_bytes(of, tensor, block) for tensor in tensors) / BLOCK_PARAMETERS
    held = sum(machine.memory(f"module{each}").capacity_bytes.value for each in range(CHANNELS))
    return {
        "a kernel moves, bytes a parameter": given(of.bytes_per_parameter(adam)),
        "kernels of both channels, MP/s": predicted(own_mparams_per_s(of), digits=0),
        "the module keeps, bytes a parameter": given(kept),
        "and so has room for, billions of parameters": given(held / kept / 1e9),
    }


def _parts(result: StepResult, changes: Changes) -> dict[str, float]:
    """In ns, what a step's parts would take alone."""
    machine, moved = machine_of(changes=changes), Counter(result.moved_bytes)
    module, direct, drives = (
        machine.link(name).read_gb_per_s.value for name in ("module", "direct", "nvme")
    )
    return {
        "gradients": moved["gradient"] / module,
        "parameters": moved["fetch"] / module + moved["fetch from nvme"] / direct,
        "to and from drives": (moved["evict"] + moved["gather"]) / drives,
        "kernels": result.kernel_ns / CHANNELS,
        "GPU": result.gpu_ns,
    }
