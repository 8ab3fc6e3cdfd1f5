"""A bank at work: from tiles to loads, to rounds of its lanes, to stores."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from hw.pim.work.layouts import BEAT_WORDS, INTERLEAVE, Second

from ..events import Clock, Condition, Process, Step
from .form import Form, Nest
from .port import RESULT_CYCLES, WALK_TO_SEGMENT, Port, Transfer
from .rounds import COPIES_READY, PRODUCTS_READY, ROUND_TO_RESULT, Lanes, group_of
from .switch import Switch
from .walks import Image, Walk, pattern_of

__all__ = ["Bank", "Counts", "Tile", "lanes_of"]

_HALVES = 2
_LOADS = 4
"""Loads that are under way at once."""
_JOBS_AHEAD = 4
_FRAMES = 4
_FRAME_RESULTS = 64

# Pipeline latencies, in cycles.
START_TO_TILE = 14
"""From a bank's start until it asks for a tile."""
TILE_TO_CHUNK = 20
"""From a tile to its first chunk, or to an elementwise tile's first load."""
CHUNK_TO_LOAD = 13
WALK_SETUP = 4
"""From the offer of a walk until it is taken."""
NEXT_WALK_SETUP = 5
"""From the taking of a walk to that of the next one."""
ANSWER_TO_JOB = 3
"""From the last answer of a load until the job that needs it begins."""
FIFO_CYCLES = 2
RELEASE_CYCLES = 11
"""From the last read of a buffer until it may be filled."""
ELEMENTS_TO_STORE = 16
"""From the last elements of a frame until its store is offered."""
NEXT_STORE = 4
FRAME_CYCLES = 2
LANES_REST = 17
"""From the end of all rounds until the lanes are at rest."""
REST_TO_DONE = 3


class Counts(NamedTuple):
    """What a bank has done for a work."""

    tiles: int
    products: int
    """Of pairs of elements; elementwise, results."""
    beats_read: int
    beats_written: int


class Tile(NamedTuple):
    """A part of a work for one bank."""

    outer1: int
    outer2: int
    first: int
    first_count: int
    second: int
    second_count: int


@dataclass
class _Job:
    """What the lanes do with what is in the buffers."""

    needs: list[tuple[str, int]]
    """Loads by buffer and number."""
    releases: list[str]
    tile: Tile
    length: int
    tap: int = 0
    channel: int = 0
    complete: bool = True
    second: int = 0
    second_count: int = 1


def lanes_of(form: Form, multipliers: int, adders: int) -> int:
    """Lanes at work."""
    return (
        adders
        if form.second_kind is Second.NONE and not form.elementwise
        else min(multipliers, adders)
    )


