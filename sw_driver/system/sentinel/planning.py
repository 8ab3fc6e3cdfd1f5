"""Search of Sentinel's schedule: candidate interval lengths, and tests of case 3.

The paper leaves some points open. They are read as follows:

- Layers are visits of the profile.
- A tensor is needed where it is accessed in memory, past the cache.
- Data in equation 1 is all that an interval needs, without short-lived tensors.
- An interval's time in equation 2 is its share of a step in fast memory.
- The whole step is tried, too, and all lengths if the equations leave none. That is for a program's
  own steps; simulated steps try lengths by the trace alone.
- In case 2, tensors without room stay in slow memory.
- A new tensor goes to fast memory under the same condition as a moved one: there is room beside the
  peak of the pool in all intervals in which it will stay. So the pool has room, and no tensor
  leaves that is still needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise

from sw_driver.device.timeline import Timeline
from sw_driver.machine import Machine
from sw_driver.numbers import check_integer
from sw_driver.workload.trace import LASTING

from ..errors import NoRoomError
from ..placing import FAST, Placed, run
from .policy import MigrationSchedule, Sentinel
from .profiling import PAGE_BYTES, StepProfile, original

__all__ = ["BelowBoundError", "Planned", "Planner", "Settings", "lower_bound_bytes", "planned"]

TRIALS = 10
"""Cases 3 that are tested, at most; the first of a step."""
ALL_LENGTHS = 64
"""Most visits of a step of which all interval lengths are simulated."""


class BelowBoundError(NoRoomError):
    """Fast memory is smaller than :func:`lower_bound_bytes`."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Parts of Sentinel that are enabled; all by default."""

    reserve: bool = True
    """Use a pool for short-lived tensors; without it, they are in fast memory if there is room."""
    pack: bool = True
    """Move tensors without others on their pages; else whole pages of an allocator move."""
    trial: bool = True
    """Test cases 3; without tests, the next interval always waits."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A schedule, and the step that results."""

    schedule: MigrationSchedule
    outcome: Placed
    lower_bound_bytes: int
    tried: Mapping[int, int]
    """Time of a step in ns, by layers in an interval, without tests of cases 3.

    Of the best lengths it is the longer one of the second and third step, so that a step after a
    longer one does not count. Of the others, which are no faster, it is that of the second step.
    """

    @property
    def interval_layers(self) -> int:
        """Layers in an interval."""
        return self.schedule.interval_layers

    @property
    def pool_bytes(self) -> int:
        """Peak of the pool, in bytes."""
        return max(self.schedule.pool_bytes)

    @property
    def cases(self) -> tuple[int, int, int]:
        """Number of intervals of the last step that end in case 1, 2 and 3."""
        first, second, third = _policy(self.outcome).cases[-1]
        return len(first), len(second), len(third)

    @property
    def moved_bytes(self) -> int:
        """Bytes moved in the last step."""
        return sum(self.outcome.moved_bytes.values())

    @property
    def step_ns(self) -> int:
        """Time of the last step, in ns."""
        return self.outcome.step_ns


def _policy(outcome: Placed) -> Sentinel:
    assert isinstance(outcome.policy, Sentinel)
    return outcome.policy


def _longer_ns(outcome: Placed) -> int:
    return max(outcome.steps_ns[1:])


