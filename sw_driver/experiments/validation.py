"""The cycle model against RTL, over random configurations.

Configurations come in groups that share a build of the simulator: a group has a random module, each
of its runs a random placement of the tensors and a random count. Both backends are driven with the
same accesses, through the registers, because the driver would place the tensors itself.
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
"""Error of the fabric cycles that the model promises to stay below."""

CAPACITY_BYTES = 64 << 20
RUNS_PER_GROUP = 8
MOST_PARAMETERS = 300_000
MOST_FABRIC_CYCLES = 400_000
"""Fabric cycles, about, that a run may take: fewer parameters if there are few lanes."""

_DEALT: dict[str, Sequence[Any]] = {
    "preset": ("axdimm", "axdimm_8gbit_x16", "axdimm_ddr4_2400", "tiny", "axdimm_narrow"),
    "lanes": (1, 2, 4, 8, 16),
    "block_bytes": tuple(1024 << power for power in range(7)),
    "buffer_blocks": (1, 2, 3, 4),
    "refresh": (True, True, True, False),
    "rules": tuple(RULES),
}
"""Values of the settings that a module always has; few modules see all of them. With narrow formats
some are changed."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run: a placement of the tensors and a count."""

    placement: str
    """How the tensors were placed, and their formats if not FP32, for the reader."""
    addresses: dict[str, int]
    """Byte addresses of the tensors of the module's rule, by their registers."""
    count: int
    formats: Formats = FP32_FORMATS
    rest_fabric_cycles: int
    """Fabric cycles that are let pass before START."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs on one module, which share a build of the simulator."""

    preset: str
    settings: dict[str, Any]
    trials: tuple[Trial, ...]

    def config(self) -> ModuleConfig:
        """The module. Raises ``ValueError`` for settings that make none."""
        from hw.axdimm.config import configure

        return configure(self.preset, **self.settings)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A run on RTL and what the model says of it; both by the names of the registers."""

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
        """The largest difference in where the time went, as a share of all time."""
        total = sum(self.rtl[f"{name}_tck"] for name in DRAM_TIMES)
        return (
            max(abs(self.model[f"{name}_tck"] - self.rtl[f"{name}_tck"]) for name in DRAM_TIMES)
            / total
        )


def draw(configurations: int, seed: int, *, per_group: int = RUNS_PER_GROUP) -> list[Group]:
    """Random groups of ``per_group`` runs, ``configurations`` in all; the same for a seed."""
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
    """The values in random order, all before any comes again."""
    while True:
        yield from rng.sample(values, len(values))


def _draw_group(rng: random.Random, runs: int, dealt: dict[str, Any]) -> Group:
    from hw.axdimm.config import configure

    preset = dealt.pop("preset")
    settings: dict[str, Any] = {"channels": 1, "capacity_bytes": CAPACITY_BYTES, **dealt}
    if preset == "axdimm_narrow":
        settings["rules"] = rng.choice(NARROW_RULES)
        settings["block_bytes"] = max(settings["block_bytes"], 8192)
    # Not all at once: a machine with one unusual setting is worth a look, too.
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
    # Such as no DDR4 has, too.
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
    # Any tensor may come to any place.
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
    told = [f"{name} {value}" for name, value in asdict(formats).items()
            if value != getattr(FP32_FORMATS, name)]  # fmt: skip
    return Trial(
        placement=", ".join([placement, *(["outputs apart"] if apart else []), *told]),
        addresses=addresses,
        count=count,
        formats=formats,
        rest_fabric_cycles=10 * interval + rng.randrange(interval),
    )


def measure(transport: Transport, trials: tuple[Trial, ...]) -> Iterator[dict[str, int]]:
    """Runs the trials on channel 0 and yields the counts of each, by register."""
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
    """Lets time pass: waits for a mode that was not asked for."""
    with suppress(DeviceTimeout):
        arbiter_registers(transport, 0).poll(
            "status", {"mode": 0}, interval=fabric_cycles, timeout=fabric_cycles
        )


def compare(group: Group, announce: Callable[[str], None] | None = None) -> list[Comparison]:
    """Runs a group on both. Builds the simulator first if there is none for it.

    Raises ``RuntimeError`` if the build fails or the RTL breaks a rule of its DRAM.
    """
    from sw_driver.axdimm.backends.cycles import CyclesTransport
    from sw_driver.axdimm.backends.rtl import VerilatedTransport

    config = group.config()
    rtl = VerilatedTransport(config=config, arithmetic=False, announce=announce)
    try:
        found = list(measure(rtl, group.trials))
    finally:
        rtl.close()
    predicted = measure(CyclesTransport(config), group.trials)
    return [
        Comparison(group=group, trial=trial, rtl=counts, model=model)
        for trial, counts, model in zip(group.trials, found, predicted, strict=True)
    ]


def report(configurations: int, seed: int, watch: Watch = Watch()) -> Report:
    """Return what comes of comparing so many drawn configurations; it is good if the model's error
    is below :data:`MOST_ERROR`. Raises what :func:`compare` does."""
    compared: list[Comparison] = []
    for group in watch.track(draw(configurations, seed), "comparing"):
        compared += compare(group, watch.log)
    errors = [abs(each.error) for each in compared]
    figures = {
        "exact": sum(error == 0 for error in errors),
        "median_error": statistics.median(errors),
        "max_error": max(errors),
        "max_account_error": max(each.account_error for each in compared),
    }
    columns: dict[str, Callable[[Comparison], str]] = {
        "configuration": _settings,
        "placement": lambda each: each.trial.placement,
        "parameters": lambda each: count(each.trial.count),
        "RTL": lambda each: count(each.rtl["cycles"]),
        "model": lambda each: count(each.model["cycles"]),
        "error": lambda each: f"{each.error:+.3%}",
        "shares": lambda each: share(each.account_error, 3),
    }
    summary = (
        f"{configurations} configurations, seed {seed}: {figures['exact']} exact, error of the "
        f"fabric cycles: median {figures['median_error']:.3%}, largest "
        f"{figures['max_error']:.3%}; of a share of the time: largest "
        f"{figures['max_account_error']:.3%}"
    )
    is_good = figures["max_error"] < MOST_ERROR
    off = f"the model is off by {figures['max_error']:.3%}, more than 1 %"
    return Report(
        results=figures | {"runs": [_described(each) for each in compared]},
        parts=[Table.of("Fabric cycles from START to DONE", compared, columns, words=(0, 1))],
        notes=[summary],
        workload={"configurations": configurations, "seed": seed},
        complaints=[] if is_good else [off],
        is_good=is_good,
    )


def _described(each: Comparison) -> dict[str, Any]:
    said = {"preset": each.group.preset, **each.group.settings, **asdict(each.trial)}
    said |= {"rtl": each.rtl, "model": each.model}
    return said | {"error": each.error, "account_error": each.account_error}


def _settings(comparison: Comparison) -> str:
    """Return the settings of the module, of the first of its trials alone."""
    group = comparison.group
    if comparison.trial is not group.trials[0]:
        return ""
    hidden = ("channels", "capacity_bytes")
    shown = [f"{name}={value}" for name, value in group.settings.items() if name not in hidden]
    return " ".join([group.preset, *shown])
