"""What the framework's decisions are worth, and what faster parts would be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from ..reproduction import Cell, Changes, Experiment, Progress, Row, predicted
from .paper import MODELS
from .platform import PAPER_RATES, machine_of, with_channels
from .plots import draw_bars
from .runs import BASELINE, BY_BYTES, MODULE, run
from .settings import CHANNELS, Variant

__all__ = ["ablations", "further", "today"]

_ABLATIONS = (
    Variant(name="the paper's"),
    Variant(name="by bytes", settings=BY_BYTES),
    Variant(name="one channel", channels=1),
    Variant(name="no prefetch", settings=replace(MODULE, ahead_ops=0)),
    Variant(name="updates and transfers in turns", settings=replace(MODULE, overlap=False)),
    Variant(name="LRU", settings=replace(MODULE, eviction="lru")),
    Variant(name="gradients in a stream of their own", settings=replace(MODULE, one_stream=False)),
    Variant(name="transfers beside each other", settings=replace(MODULE, one_transfer=False)),
)


def ablations(changes: Changes, progress: Progress) -> Experiment:
    """What each decision of the framework is worth: total time of a step."""
    rows: list[dict[str, Cell | str]] = []
    base: dict[str, int] = {}
    for variant in _ABLATIONS:
        row: dict[str, Cell | str] = {"variant": variant.name}
        for model in MODELS:
            progress(f"ablations: {variant.name}, {model}")
            result = run(variant, model, changes)
            base.setdefault(model, result.total_ns)
            row[f"{model}, s"] = predicted(result.total_ns / 1e9)
            row[f"{model}, x"] = predicted(base[model] / result.total_ns)
        rows.append(row)
    return Experiment(
        name="ablations",
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


def _further() -> tuple[Variant, ...]:
    own = Variant(name="our kernel", own_rate=True)
    spread = replace(own, name="our kernel, by bytes", settings=BY_BYTES)
    drives = _times(4, _DRIVES)
    return (
        Variant(name="the paper's"),
        own,
        spread,
        replace(spread, name="and all 32 GB of the module", changes=_WHOLE),
        replace(spread, name="and 32 GB in 4 channels", changes=_WHOLE, channels=4),
        replace(spread, name="and 32 GB in 8 channels", changes=_WHOLE, channels=8),
        replace(spread, name="and BF16 gradients", settings=replace(BY_BYTES, gradient_bits=16)),
        replace(spread, name="and 8-bit states", settings=replace(BY_BYTES, state_bits=8)),
        replace(spread, name="and PCIe 4", changes=_times(2, _FASTER_PCIE)),
        replace(spread, name="and PCIe 5", changes=_times(4, _FASTER_PCIE)),
        replace(spread, name="and 4 times the drives", changes=drives),
        replace(spread, name="and 4 times the host's bus", changes=_times(4, _HOST)),
        replace(
            spread,
            name="and all of PCIe 5, drives, bus",
            changes={**_times(4, _FASTER_PCIE), **drives, **_times(4, _HOST)},
        ),
    )


def further(changes: Changes, progress: Progress) -> Experiment:
    """Where the bottleneck goes when a part becomes faster: the largest model."""
    model, rows = MODELS[-1], []
    base = 0
    for variant in _further():
        progress(f"further: {variant.name}")
        machine = with_channels(
            machine_of(changes={**variant.changes, **changes}), variant.channels
        )
        result = run(variant, model, changes)
        base = base or result.total_ns
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
                "variant": variant.name,
                "total, s": predicted(total / 1e9),
                "x": predicted(base / total),
                **{
                    f"{name} busy, %": predicted(100 * busy / total, digits=0)
                    for name, busy in shares.items()
                },
            }
        )
    return Experiment(
        name="further",
        title=f"Where the bottleneck goes: {model}",
        rows=rows,
        notes=[
            "`busy` is what a part would need alone, at its rate; the runtime still makes one "
            "transfer after the other. Kernels: a channel's mean, with the runtime's overhead."
        ],
        draw=partial(draw_bars, rows),
    )


_TODAY = {
    **_times(4, _FASTER_PCIE),
    **_times(4, _DRIVES),
}
_DDR4_3200 = {key: str(4 * PAPER_RATES.memory_gb_per_s) for key in _HOST}
_TODAYS_MEMORY = {
    **dict.fromkeys(_HOST, "57.2"),
    **dict.fromkeys(_ways("cpu"), "52.9"),
}
"""A server's core and its memory, measured: on an AMD EPYC (Zen 4) Adam in vectorised C++ did
1889 MP/s on one core, and two cores moved its operands with 57.2 GB/s."""


def today(changes: Changes, progress: Progress) -> Experiment:
    """What the module is worth beside a host of today."""
    baseline = Variant(name="", settings=replace(BASELINE, placement="by_bytes"))
    module = Variant(name="", settings=BY_BYTES, own_rate=True)
    kinds = (
        replace(
            baseline, name="no module: 1889 MP/s in host memory", changes=_TODAY | _TODAYS_MEMORY
        ),
        replace(module, name="the module as it is, DDR4-800", changes=_TODAY),
        replace(module, name="the module on DDR4-3200", changes=_TODAY | _DDR4_3200),
    )
    rows: list[Row] = []
    for model in MODELS:
        row: dict[str, Cell | str] = {"model": model}
        base = 0
        for variant in kinds:
            progress(f"today: {variant.name}, {model}")
            total = run(variant, model, changes).total_ns
            base = base or total
            row[f"{variant.name}, s"] = predicted(total / 1e9)
        row["speedup of the last"] = predicted(base / total)
        rows.append(row)
    return Experiment(
        name="today",
        title="Beside a host of today",
        rows=rows,
        notes=[
            "PCIe 5 and drives four times as fast for all, a V100 and 16 GB of memory still, and "
            "tensors placed by bytes. The overhead of the paper's runtime is in all of them."
        ],
    )