class Planner:
    """Builds schedules of all interval lengths for a profile."""

    def __init__(self, profile: StepProfile, settings: Settings) -> None:
        self.profile, self.step = profile, profile.step
        self.nbytes = tuple(tensor.nbytes for tensor in self.step.tensors)
        if not settings.pack:
            self.nbytes = tuple(len(pages) * PAGE_BYTES for pages in original(self.step))
        self.pooled = profile.short_lived if settings.reserve else frozenset[int]()
        self.uses: list[list[int]] = [[] for _ in self.step.tensors]
        """Operations that access each tensor in memory, in order."""
        for op in self.step.ops:
            moved = zip(op.reads + op.writes, op.read_bytes + op.write_bytes, strict=True)
            for tensor in dict.fromkeys(tensor for tensor, nbytes in moved if nbytes):
                self.uses[tensor].append(op.id)
        self.long = [
            tensor
            for tensor in self.step.tensors
            if self.uses[tensor.id] and tensor.id not in self.pooled
        ]
        changes = [0] * (len(self.step.ops) + 1)
        for number in self.pooled:
            tensor = self.step.tensors[number]
            changes[tensor.allocated] += tensor.nbytes
            freed = len(self.step.ops) if tensor.freed is None else tensor.freed
            changes[freed] -= tensor.nbytes
        self.pool_bytes = list(accumulate(changes))[:-1]
        """Bytes in the pool, by operation."""

    def lower_bound_bytes(self) -> int:
        """Return the least fast memory that a schedule with a pool needs."""
        return max(self.pool_bytes) + max((tensor.nbytes for tensor in self.long), default=0)

    def data_bytes(self, layers: int) -> int:
        """Return the most bytes that an interval accesses, without short-lived tensors."""
        needed: dict[int, int] = {}
        for tensor in self.long:
            lines = self.profile.lines[tensor.id]
            for interval in dict.fromkeys(visit // layers for visit in lines):
                needed[interval] = needed.get(interval, 0) + tensor.nbytes
        return max(needed.values(), default=0)

    def schedule(self, layers: int, waits: frozenset[int]) -> MigrationSchedule:
        """Return the schedule for intervals of ``layers``; those in ``waits`` wait in case 3."""
        visits, visit_of = self.profile.visits, self.profile.visit_of
        count = -(-len(visits) // layers)
        begins = [visits[number * layers].start for number in range(count)]
        pool_bytes = self.pool_bytes[:]
        for begin, end in pairwise((*begins, len(pool_bytes))):
            pool_bytes[begin:end] = [*accumulate(pool_bytes[begin:end][::-1], max)][::-1]
        pool = [pool_bytes[begin] for begin in begins]
        needed: list[list[tuple[int, int]]] = [[] for _ in begins]
        leaving: dict[int, list[int]] = {}
        stays: dict[tuple[int, int], int] = {}
        stay_uses: dict[int, tuple[int, ...]] = {}
        for tensor in self.long:
            uses = [(visit_of[op] // layers, op) for op in self.uses[tensor.id]]
            lasts = tensor.kind in LASTING
            first = dict(reversed(uses))
            for interval, op in first.items():
                # A tensor allocated in the interval before does not exist when that begins.
                if lasts or (interval and tensor.allocated < begins[interval - 1]):
                    needed[interval].append((op, tensor.id))
            after = [(uses[0][0] + count, -1)] if lasts else []
            ends = [
                op
                for (interval, op), (following, _) in pairwise([*uses, *after])
                if following > interval + 1
            ]
            for op in ends:
                leaving.setdefault(op, []).append(tensor.id)
            if not lasts:
                stay_uses[tensor.id] = tuple(op for _, op in uses if not ends or op <= ends[0])
            there = sorted(first)
            if not lasts:
                freed = len(visit_of) if tensor.freed is None else tensor.freed
                there += range(there[-1] + 1, visit_of[freed - 1] // layers + 1)
            most: dict[int, int] = {}
            for interval in reversed([*there, *(number + count for number in there if lasts)]):
                most[interval] = max(pool[interval % count], most.get(interval + 1, 0))
            for interval in there:
                for here in (interval - 1, interval)[not (lasts or interval) :]:
                    stays[tensor.id, here % count] = most.get(here % count + 1, 0)
        return MigrationSchedule(
            interval_layers=layers,
            begins={op: number for number, op in enumerate(begins)},
            prefetched=tuple(
                tuple(number for _, number in sorted(needed[(interval + 1) % count]))
                for interval in range(count)
            ),
            leaving={op: tuple(tensors) for op, tensors in leaving.items()},
            pooled=self.pooled,
            pool_bytes=tuple(pool_bytes),
            nbytes=self.nbytes,
            stays=stays,
            stay_uses=stay_uses,
            waits=waits,
        )

    def _halvings(self) -> list[int]:
        """Return the whole step, in which nothing moves, half of it, a quarter, down to 1."""
        visits = len(self.profile.visits)
        return sorted({-(-visits >> halved) for halved in range((visits - 1).bit_length() + 1)})

    def lengths(self) -> list[int]:
        """Return the interval lengths to simulate, in layers: all, up to ``ALL_LENGTHS``.

        In a longer step, they are the whole, half of it and so on, with both neighbours of each.
        They depend on the step alone: a faster machine gets no fewer.
        """
        visits = len(self.profile.visits)
        if visits <= ALL_LENGTHS:
            return [*range(1, visits + 1)]
        near = {layers + more for layers in self._halvings() for more in (-1, 0, 1)}
        return sorted(near.intersection(range(1, visits + 1)))

    def lengths_left(self, fast_bytes: int, step_ns: int, bytes_per_s: float) -> list[int]:
        """Return the interval lengths to try in a program's own steps, in layers.

        They are few, as each takes a step: of the whole, half of it and so on, those that equations
        1 and 2 leave, with the whole step; or all if they leave none. A step takes ``step_ns`` in
        fast memory.
        """
        visits, known = len(self.profile.visits), self._halvings()
        free_bytes = fast_bytes - max(self.pool_bytes)
        left = [
            layers
            for layers in known
            if self.data_bytes(layers) < free_bytes
            and step_ns * layers * bytes_per_s > free_bytes * visits * 10**9
        ]
        return sorted({*left, visits}) if left else known


def lower_bound_bytes(profile: StepProfile) -> int:
    """Return the least fast memory, in bytes.

    It holds the peak of short-lived tensors and the largest of the others that are accessed.
    """
    return Planner(profile, Settings()).lower_bound_bytes()


def planned(
    profile: StepProfile,
    machine: Machine,
    settings: Settings = Settings(),
    *,
    lengths: Iterable[int] | None = None,
    timeline: Timeline | None = None,
) -> Planned:
    """Return the best schedule for a step on a machine with memories ``fast`` and ``slow``.

    Raises :class:`BelowBoundError` for a pool in less fast memory than the lower bound.

    Parameters
    ----------
    lengths: layers in an interval to try, instead of :meth:`Planner.lengths`.
    timeline: records the steps under the best schedule.
    """
    capacity = int(machine.memory(FAST).capacity_bytes.value)
    full = Planner(profile, Settings())
    least = full.lower_bound_bytes()
    if settings.reserve and capacity < least:
        raise BelowBoundError(
            f"fast memory of {capacity} bytes is too small for {profile.step.name}: its "
            f"short-lived tensors and the largest other one take {least}; give it at least that "
            "many, or plan without a pool"
        )
    planner, visits = Planner(profile, settings), len(profile.visits)
    lengths = full.lengths() if lengths is None else [*lengths]
    check_integer("the number of lengths to try", len(lengths))

    def attempt(
        schedule: MigrationSchedule,
        trial: int | None = None,
        timeline: Timeline | None = None,
        steps: int = 3,
    ) -> Placed:
        make = partial(Sentinel, schedule=schedule, trial=trial)
        return run(machine, profile.step, make, timeline=timeline, steps=steps)

    def scheduled(layers: int) -> MigrationSchedule:
        return planner.schedule(layers, frozenset(range(visits)))

    tried: dict[int, int] = {}
    for length in lengths:
        layers = check_integer("layers in an interval", length, 1, visits)
        tried[layers] = attempt(scheduled(layers), steps=2).step_ns if len(lengths) > 1 else 0
    best: tuple[MigrationSchedule, Placed] | None = None
    for layers, second_ns in sorted(tried.items(), key=lambda trial: trial[1]):
        if best is not None and second_ns >= _longer_ns(best[1]):
            break
        schedule = scheduled(layers)
        outcome = attempt(schedule)
        tried[layers] = _longer_ns(outcome)
        if best is None or tried[layers] < _longer_ns(best[1]):
            best = schedule, outcome
    assert best is not None
    schedule, outcome = best
    tested: list[int] = []
    while settings.trial and len(tested) < TRIALS:
        late = [interval for interval in _policy(outcome).cases[-1][2] if interval not in tested]
        if not late:
            break
        tested.append(late[0])
        if attempt(schedule, late[0]).step_ns < outcome.step_ns:
            other = replace(schedule, waits=schedule.waits ^ {late[0]})
            result = attempt(other)
            if _longer_ns(result) < _longer_ns(outcome):
                schedule, outcome = other, result
    if timeline is not None:
        outcome = attempt(schedule, timeline=timeline)
    return Planned(
        schedule=schedule,
        outcome=outcome,
        lower_bound_bytes=least,
        tried=tried,
    )
