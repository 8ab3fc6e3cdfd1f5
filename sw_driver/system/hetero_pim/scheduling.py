"""Schedule of a training step's operations on devices: the runtime of section III-C.

Operations that the PIMs are offered start in program order, as soon as their inputs are ready.
Pools are shared. A phase of a kernel takes as many free banks as it can use, and more when others
become free. It keeps its banks until it ends. A core is free for other operations while the pools
work for its kernel.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import accumulate, pairwise
from typing import NamedTuple

from sw_driver.device.timeline import Timeline
from sw_driver.numbers import check_integer
from sw_driver.workload.trace import Op, Trace

from ..clock import EngineClock, Entry
from ..errors import EngineError
from .configurations import Configuration
from .costs import Costs, Phase, past

__all__ = ["PARTS", "Row", "Schedule", "schedule"]

PARTS = ("compute", "waiting", "movement", "launch", "sync")
"""Parts of a step's time.

The configuration's first device computes, or waits while another one does. Else data moves between
CPU and memory, work is launched, or phases of a kernel synchronise.
"""
_DEVICES = ("pools", "core", "cpu", "gpu")


class Row(NamedTuple):
    """A span of a device's work on an operation."""

    op: int
    """Operation; numbers go on into later steps."""
    device: str
    banks: int
    """Banks of the pools that were held; 1 for another device."""
    begin_ns: int
    end_ns: int
    part: str
    """One of :data:`PARTS`, but ``waiting``."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Device and time of each operation, over several steps."""

    trace: Trace
    """Trace of one step."""
    banks: int
    rows: tuple[Row, ...]
    ends_ns: tuple[int, ...]
    """End of the last operation of each step and those before it, in ns."""
    total_ns: int
    """End of everything, including steps of the other network, in ns."""
    reasons: Mapping[int, str] = field(default_factory=dict)
    """Reason why the CPU runs an operation of the last step."""

    @property
    def step_ns(self) -> int:
        """Mean time in ns of the steps in the middle, which overlap on both sides, or of all."""
        begin, end, steps = self._window
        return (end - begin) // steps

    @property
    def places(self) -> dict[int, str]:
        """Devices of each operation of the last step, joined by ``+``."""
        first = (len(self.ends_ns) - 1) * len(self.trace.ops)
        devices: dict[int, dict[str, None]] = {}
        for row in self.rows:
            if first <= row.op < first + len(self.trace.ops):
                devices.setdefault(row.op - first, {})[row.device] = None
        return {number: "+".join(sorted(devices[number])) for number in sorted(devices)}

    @property
    def breakdown_ns(self) -> dict[str, int]:
        """Parts of :attr:`step_ns` by :data:`PARTS`."""
        begin, end, steps = self._window
        devices = {row.device for row in self.rows}
        first = next(device for device in (*_DEVICES, "") if device in devices or not device)
        parts, rows, covered = {}, [], 0
        for part in PARTS[:-1]:
            name = "compute" if part == "waiting" else part
            rows += [
                row
                for row in self.rows
                if row.part == name and (part != "compute" or row.device == first)
            ]
            under = _union(rows, begin, end)
            parts[part], covered = (under - covered) // steps, under
        return {**parts, "sync": self.step_ns - sum(parts.values())}

    @property
    def lost_ns(self) -> int:
        """Time of a step in which nothing computes, in ns."""
        parts = self.breakdown_ns
        return sum(parts[part] for part in PARTS[2:])

    def busy_ns(self, device: str) -> int:
        """Return the ns of a step in which a device works, summed over operations with launches."""
        begin, end, steps = self._window
        return sum(_inside(row, begin, end) for row in self.rows if row.device == device) // steps

    @property
    def utilisation(self) -> float:
        """Share of the pools' banks that compute, over a step."""
        begin, end, _ = self._window
        rows = [row for row in self.rows if (row.device, row.part) == ("pools", "compute")]
        used = sum(row.banks * _inside(row, begin, end) for row in rows)
        return used / max(1, self.banks * (end - begin))

    @property
    def timeline(self) -> Timeline:
        """Timeline in ns, with a track for each device, and further ones for concurrent work."""
        timeline = Timeline(backend="Hetero PIM", fabric_mhz=1000)
        for row in sorted(self.rows, key=lambda row: (row.begin_ns, row.end_ns, row.op)):
            track = f"{row.device} {timeline.lane(row.device, row.begin_ns, row.end_ns) + 1}"
            timeline.track(track)
            op = self.trace.ops[row.op % len(self.trace.ops)]
            step = row.op // len(self.trace.ops)
            label = f"{self.trace.layers[op.layer]} {op.kind}"
            label = label if step < len(self.ends_ns) else "of the other network"
            timeline.add(track, label, *row[3:], step=step, banks=row.banks)
        return timeline

    @cached_property
    def _window(self) -> tuple[int, int, int]:
        """Start and end in ns, and number of steps between them."""
        ends, steps = self.ends_ns, len(self.ends_ns)
        if steps < 3 or ends[0] == ends[-2]:
            return 0, ends[-1], steps
        return ends[0], ends[-2], steps - 2