class Bank:
    """A bank, which does one work after the other.

    ``tiles(bank, cycle, deliver)`` asks for a tile in ``cycle``; ``deliver`` is called with it, or
    with None at the end. ``done(bank, cycle)``: all of a work is in memory.
    """

    def __init__(
        self,
        clock: Clock,
        switch: Switch,
        number: int,
        *,
        multipliers: int,
        adders: int,
        tiles: Callable[[Bank, int, Callable[[int, Tile | None], None]], None],
        done: Callable[[Bank, int], None],
    ) -> None:
        self.number = number
        self.multipliers = multipliers
        self.adders = adders
        self.lanes = Lanes()
        self.port = Port(clock, switch, number, self._notify)
        self._tiles_done = self._products = 0
        self._elements = next(size for size in (4, 2, 1) if size <= min(multipliers, adders))
        self._clock = clock
        self._tiles = tiles
        self._done = done
        self._form: Form
        self._changed = Condition(clock)

    @property
    def counts(self) -> Counts:
        """Since the last start."""
        port = self.port
        return Counts(self._tiles_done, self._products, port.reads.beats, port.writes.beats)

    def add(self, more: Counts) -> None:
        """Adds to :attr:`counts`."""
        self._tiles_done += more.tiles
        self._products += more.products
        self.port.reads.beats += more.beats_read
        self.port.writes.beats += more.beats_written

    def start(self, form: Form, cycle: int) -> None:
        """Begins a work in ``cycle``."""
        self._form = form
        self.lanes.reset(cycle)
        self.port.reset()
        self._tiles_done = self._products = 0
        self._free = {name: [0, 0] for name in ("first", "second", "third")}
        self._ordered = dict.fromkeys(self._free, 0)
        self._loaded: dict[str, list[int]] = {name: [] for name in self._free}
        self._open_loads: deque[tuple[str, list[int]]] = deque()
        self._load_taken: int | None = cycle
        self._walks = 0
        self._walk_end: int | None = cycle
        self._last_walk = cycle - NEXT_WALK_SETUP
        self._last_done = cycle
        self._dones: list[int] = []
        self._jobs: deque[tuple[_Job, int]] = deque()
        self._ended = False
        self._frames: deque[int] = deque([cycle] * _FRAMES)
        self._store_end: int | None = cycle
        self._last_store = self._last_offer = cycle - NEXT_WALK_SETUP
        self._stores_open = 0
        self._stores: deque[tuple[int, Walk, int]] = deque()
        self._given: list[tuple[int, Tile | None]] = []
        self._clock.start(self._sequence(cycle), cycle)
        self._clock.start(self._compute(), cycle)

    # From tiles to loads and jobs.

    def _sequence(self, cycle: int) -> Process:
        form = self._form
        now = cycle + START_TO_TILE
        while True:
            yield now
            self._tiles(self, now, self._deliver)
            while not self._given:
                yield self._changed
            now, tile = self._given.pop()
            if tile is None:
                break
            self._tiles_done += 1
            now += TILE_TO_CHUNK
            if form.elementwise:
                now = yield from self._elements_of(tile, now)
            else:
                now = yield from self._chunks(tile, now)
        self._ended = True
        self._notify()

    def _deliver(self, cycle: int, tile: Tile | None) -> None:
        self._given.append((cycle, tile))
        self._notify()

    def _elements_of(self, tile: Tile, now: int) -> Step[int]:
        form = self._form
        needs = []
        for name, nest in zip(("first", "second", "third"), form.operands, strict=False):
            count = tile.first_count if nest.vector else min(BEAT_WORDS, tile.first_count)
            walk = Walk(1, 0, count, nest.vector)
            address = nest.address + tile.outer1 * nest.outer1 + tile.first * nest.vector
            number, now = yield from self._load(name, walk, address, now)
            needs.append((name, number))
        now += 3 - len(needs)
        job = _Job(needs, [name for name, _ in needs], tile, tile.first_count)
        now = yield from self._queue(job, now)
        return now

    def _chunks(self, tile: Tile, now: int) -> Step[int]:
        form, plan = self._form, self._form.plan
        lanes = lanes_of(form, self.multipliers, self.adders)
        for channel, tap, length, complete in form.followed_chunks():
            now += CHUNK_TO_LOAD
            walk = partial(self._walk, tile, channel, tap, length)
            needs: list[tuple[str, int]] = []
            number, now = yield from self._load(
                "first", *walk(0, tile.first_count, lanes, tile.first), now
            )
            needs.append(("first", number))
            if form.second_kind is Second.SHARED:
                blocks = list(range(0, tile.second_count, 1 << plan.block))
            else:
                blocks = [0]
            for block in blocks:
                seconds = min(1 << plan.block, tile.second_count - block)
                if form.second_kind is Second.SHARED:
                    job_walk = walk(1, seconds, 8, tile.second + block)
                    number, now = yield from self._load("second", *job_walk, now)
                    needs.append(("second", number))
                elif form.second_kind is Second.PRIVATE:
                    job_walk = walk(1, tile.first_count, lanes, tile.first)
                    number, now = yield from self._load("second", *job_walk, now)
                    needs.append(("second", number))
                releases = [name for name, _ in needs if name != "first"]
                if block == blocks[-1]:
                    releases.append("first")
                job = _Job(
                    needs,
                    releases,
                    tile,
                    length,
                    tap,
                    channel,
                    complete,
                    block,
                    seconds if form.second_kind is Second.SHARED else 1,
                )
                now = yield from self._queue(job, now)
                needs = []
            if not plan.channels and tap + length < form.taps:
                now += 1 + (tap % form.tap_columns + length) // form.tap_columns
        return now

    def _walk(
        self,
        tile: Tile,
        channel: int,
        tap: int,
        length: int,
        place: int,
        vectors: int,
        group_size: int,
        first: int,
    ) -> tuple[Walk, int]:
        """The walk over ``length`` elements, from ``tap`` of ``channel`` on, of the vectors of
        operand ``place`` from number ``first`` on; and its address."""
        form = self._form
        nest: Nest = form.operands[place]
        u, v = divmod(tap, form.tap_columns)
        address = (
            nest.address
            + tile.outer1 * nest.outer1
            + tile.outer2 * nest.outer2
            + first * nest.vector
            + channel * nest.channel
            + u * nest.row
            + v * nest.column
        )
        image = None
        if form.padded == place:
            image = Image(
                y=form.stride * tile.outer1 + form.dilation * u - form.pad_top,
                x=form.stride * first + form.dilation * v - form.pad_left,
                vector_x=form.stride,
                dilation=form.dilation,
                height=form.height,
                width=form.width,
            )
        walk = Walk(
            vectors=vectors,
            vector=nest.vector,
            length=length,
            column=nest.column,
            group_size=group_size,
            across=form.across[place],
            row=nest.row,
            channel=nest.channel,
            tap_rows=form.tap_rows,
            tap_columns=form.tap_columns,
            tap=tap,
            image=image,
        )
        if place == 0 or form.second_kind is Second.PRIVATE:
            walk = self._in_lines(walk, tile, nest.outer1)
        return walk, address

    def _load(self, name: str, walk: Walk, address: int, now: int) -> Step[tuple[int, int]]:
        """Orders a load; returns its number, and when the sequencer goes on."""
        number = self._ordered[name]
        self._ordered[name] += 1
        free = self._free[name]
        while len(free) <= number or self._load_taken is None:
            yield self._changed
        now = max(now, free[number], self._load_taken)
        yield now
        self._load_taken = None
        self._clock.start(self._hand_load(name, walk, address, now + 1), now)
        return number, now + 1

    def _hand_load(self, name: str, walk: Walk, address: int, offered: int) -> Process:
        """Hands a load to the loader, to which it is offered from cycle ``offered`` on."""
        while self._walk_end is None or len(self._open_loads) == _LOADS:
            yield self._changed
        if self._walks >= _LOADS:
            offered = max(offered, self._dones[self._walks - _LOADS] + 1)
        taken = max(offered + WALK_SETUP, self._last_walk + NEXT_WALK_SETUP, self._walk_end)
        self._walks += 1
        self._last_walk, self._walk_end = taken, None
        yield taken
        self._load_taken = taken
        self._notify()
        pattern, stretch = pattern_of(walk, address)
        entry = (name, [])
        self._open_loads.append(entry)

        def begins(cycle: int) -> None:
            self._walk_end = cycle
            self._notify()

        def done(cycle: int) -> None:
            entry[1].append(cycle)
            self._clock.at(cycle, self._account)

        transfer = Transfer(pattern, stretch, taken + WALK_TO_SEGMENT, begins=begins, done=done)
        self.port.append(self.port.reads, transfer)

    def _account(self, _: object) -> None:
        """Takes note of loads that are done, in their order."""
        while self._open_loads and self._open_loads[0][1]:
            name, (cycle,) = self._open_loads.popleft()
            self._last_done = max(cycle + 1, self._last_done + 1)
            self._loaded[name].append(self._last_done)
            self._dones.append(self._last_done)
            self._notify()

    def _queue(self, job: _Job, now: int) -> Step[int]:
        """Hands a job on; returns when the sequencer goes on."""
        while len(self._jobs) == _JOBS_AHEAD:
            yield self._changed
            now = max(now, self._clock.now + 1)
        self._jobs.append((job, now + FIFO_CYCLES))
        self._notify()
        return now + 1

    # The lanes.

    def _compute(self) -> Process:
        lanes = self.lanes
        while True:
            while not self._jobs and not self._ended:
                yield self._changed
            if not self._jobs:
                break
            job, cycle = self._jobs[0]
            for name, number in job.needs:
                while len(self._loaded[name]) <= number:
                    yield self._changed
                cycle = max(cycle, self._loaded[name][number] + ANSWER_TO_JOB - 1)
            cycle = max(cycle, lanes.product - 1)
            yield cycle
            self._jobs.popleft()
            lanes.begin(cycle)
            self._notify()
            if self._form.elementwise:
                yield from self._do_elements(job, cycle)
            else:
                yield from self._do_rounds(job)
            self._products += (
                job.length
                * job.second_count
                * (1 if self._form.elementwise else job.tile.first_count)
            )
            released = lanes.product - 1 + RELEASE_CYCLES
            for name in job.releases:
                self._clock.at(released, self._release, name)
        while self._stores or self._stores_open or not self.port.writes_answered:
            yield self._changed
        rest = max(lanes.quiet + LANES_REST, self.port.last_write + 1)
        yield rest + REST_TO_DONE
        self._done(self, rest + REST_TO_DONE)

    def _notify(self) -> None:
        self._changed.notify()

    def _release(self, name: str) -> None:
        self._free[name].append(self._clock.now)
        self._notify()

    def _frame(self) -> Step[int]:
        while not self._frames:
            yield self._changed
        return self._frames.popleft()

    def _do_elements(self, job: _Job, cycle: int) -> Step[None]:
        form, tile, size = self._form, job.tile, self._elements
        now = cycle + 1
        for first in range(0, job.length, _FRAME_RESULTS):
            count = min(_FRAME_RESULTS, job.length - first)
            frame = yield from self._frame()
            now = max(now, frame) + -(-count // size)
            nest = form.result
            address = nest.address + tile.outer1 * nest.outer1 + (tile.first + first) * nest.vector
            walk = Walk(1, 0, count, nest.vector)
            self._store(now - 1 + ELEMENTS_TO_STORE, walk, address)
        self.lanes.product = now

    def _do_rounds(self, job: _Job) -> Step[None]:
        form, tile = self._form, job.tile
        lanes = lanes_of(form, self.multipliers, self.adders)
        turns = 1
        while turns < -(-tile.first_count // lanes):
            turns *= 2
        together = INTERLEAVE // turns if form.second_kind is Second.SHARED else 1
        group = group_of(job.length, job.tap, form.taps, job.channel == 0)
        ready = COPIES_READY if form.second_kind is Second.NONE else PRODUCTS_READY
        for base in range(0, job.second_count, together):
            if not job.complete:
                self.lanes.group(group, ready, None)
                continue
            frame = yield from self._frame()
            begun = self.lanes.group(group, ready, frame)
            seconds = min(together, job.second_count - base)
            nest = form.result
            address = (
                nest.address
                + tile.outer1 * nest.outer1
                + tile.outer2 * nest.outer2
                + tile.first * nest.vector
                + (tile.second + job.second + base) * nest.column
            )
            walk = Walk(
                vectors=tile.first_count,
                vector=nest.vector,
                length=seconds,
                column=nest.column,
                group_size=lanes,
                across=abs(nest.vector) == 1,
            )
            walk = self._in_lines(walk, tile, nest.outer1)
            self._store(begun + ROUND_TO_RESULT, walk, address)

    def _in_lines(self, walk: Walk, tile: Tile, step: int) -> Walk:
        """``walk`` over first vectors of ``tile``, from its beginning on."""
        line = self._form.line
        left = line - tile.first
        if walk.vectors <= left:
            return walk  # Alike wherever in the line it is, so its pattern is known.
        return walk._replace(line=line, line_left=left, line_step=step)

    # Stores.

    def _store(self, cycle: int, walk: Walk, address: int) -> None:
        self._stores.append((cycle, walk, address))
        self._stores_open += 1
        self._hand_stores()

    def _hand_stores(self) -> None:
        """Hands stores to the storer, one after the other."""
        while self._stores and self._store_end is not None:
            cycle, walk, address = self._stores.popleft()
            taken = max(
                max(cycle, self._last_offer) + WALK_SETUP,
                self._last_store + NEXT_WALK_SETUP,
                self._store_end,
            )
            self._last_store, self._store_end = taken, None
            self._last_offer = taken + NEXT_STORE
            pattern, stretch = pattern_of(walk, address)
            first = taken + WALK_TO_SEGMENT + RESULT_CYCLES
            transfer = Transfer(
                pattern, stretch, first, begins=self._store_begins, done=self._stored
            )
            self.port.append(self.port.writes, transfer)

    def _store_begins(self, cycle: int) -> None:
        self._store_end = cycle
        self._hand_stores()

    def _stored(self, cycle: int) -> None:
        self._frames.append(cycle + FRAME_CYCLES)
        self._stores_open -= 1
        self._notify()
