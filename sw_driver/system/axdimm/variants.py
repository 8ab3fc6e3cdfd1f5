"""What the framework's decisions are worth, and what faster parts would be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from sw_driver.machine.axdimm_platform import AXDIMM_PLATFORM

from ..plotting import draw_bars
from ..reproduction import Changes, Claim, Experiment, Progress, Row, calibrated, given, predicted
from .framework import StepResult
from .paper import MODELS, TABLE_4, TABLE_6
from .platform import PAPER_RATES, machine_of
from .runs import BASELINE, BY_BYTES, MODULE, Variant, run
from .settings import CHANNELS

__all__ = ["ablations", "further", "gpudirect", "today"]

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


def gpudirect(changes: Changes, progress: Progress) -> Experiment:
    """Parameters straight from NVMe to the GPU, and through the host's memory (4.3, 4.4)."""
    machine, published = machine_of(changes=changes), AXDIMM_PLATFORM
    direct, drives, memory = (
        machine.link(name).read_gb_per_s.value for name in ("direct", "nvme", "module")
    )
    best = published.link("drives").read_gb_per_s.value
    # Each byte is written into the host's memory and read again, over one bus.
    in_turn, at_once = 1 / (1 / drives + 1 / memory), min(drives, memory / 2)
    bus = published.link("ddr").read_gb_per_s.value / 2
    paths = {
        "direct, as fitted to Table 6": (direct, 0),
        "through the host's memory, whole tensors": (in_turn, 2),
        "through the host's memory, in pieces": (at_once, 2),
        "direct, as fast as to the module": (drives, 0),
        "direct, the drives' published rate": (best, 0),
        "in pieces, published rates": (min(best, bus), 2),
    }
    rows: list[Row] = []
    for name, (gb_per_s, times) in paths.items():
        row: dict[str, Claim | str] = {"path": name, "GB/s": calibrated(gb_per_s)}
        if "published" in name:
            row["GB/s"] = given(gb_per_s)
        for model in MODELS[2:]:
            path = {**changes, **dict.fromkeys(_ways("direct"), str(gb_per_s))}
            step = run(Variant(model=model, changes=path), progress)
            row[f"{model}: forward, s"] = predicted(step.forward_ns / 1e9)
            row[f"{model}: step, s"] = predicted(step.total_ns / 1e9)
            if model == MODELS[-1]:
                through = times * step.moved_bytes["fetch from nvme"] / 1e9
                row[f"{model}: by the host's memory, GB"] = predicted(through, digits=0)
        rows.append(row)
    _, parameters_gb, _ = TABLE_4[MODELS[-1]]
    forward_s = TABLE_6[MODELS[-1]]["baseline: forward, s"]
    why = (
        f"The paper has no figure, and its times do not show it: {MODELS[-1]}'s parameters are "
        f"{parameters_gb:g} GB and the forward pass takes {forward_s:g} s, so that "
        f"{parameters_gb / forward_s:.2f} GB/s come at most. Copies through a memory of 6.4 GB/s, "
        f"which each byte crosses twice, could have {bus:g}. The rate that fits is "
        f"that of two copies of whole tensors, {direct:.2f} beside {in_turn:.2f} GB/s, as if "
        "cuFile had been in its compatibility mode, which goes through the host's memory (NVIDIA's "
        "cuFile API Reference Guide)."
    )
    pinned = (
        "The paper has no figure, and nothing here has pages: all copies go at the rate that "
        "pinned memory has over PCIe, 12 GB/s, and wait for DDR4-800 at 6.4."
    )
    claim = partial(predicted, unit="x")
    return Experiment(
        title="GPUDirect Storage, and pinned pages",
        rows=rows,
        quoted={
            "the direct path's bandwidth, of that through the host's memory": claim(
                direct / in_turn, section="4.4", excluded=why
            ),
            "the same, with published rates": claim(best / bus, section="4.4", excluded=why),
            "copies of pinned pages, of those of others": claim(
                None, section="4.3", excluded=pinned
            ),
        },
        notes=[
            "The runtime makes one transfer after the other, so that a path is a rate. Whole "
            "tensors: one is in the host's memory before it goes on; in pieces: both ways share "
            "the memory's bus all the time. Published: 3.45 GB/s a "
            "drive, 6.4 GB/s of DDR4-800."
        ],
    )
