"""Comparison of the cycle model with RTL, over random configurations.

A group of configurations shares a build of the simulator. A group has a random module; each of its
runs has a random placement of the tensors and a random count. Both backends get the same register
accesses, because the driver would place the tensors itself.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import log2
from typing import TYPE_CHECKING, Any

from hw.kernel.config import NARROW_RULES
from hw.narrow.formats import BLOCK_PARAMETERS, CHOICES, FP32_FORMATS, Formats
from hw.rules import RULES
from sw_driver.axdimm.registers import arbiter_registers, kernel_registers
from sw_driver.axdimm.runs import ACTIVITY_REGISTERS, DRAM_TIMES
from sw_driver.axdimm.transport import LINE_BYTES, Transport, kernel_window
from sw_driver.device.transport import DeviceTimeout
from sw_driver.report import Report, Table, Watch, count, share

if TYPE_CHECKING:
    from hw.axdimm.config import ModuleConfig

__all__ = ["Comparison", "Group", "Trial", "compare", "draw", "measure", "report"]

MOST_ERROR = 0.01
"""Upper limit of the model's error in fabric cycles, as a share."""

CAPACITY_BYTES = 64 << 20
RUNS_PER_GROUP = 8
MOST_PARAMETERS = 300_000
MOST_FABRIC_CYCLES = 400_000
"""Fabric cycles of a run, at most, about: runs with few lanes get fewer parameters."""

_DEALT: dict[str, Sequence[Any]] = {
    "preset": ("axdimm", "axdimm_8gbit_x16", "axdimm_ddr4_2400", "tiny", "axdimm_narrow"),
    "lanes": (1, 2, 4, 8, 16),
    "block_bytes": tuple(1024 << power for power in range(7)),
    "buffer_blocks": (1, 2, 3, 4),
    "refresh": (True, True, True, False),
    "rules": tuple(RULES),
}
"""Values of the settings that every random module draws; narrow formats change some of them."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A run: a placement of the tensors and a count."""

    placement: str
    """Description of the placement, and of formats other than FP32, for tables."""
    addresses: dict[str, int]
    """Byte addresses of the tensors, by register."""
    count: int
    formats: Formats = FP32_FORMATS
    rest_fabric_cycles: int
    """Idle fabric cycles before START."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs on one module, which share a build of the simulator."""

    preset: str
    settings: dict[str, Any]
    trials: tuple[Trial, ...]

    def config(self) -> ModuleConfig:
        """Return the module's configuration; raise ``ValueError`` for impossible settings."""
        from hw.axdimm.config import configure

        return configure(self.preset, **self.settings)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Counters of a run in RTL and in the model, by register."""

    group: Group
    trial: Trial
    rtl: dict[str, int]
    model: dict[str, int]

    @property
    def error(self) -> float:
        """Error of the model's fabric cycles, as a share of the RTL's."""
        return self.model["cycles"] / self.rtl["cycles"] - 1

    @property
    def account_error(self) -> float:
        """Largest difference of a part of the DRAM's time, as a share of the whole time."""
        total = sum(self.rtl[f"{name}_tck"] for name in DRAM_TIMES)
        return (
            max(abs(self.model[f"{name}_tck"] - self.rtl[f"{name}_tck"]) for name in DRAM_TIMES)
            / total
        )


def draw(configurations: int, seed: int, *, per_group: int = RUNS_PER_GROUP) -> list[Group]:
    """Return random groups of ``per_group`` runs, ``configurations`` in all.

    A seed always gives the same groups.
    """
    rng = random.Random(seed)
    decks = {name: _deal(rng, values) for name, values in _DEALT.items()}
    groups = []
    while configurations > 0:
        dealt = {name: next(deck) for name, deck in decks.items()}
        group = _draw_group(rng, min(configurations, per_group), dealt)
        groups.append(group)
        configurations -= len(group.trials)
    return groups


def _deal(rng: random.Random, values: Sequence[Any]) -> Iterator[Any]:
    """Yield the values in random order, without end; use all before any repeats."""
    while True:
        yield from rng.sample(values, len(values))


