"""What the framework's decisions are worth, and what faster parts would be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from ..plotting import draw_bars
from ..reproduction import Changes, Claim, Experiment, Progress, Row, predicted
from .framework import StepResult
from .paper import MODELS
from .platform import PAPER_RATES, machine_of
from .runs import BASELINE, BY_BYTES, MODULE, Variant, run
from .settings import CHANNELS

__all__ = ["ablations", "further", "today"]

_ABLATIONS = {
    "the paper's": Variant(),
    "by bytes": Variant(settings=BY_BYTES),
    "one channel": Variant(channels=1),
    "no prefetch": Variant(settings=replace(MODULE, ahead_ops=0)),
    "updates and transfers in turns": Variant(settings=replace(MODULE, overlap=False)),
    "LRU": Variant(settings=replace(MODULE, eviction="lru")),
    "gradients in a stream of their own": Variant(settings=replace(MODULE, one_stream=False)),
    "transfers beside each other": Variant(settings=replace(MODULE, one_transfer=False)),
}


def _run(variant: Variant, model: str, changes: Changes, progress: Progress) -> StepResult:
    """``changes`` count for more than the variant's own."""
    return run(replace(variant, model=model, changes={**variant.changes, **changes}), progress)


def ablations(changes: Changes, progress: Progress) -> Experiment:
    """What each decision of the framework is worth: total time of a step."""
    rows: list[Row] = []
    for name, variant in _ABLATIONS.items():
        row: dict[str, Claim | str] = {"variant": name}
        for model in MODELS:
            base = _run(Variant(), model, changes, progress).total_ns
            total = _run(variant, model, changes, progress).total_ns
            row[f"{model}, s"] = predicted(total / 1e9)
            row[f"{model}, x"] = predicted(base / total)
        rows.append(row)
    return Experiment(
        title="What the framework's decisions are worth",
        rows=rows,
        notes=["x: how many times as fast as the paper's. All with the paper's kernel rate."],
    )


def _ways(*links: str) -> tuple[str, ...]:
    return tuple(f"{link}.{way}_gb_per_s" for link in links for way in ("read", "write"))


_FASTER_PCIE = _ways("root_port", "pcie", "direct")
_DRIVES = _ways("drives", "nvme")
_WHOLE = {f"module{number}.capacity_bytes": "16GiB" for number in range(CHANNELS)}
_HOST = _ways("module")


def _times(factor: float, keys: Iterable[str]) -> dict[str, str]:
    machine = machine_of()
    return {key: str(factor * machine.keys[key].value) for key in keys}  # type: ignore[union-attr]


def _further() -> dict[str, Variant]:
    spread = Variant(own_rate=True, settings=BY_BYTES)
    drives, host = _times(4, _DRIVES), _times(4, _HOST)
    return {
        "the paper's": Variant(),
        "our kernel": Variant(own_rate=True),
        "our kernel, by bytes": spread,
        "and all 32 GB of the module": replace(spread, changes=_WHOLE),
        "and 32 GB in 4 channels": replace(spread, changes=_WHOLE, channels=4),
        "and 32 GB in 8 channels": replace(spread, changes=_WHOLE, channels=8),
        "and BF16 gradients": replace(spread, settings=replace(BY_BYTES, gradient_bits=16)),
        "and 8-bit states": replace(spread, settings=replace(BY_BYTES, state_bits=8)),
        "and PCIe 4": replace(spread, changes=_times(2, _FASTER_PCIE)),
        "and PCIe 5": replace(spread, changes=_times(4, _FASTER_PCIE)),
        "and 4 times the drives": replace(spread, changes=drives),
        "and 4 times the host's bus": replace(spread, changes=host),
        "and all of PCIe 5, drives, bus": replace(
            spread, changes={**_times(4, _FASTER_PCIE), **drives, **host}
        ),
    }


def further(changes: Changes, progress: Progress) -> Experiment:
    """Where the bottleneck goes when a part becomes faster: the largest model."""
    model = MODELS[-1]
    rows: list[Row] = []
    base = _run(Variant(), model, changes, progress).total_ns
    for name, variant in _further().items():
        machine = machine_of(changes={**variant.changes, **changes})
        result = _run(variant, model, changes, progress)
        total = result.total_ns
        rate = {
            name: machine.link(name).read_gb_per_s.value for name in ("nvme", "module", "direct")
        }
        moved = Counter(result.moved_bytes)
        swapped = moved["evict"] + moved["gather"]
        shares = {
            "drives": swapped / rate["nvme"] + moved["fetch from nvme"] / rate["direct"],
            "module's link": (moved["fetch"] + moved["gradient"] + swapped) / rate["module"],
            "kernels": result.kernel_ns / variant.channels,
            "GPU": result.gpu_ns,
        }
        rows.append(
            {
                "variant": name,
                "total, s": predicted(total / 1e9),
                "x": predicted(base / total),
                **{
                    f"{name} busy, %": predicted(100 * busy / total, digits=0)
                    for name, busy in shares.items()
                },
            }
        )
    busy = [column for column in rows[0] if column.endswith("busy, %")]
    return Experiment(
        title=f"Where the bottleneck goes: {model}",
        rows=rows,
        notes=[
            "`busy` is what a part would need alone, at its rate; the runtime still makes one "
            "transfer after the other. Kernels: a channel's mean, with the runtime's overhead."
        ],
        draw=partial(draw_bars, rows, {"s a step": ["total, s"], "% of the step": busy}),
    )


_TODAY = {**_times(4, _FASTER_PCIE), **_times(4, _DRIVES)}
_DDR4_3200 = {key: str(4 * PAPER_RATES.memory_gb_per_s) for key in _HOST}
_TODAYS_MEMORY = {
    **dict.fromkeys(_HOST, "57.2"),
    **dict.fromkeys(_ways("cpu"), "52.9"),
}
"""A server's core and its memory, measured: on an AMD EPYC (Zen 4) Adam in vectorised C++ did
1889 MP/s on one core, and two cores moved its operands with 57.2 GB/s."""


def today(changes: Changes, progress: Progress) -> Experiment:
    """What the module is worth beside a host of today."""
    baseline = Variant(settings=replace(BASELINE, placement="by_bytes"))
    module = Variant(settings=BY_BYTES, own_rate=True)
    kinds = {
        "no module: 1889 MP/s in host memory": replace(baseline, changes=_TODAY | _TODAYS_MEMORY),
        "the module as it is, DDR4-800": replace(module, changes=_TODAY),
        "the module on DDR4-3200": replace(module, changes=_TODAY | _DDR4_3200),
    }
    rows: list[Row] = []
    for model in MODELS:
        took = {
            name: _run(variant, model, changes, progress).total_ns
            for name, variant in kinds.items()
        }
        first, *_, last = took.values()
        rows.append(
            {
                "model": model,
                **{f"{name}, s": predicted(ns / 1e9) for name, ns in took.items()},
                "speedup of the last": predicted(first / last),
            }
        )
    return Experiment(
        title="Beside a host of today",
        rows=rows,
        notes=[
            "PCIe 5 and drives four times as fast for all, a V100 and 16 GB of memory still, and "
            "tensors placed by bytes. The overhead of the paper's runtime is in all of them."
        ],
    )