def _inside(row: Row, begin: int, end: int) -> int:
    return max(min(row.end_ns, end) - max(row.begin_ns, begin), 0)


def _union(rows: Sequence[Row], begin: int, end: int) -> int:
    """Return the ns between begin and end in which any row is active."""
    covered = 0
    for row in sorted(rows, key=lambda row: row.begin_ns):
        covered += _inside(row, begin, end)
        begin = max(begin, row.end_ns)
    return covered


def schedule(
    trace: Trace,
    costs: Costs,
    configuration: Configuration,
    chosen: Collection[int] = (),
    *,
    steps: int = 8,
    beside: Trace | None = None,
) -> Schedule:
    """Schedule steps of a network; the same input gives the same result.

    Raises :class:`~sw_driver.system.errors.EngineError` for an operation without a kernel on the
    configuration's devices, and for a choice of unknown operations.

    Parameters
    ----------
    trace: one step. Without the pipeline, or in program order, steps do not overlap, and one is
        run.
    chosen: ids of the operations of one step that the PIMs are offered; others run on the CPU. In
        program order all are offered.
    beside: steps of another network, which runs on CPU and cores that the first leaves idle.
    """
    check_integer("steps", steps)
    if unknown := sorted(set(chosen) - set(range(len(trace.ops)))):
        raise EngineError(
            f"operation {unknown[0]} is chosen: expected 0 to {len(trace.ops) - 1}, of {trace.name}"
        )
    steps = 1 if configuration.ordered or not configuration.pipeline else steps
    run = _Run(costs, configuration)
    run.add(trace.unrolled(steps), trace, frozenset(chosen), configuration.devices)
    if beside is not None:
        run.add(beside, beside, range(len(beside.ops)), ("cpu", "core"))
    run.clock.at_end(run.dispatch)
    run.clock.run()
    per_step = [
        max(run.ended[number * len(trace.ops) : (number + 1) * len(trace.ops)], default=0)
        for number in range(steps)
    ]
    last = (steps - 1) * len(trace.ops)
    return Schedule(
        trace=trace,
        banks=costs.config.banks,
        rows=tuple(run.rows),
        ends_ns=tuple(accumulate(per_step, max)),
        total_ns=max(run.ended, default=0),
        reasons={
            number - last: run.reason(number, chosen)
            for number, device in run.began.items()
            if device == "cpu" and 0 <= number - last < len(trace.ops)
        },
    )


@dataclass
class _Part:
    """Uninterrupted work of an operation on a device."""

    device: str
    launch_ns: int
    operation_ns: int
    """Time on ``banks`` banks."""
    movement_ns: int = 0
    sync_ns: int = 0
    banks: int = 1
    """Banks that the part can use, on the pools."""
    phase: Phase | None = None
    """Phase, on the pools."""
    width: int = 1
    """Banks that no other operation can use meanwhile."""
    start: str = "launch"
    """Part of the time that its launch counts as."""

    def __post_init__(self) -> None:
        self.took_ns = self.launch_ns + self.operation_ns + self.movement_ns + self.sync_ns
        self.bank_ns = self.took_ns * self.width


_Way = tuple[_Part, ...]
"""Way to run an operation: its parts, one after the other."""


@dataclass
class _Working:
    part: _Part
    rest: _Way
    banks: int
    since_ns: int
    """Time since which it has ``banks`` banks."""
    begin_ns: int
    """End of the launch."""
    end_ns: int
    entry: Entry