def _draw_group(rng: random.Random, runs: int, dealt: dict[str, Any]) -> Group:
    from hw.axdimm.config import configure

    preset = dealt.pop("preset")
    settings: dict[str, Any] = {"channels": 1, "capacity_bytes": CAPACITY_BYTES, **dealt}
    if preset == "axdimm_narrow":
        settings["rules"] = rng.choice(NARROW_RULES)
        settings["block_bytes"] = max(settings["block_bytes"], 8192)
    # Few at a time, so that some modules have a single unusual setting.
    unusual = {
        "queue_depth": lambda: 8 << rng.randrange(4),
        "write_buffer_lines": lambda: 64 << rng.randrange(4),
        "read_buffer_lines": lambda: 32 << rng.randrange(3),
        "run_length": lambda: rng.choice((1, 4, 8, 32)),
        "refresh_postpone": lambda: rng.randint(1, 8),
        "refresh_pull_in": lambda: rng.randint(0, 8),
        "banks_per_group": lambda: rng.choice((2, 4)),
        "columns": lambda: rng.choice((256, 512, 1024)),
        "t_rcd": lambda: rng.randint(9, 20),
        "t_rp": lambda: rng.randint(9, 20),
        "t_rfc": lambda: rng.randint(150, 600),
    }
    for name, value in unusual.items():
        if rng.random() < 0.2:
            settings[name] = value()
    # Also timings that no DDR4 part has.
    settings["allow_nonstandard"] = True
    config = configure(preset, **settings)
    trials = []
    while len(trials) < runs:
        trial = _draw_trial(rng, config)
        if trial is not None:
            trials.append(trial)
    return Group(preset=preset, settings=settings, trials=tuple(trials))


def _draw_trial(rng: random.Random, config: ModuleConfig) -> Trial | None:
    most = min(MOST_PARAMETERS, MOST_FABRIC_CYCLES * min(config.lanes, 2) // 2)
    count = rng.randint(1, 600) if rng.random() < 0.25 else int(2 ** rng.uniform(6, log2(most)))
    formats = FP32_FORMATS
    if config.narrow:
        formats = Formats(**{name: rng.choice(known) for name, known in CHOICES.items()})
    if formats.narrow:
        count = -(-count // BLOCK_PARAMETERS) * BLOCK_PARAMETERS
    top = kernel_window(config.capacity_bytes)
    (rule,) = config.kernel.update_rules
    loads, stores = formats.loads(rule), formats.stores(rule)
    # Tensors are shuffled over the places below, so each place fits the largest.
    nbytes = LINE_BYTES * max(formats.tensor_lines(rule, name, count) for name in loads + stores)
    apart = rng.random() < 0.3 and not {*loads}.isdisjoint(stores)
    outputs = [name for name in stores if apart or name not in loads]
    registers = [*(f"{name}_in" for name in loads), *(f"{name}_out" for name in outputs)]
    tensors = len(registers)
    geometry = config.part.geometry
    all_banks = geometry.banks * geometry.row_bytes
    stride = -(-nbytes // all_banks) * all_banks
    placement = rng.choice(("collide", "stagger", "line", "page", "block"))
    if placement in ("collide", "stagger"):
        if placement == "stagger":
            stride += 4 * geometry.row_bytes
        first = rng.randrange(0, all_banks, LINE_BYTES) if rng.random() < 0.5 else 0
        starts = [first + index * stride for index in range(tensors)]
    else:
        alignment = {"line": LINE_BYTES, "page": 4096, "block": 2 * geometry.row_bytes}[placement]
        starts = [rng.randrange(0, max(alignment, top - nbytes), alignment) for _ in range(tensors)]
    ordered = sorted(starts)
    disjoint = all(b - a >= nbytes for a, b in pairwise(ordered))
    if not disjoint or ordered[-1] + nbytes > top:
        return None
    rng.shuffle(starts)
    addresses = dict(zip(registers, starts, strict=True))
    in_place = [name for name in stores if name not in outputs]
    addresses |= {f"{name}_out": addresses[f"{name}_in"] for name in in_place}
    interval = config.part.timing.t_refi // 4
    unusual = [f"{name} {value}" for name, value in asdict(formats).items()
               if value != getattr(FP32_FORMATS, name)]  # fmt: skip
    return Trial(
        placement=", ".join([placement, *(["outputs apart"] if apart else []), *unusual]),
        addresses=addresses,
        count=count,
        formats=formats,
        rest_fabric_cycles=10 * interval + rng.randrange(interval),
    )


def measure(transport: Transport, trials: tuple[Trial, ...]) -> Iterator[dict[str, int]]:
    """Run the trials on channel 0; yield the counters of each, by register."""
    arbiter, kernel = arbiter_registers(transport, 0), kernel_registers(transport, 0)
    arbiter.write("mode", arbiter["mode"]["mode"].code("acceleration"))
    arbiter.poll("status", {"mode": 1, "draining": 0}, interval=8, timeout=100_000)
    for trial in trials:
        settings = {"count": trial.count, **trial.addresses}
        if any(register.name == "formats" for register in kernel.registers):
            settings["formats"] = trial.formats.code()
        kernel.write_many(settings)
        _rest(transport, trial.rest_fabric_cycles)
        kernel.write("control", kernel["control"]["start"].mask)
        kernel.poll("status", {"busy": 0, "done": 1, "error": 0}, interval=256, timeout=10**7)
        names = ["cycles", "beats_read", "beats_written", "idle_cycles"]
        counts = kernel.read_many(names)
        yield counts | arbiter.read_many(list(ACTIVITY_REGISTERS.values()))


def _rest(transport: Transport, fabric_cycles: int) -> None:
    """Let fabric cycles pass by waiting for a mode that cannot come."""
    with suppress(DeviceTimeout):
        arbiter_registers(transport, 0).poll(
            "status", {"mode": 0}, interval=fabric_cycles, timeout=fabric_cycles
        )


def compare(group: Group, announce: Callable[[str], None] | None = None) -> list[Comparison]:
    """Run a group in RTL and in the model; build the simulator first if it is not built yet.

    Raise ``RuntimeError`` if the build fails or the RTL breaks a DRAM rule.
    """
    from sw_driver.axdimm.backends.cycles import CyclesTransport
    from sw_driver.axdimm.backends.rtl import VerilatedTransport

    config = group.config()
    rtl = VerilatedTransport(config=config, arithmetic=False, announce=announce)
    try:
        simulated = list(measure(rtl, group.trials))
    finally:
        rtl.close()
    predicted = measure(CyclesTransport(config), group.trials)
    return [
        Comparison(group=group, trial=trial, rtl=counts, model=model)
        for trial, counts, model in zip(group.trials, simulated, predicted, strict=True)
    ]


def report(configurations: int, seed: int, watch: Watch = Watch()) -> Report:
    """Compare model and RTL over random configurations; report the errors.

    The report is good if the largest error is below ``MOST_ERROR``. Errors are those of
    :func:`compare`.
    """
    compared: list[Comparison] = []
    for group in watch.track(draw(configurations, seed), "comparing"):
        compared += compare(group, watch.log)
    errors = [abs(run.error) for run in compared]
    figures = {
        "exact": sum(error == 0 for error in errors),
        "median_error": statistics.median(errors),
        "max_error": max(errors),
        "max_account_error": max(run.account_error for run in compared),
    }
    columns: dict[str, Callable[[Comparison], str]] = {
        "configuration": _settings,
        "placement": lambda run: run.trial.placement,
        "parameters": lambda run: count(run.trial.count),
        "RTL": lambda run: count(run.rtl["cycles"]),
        "model": lambda run: count(run.model["cycles"]),
        "error": lambda run: f"{run.error:+.3%}",
        "error of shares": lambda run: share(run.account_error, 3),
    }
    summary = (
        f"{configurations} configurations, seed {seed}: {figures['exact']} exact; error of the "
        f"fabric cycles: median {figures['median_error']:.3%}, largest "
        f"{figures['max_error']:.3%}; largest error of a share of the DRAM's time: "
        f"{figures['max_account_error']:.3%}"
    )
    is_good = figures["max_error"] < MOST_ERROR
    off = f"the model is off by {figures['max_error']:.3%}, more than 1 %"
    return Report(
        results=figures | {"runs": [_described(run) for run in compared]},
        parts=[Table.of("Fabric cycles from START to DONE", compared, columns, words=(0, 1))],
        notes=[summary],
        workload={"configurations": configurations, "seed": seed},
        complaints=[] if is_good else [off],
        is_good=is_good,
    )


def _described(run: Comparison) -> dict[str, Any]:
    row = {"preset": run.group.preset, **run.group.settings, **asdict(run.trial)}
    row |= {"rtl": run.rtl, "model": run.model}
    return row | {"error": run.error, "account_error": run.account_error}


def _settings(comparison: Comparison) -> str:
    """Return the module's settings for its first trial, else an empty text."""
    group = comparison.group
    if comparison.trial is not group.trials[0]:
        return ""
    hidden = ("channels", "capacity_bytes")
    shown = [f"{name}={value}" for name, value in group.settings.items() if name not in hidden]
    return " ".join([group.preset, *shown])