class _Run:
    def __init__(self, costs: Costs, configuration: Configuration) -> None:
        self.costs, self.configuration = costs, configuration
        self.clock = EngineClock()
        self.rows: list[Row] = []
        self.ended: list[int] = []
        self.needed: list[int] = []
        """Number of unfinished dependencies of each operation."""
        self.dependents: list[list[int]] = []
        self.ways: list[tuple[_Way, ...]] = []
        """Ways of each operation, the preferred one first."""
        self.waiting: dict[int, tuple[_Way, ...]] = {}
        """Operations, or their remaining parts, that wait only for a device."""
        self.working: dict[int, _Working] = {}
        banks = costs.config.banks
        self.places = {"pools": banks, "core": 1, "cpu": 1, "gpu": 1}
        self.free = dict(self.places)
        self.length = 0
        """Number of operations of a step."""
        self.began: dict[int, str] = {}
        """Device on which an operation began."""
        self.owner: int | None = None
        """Operation that owns all pools, without the pipeline."""

    def add(
        self, trace: Trace, step: Trace, chosen: Collection[int], devices: tuple[str, ...]
    ) -> None:
        """Add a trace of such steps, behind the operations that are there."""
        first, ordered = len(self.ended), self.configuration.ordered
        machine = self.costs.machine
        outer = {device: past(step, machine.device(device)) for device in ("cpu", "gpu")}
        self.length = self.length or len(step.ops)
        of_step = [
            self.ways_of(op, devices if ordered or op.id in chosen else ("cpu",), outer)
            for op in step.ops
        ]
        dependencies = trace.dependencies
        if self.costs.readings.stale_steps and not ordered:
            dependencies = self.between(trace, step)
        for number, needed in enumerate(dependencies, first):
            before = (number - 1 - first,) * (number > first) if ordered else needed
            self.ended.append(0)
            self.dependents.append([])
            self.needed.append(len(before))
            self.ways.append(of_step[(number - first) % len(of_step)])
            for needed_op in before:
                self.dependents[first + needed_op].append(number)
            if not before:
                self.waiting[number] = self.ways[number]

    def between(self, trace: Trace, step: Trace) -> list[list[int]]:
        """Return the dependencies of each operation between steps that may be stale.

        An operation waits for an update ``stale_steps`` steps earlier, reads its own copy of what
        a later step overwrites, and begins after all of the steps before those in flight.
        """
        length, stale = len(step.ops), self.costs.readings.stale_steps
        ended = {number for needed in step.dependencies for number in needed}
        last = [number for number in range(length) if number not in ended]
        dependencies = []
        for op, needed in zip(trace.ops, trace.dependencies, strict=True):
            begin = op.id - op.id % length
            kept = {number for number in needed if number >= begin}
            oldest = begin - (stale + 1) * length
            if not kept and oldest >= 0:
                kept = {oldest + number for number in last}
            for earlier in (trace.ops[number] for number in needed if number < begin):
                is_update = earlier.phase == "update" != op.phase
                number = earlier.id - stale * length * is_update
                if number >= 0 and {*earlier.writes} & {*op.reads, *op.writes}:
                    kept.add(number)
            dependencies.append(sorted(kept))
        return dependencies

    def ways_of(
        self, op: Op, devices: tuple[str, ...], outer: Mapping[str, Sequence[Op]]
    ) -> tuple[_Way, ...]:
        """Return the ways to run an operation; ``outer`` has operations past caches, by device."""
        costs, ways = self.costs, {}
        for device in devices:
            if device == "pools":
                phases = costs.phases(op)
                whole = self.configuration.recursive or costs.readings.splits
                if phases and (whole or all(phase.device == "pools" for phase in phases)):
                    ways[device] = self.kernel(phases, "core" in devices)
            elif device == "core" and "pools" in ways:
                continue  # the pools take it before a core
            elif cost := getattr(costs, device)(outer[device][op.id] if device in outer else op):
                alone_ns, *others = cost
                launch_ns = costs.launch_host_ns if device == "core" else 0
                ways[device] = (_Part(device, launch_ns, alone_ns, *others),)
        if not ways:
            raise EngineError(
                f"operation {op.id}, {op.kind}, has no kernel for {' or '.join(devices)}: expected "
                f"one, or a configuration with the CPU, which {self.configuration.name} has not"
            )
        return tuple(ways.values())

    def kernel(self, phases: Sequence[Phase], has_core: bool) -> _Way:
        """Return a kernel on the pools; the host launches it, and all phases without recursion."""
        costs, way = self.costs, []
        launch_ns, start = costs.launch_host_ns, "launch"
        for phase in phases:
            if phase.device == "pools":
                most = costs.most_banks(phase)
                took_ns = costs.pools_ns(phase, most)
                width = most if self.configuration.pipeline else self.places["pools"]
                way.append(_Part("pools", launch_ns, took_ns, 0, 0, most, phase, width, start))
            elif has_core:
                way.append(_Part("core", launch_ns, costs.core_ns(phase), start=start))
            else:
                way.append(_Part("cpu", 0, costs.cpu_ns(phase)))
            if self.configuration.recursive:
                launch_ns, start = costs.launch_core_ns, "sync"
        return tuple(way)

    def dispatch(self) -> None:
        """Start waiting operations on free devices, and give banks to phases, in program order."""
        left = dict.fromkeys(self.places, 0)
        for working in self.working.values():
            rest_ns = working.end_ns - self.clock.now_ns
            left[working.part.device] += working.banks * rest_ns
        for number in sorted({*self.waiting, *self.working}):
            if number in self.working:
                self.grow(number, self.working[number])
                continue
            ways = self.waiting[number]
            if self.configuration.principle == "earliest" and ways[1:]:
                ways = (min(ways, key=lambda way: self.end_of(way, left)),)
            for way in ways:
                if self.is_free(way[0].device, number):
                    del self.waiting[number]
                    self.begin(number, *way)
                    break
            else:
                way = ways[0]
            for part in way:
                left[part.device] += part.bank_ns

    def end_of(self, way: _Way, left: dict[str, int]) -> int:
        """Return the ns until a way ends, after all that is left to its devices.

        The way then runs uninterrupted. Work left to the pools is in banks times ns.
        """
        end = 0
        for part in way:
            bank_ns = left[part.device] + part.bank_ns
            end = max(end + part.took_ns, -(-bank_ns // self.places[part.device]))
        return end

    def is_free(self, device: str, number: int) -> bool:
        return self.free[device] > 0 and (device != "pools" or self.owner in (None, number))

    def reason(self, number: int, chosen: Collection[int]) -> str:
        """Return why the CPU runs an operation."""
        *others, cpu = (sum(part.took_ns for part in way) for way in self.ways[number])
        if others:
            return "PIMs slower" if min(others) >= cpu else "PIMs busy"
        ordered = self.configuration.ordered
        return "no kernel" if ordered or number % self.length in chosen else "not offered"

    def begin(self, number: int, part: _Part, *rest: _Part) -> None:
        self.began.setdefault(number, part.device)
        banks = min(part.banks, self.free[part.device])
        self.free[part.device] -= banks
        if part.phase is not None and not self.configuration.pipeline:
            self.owner = number
        now = self.clock.now_ns
        begin = now + part.launch_ns
        end = begin + self.takes(part, banks) + part.movement_ns + part.sync_ns
        entry = self.clock.at(end, partial(self.done, number))
        self.working[number] = _Working(part, rest, banks, now, begin, end, entry)

    def takes(self, part: _Part, banks: int) -> int:
        return part.operation_ns if part.phase is None else self.costs.pools_ns(part.phase, banks)

    def grow(self, number: int, working: _Working) -> None:
        """Give a phase the free banks, if that makes it faster."""
        banks = min(working.part.banks, working.banks + self.free[working.part.device])
        old, new = (self.takes(working.part, count) for count in (working.banks, banks))
        if new < old:
            self.record(number, working)
            self.free[working.part.device] -= banks - working.banks
            working.since_ns, working.banks = self.clock.now_ns, banks
            begin = max(working.since_ns, working.begin_ns)
            working.end_ns = begin + -(-(working.end_ns - begin) * new // old)
            self.clock.cancel(working.entry)
            working.entry = self.clock.at(working.end_ns, partial(self.done, number))

    def record(self, number: int, working: _Working) -> None:
        """Add rows for its work with its banks until now."""
        part, moved = working.part, working.end_ns - working.part.sync_ns
        times = (0, working.begin_ns, moved - part.movement_ns, moved, working.end_ns)
        names = (part.start, "compute", "movement", "sync")
        for name, (begin, end) in zip(names, pairwise(times), strict=True):
            begin, end = max(begin, working.since_ns), min(end, self.clock.now_ns)
            if begin < end:
                self.rows.append(Row(number, part.device, working.banks, begin, end, name))

    def done(self, number: int) -> None:
        working = self.working.pop(number)
        self.record(number, working)
        self.free[working.part.device] += working.banks
        self.clock.at_end(self.dispatch)
        if working.rest:
            self.waiting[number] = (working.rest,)
            return
        self.ended[number] = self.clock.now_ns
        self.owner = None if self.owner == number else self.owner
        for dependent in self.dependents[number]:
            self.needed[dependent] -= 1
            if not self.needed[dependent]:
                self.waiting[dependent] = self.ways[dependent]
