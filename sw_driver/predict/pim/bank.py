"""Bank at work: from tiles to loads, to rounds of its lanes, to stores."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from hw.pim.config import PimConfig
from hw.pim.work.layouts import BEAT_WORDS, INTERLEAVE, Second

from ..events import Condition, CycleClock, Process, Routine
from .form import Chunk, Tile, Tiles
from .port import Port
from .rounds import COPIES_READY, PRODUCTS_READY, ROUND_TO_RESULT, BankLanes, group_of
from .switch import Switch
from .walks import Image, Walk

__all__ = ["Bank", "Counts"]

_LOADS = 4
"""Loads in flight, at most."""
_JOBS_AHEAD = 4
_FRAMES = 4
_FRAME_RESULTS = 64

# Pipeline latencies, in cycles.
START_TO_TILE = 14
"""From a bank's start until it asks for a tile."""
TILE_TO_CHUNK = 17
"""From a tile to its first chunk, or to an elementwise tile's first load."""
CHUNK_TO_LOAD = 13
WALK_SETUP = 4
"""From the offer of a walk until it is taken."""
NEXT_WALK_SETUP = 5
"""From taking a walk until the next one may be taken."""
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
    """Progress of a bank on a work."""

    tiles: int
    products: int
    """Multiplied pairs of elements, or results of an elementwise work."""
    beats_read: int
    beats_written: int


class _Job(NamedTuple):
    """Job of the lanes on the contents of the two operand buffers."""

    needs: list[tuple[int, int]]
    """Loads that it waits for, by buffer and number."""
    releases: list[int]
    """Buffers that may be filled again after it."""
    tile: Tile
    chunk: Chunk
    second: int = 0
    """First of the job's second vectors, counted within the tile."""
    second_count: int = 1


class Bank:
    """Bank that does one work after the other.

    It calls ``ask(bank)`` for a tile of its ``tiles``, which arrives through :meth:`deliver`. It
    calls ``done(bank, cycle)`` when all its results of a work are in memory.
    """

    def __init__(
        self,
        clock: CycleClock,
        switch: Switch,
        config: PimConfig,
        number: int,
        *,
        ask: Callable[[Bank], None],
        done: Callable[[Bank, int], None],
    ) -> None:
        self.number = number
        multipliers, adders = config.placement.multipliers[number], config.placement.adders[number]
        self._both_units, self._adders = min(multipliers, adders), adders
        self._clock = clock
        self._changed = Condition(clock)
        self.port = Port(clock, switch, number, self._changed.notify)
        self._tiles_done = self._products = 0
        self._elements = next(size for size in (4, 2, 1) if size <= self._both_units)
        self._ask = ask
        self._done = done

    @property
    def counts(self) -> Counts:
        """Progress since the last start."""
        port = self.port
        return Counts(self._tiles_done, self._products, port.reads.beats, port.writes.beats)

    def add(self, more: Counts) -> None:
        """Add extrapolated progress to :attr:`counts`."""
        self._tiles_done += more.tiles
        self._products += more.products
        self.port.reads.beats += more.beats_read
        self.port.writes.beats += more.beats_written

    def start(self, tiles: Tiles, cycle: int) -> None:
        """Begin a work in ``cycle``."""
        self.tiles = tiles
        self._form = form = tiles.form
        only_adds = form.second_kind is Second.NONE and not form.elementwise
        self.lane_count = self._adders if only_adds else self._both_units
        """Lanes at work."""
        self.lanes = BankLanes(cycle)
        self.port.reset()
        self._tiles_done = self._products = 0
        self._free = [[0, 0] for _ in range(2)]
        """Cycles from which each buffer may take its loads, by load number."""
        self._loaded: list[list[int]] = [[] for _ in range(2)]
        self._ordered = [0] * 2
        self._open_loads: deque[tuple[int, list[int]]] = deque()
        self._load_taken: int | None = cycle
        self._walk_end: int | None = cycle
        self._last_walk = cycle - NEXT_WALK_SETUP
        self._dones = [cycle]
        """Cycle in which the work began, then those in which loads were done."""
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

    def deliver(self, cycle: int, tile: Tile | None) -> None:
        """Accept the requested tile in ``cycle``, or None when no tile is left."""
        self._given.append((cycle, tile))
        self._changed.notify()

    # From tiles to loads and jobs.

    def _sequence(self, cycle: int) -> Process:
        now = cycle + START_TO_TILE
        while True:
            yield now
            self._ask(self)
            while not self._given:
                yield self._changed
            now, tile = self._given.pop()
            if tile is None:
                break
            self._tiles_done += 1
            steps = self._elements_of if self._form.elementwise else self._chunks
            now = yield from steps(tile, now + TILE_TO_CHUNK)
        self._ended = True
        self._changed.notify()

    def _elements_of(self, tile: Tile, now: int) -> Routine[int]:
        needs: list[tuple[int, int]] = []
        for place, nest in enumerate(self._form.operands):
            count = tile.first_count if nest.vector else min(BEAT_WORDS, tile.first_count)
            walk = Walk(1, 0, count, nest.vector)
            now = yield from self._load(needs, place, walk, nest.at(tile, tile.first), now)
        job = _Job(needs, [*range(len(needs))], tile, Chunk(0, 0, tile.first_count, True))
        return (yield from self._queue(job, now))

    def _chunks(self, tile: Tile, now: int) -> Routine[int]:
        form, plan = self._form, self._form.plan
        lanes = self.lane_count
        shared = form.second_kind is Second.SHARED
        size = 1 << plan.block
        blocks = range(0, tile.second_count, size) if shared else range(1)
        for chunk in form.followed_chunks():
            now += CHUNK_TO_LOAD
            needs: list[tuple[int, int]] = []
            walk = self._walk(tile, chunk, 0, tile.first_count, lanes, tile.first)
            now = yield from self._load(needs, 0, *walk, now)
            for block in blocks:
                seconds = min(size, tile.second_count - block) if shared else 1
                if shared:
                    walk = self._walk(tile, chunk, 1, seconds, 8, tile.second + block)
                    now = yield from self._load(needs, 1, *walk, now)
                elif form.second_kind is Second.PRIVATE:
                    walk = self._walk(tile, chunk, 1, tile.first_count, lanes, tile.first)
                    now = yield from self._load(needs, 1, *walk, now)
                releases = [] if form.second_kind is Second.NONE else [1]
                if block == blocks[-1]:
                    releases.append(0)
                job = _Job(needs, releases, tile, chunk, block, seconds)
                now = yield from self._queue(job, now)
                needs = []
            if not plan.channels and chunk.tap + chunk.length < form.taps:
                rows = (chunk.tap % form.tap_columns + chunk.length) // form.tap_columns
                now += 1 + rows
        return now

    def _walk(
        self, tile: Tile, chunk: Chunk, place: int, vectors: int, group_size: int, first: int
    ) -> tuple[Walk, int]:
        """Return the walk over a chunk of an operand's vectors, and its address in elements.

        ``place`` is the operand's number; the vectors begin at number ``first``.
        """
        form, work = self._form, self._form.work
        nest = form.operands[place]
        row, column = divmod(chunk.tap, form.tap_columns)
        image = None
        if form.padded == place:
            image = Image(
                y=work.stride * tile.outer1 + work.dilation * row - work.pad_top,
                x=work.stride * first + work.dilation * column - work.pad_left,
                vector_x=work.stride,
                dilation=work.dilation,
                height=work.height,
                width=work.width,
            )
        walk = Walk(
            vectors=vectors,
            vector=nest.vector,
            length=chunk.length,
            column=nest.column,
            group_size=group_size,
            across=form.plan.across[place],
            row=nest.row,
            channel=nest.channel,
            tap_rows=form.tap_rows,
            tap_columns=form.tap_columns,
            tap=chunk.tap,
            image=image,
        )
        if place == 0 or form.second_kind is Second.PRIVATE:
            walk = self._in_lines(walk, tile, nest.outer1)
        return walk, nest.at(tile, first, channel=chunk.channel, row=row, column=column)

    def _load(
        self, needs: list[tuple[int, int]], place: int, walk: Walk, address: int, now: int
    ) -> Routine[int]:
        """Order a load, add it to ``needs`` and return the cycle in which the sequencer goes on."""
        number = self._ordered[place]
        self._ordered[place] += 1
        needs.append((place, number))
        free = self._free[place]
        while len(free) <= number or self._load_taken is None:
            yield self._changed
        now = max(now, free[number], self._load_taken)
        yield now
        self._load_taken = None
        self._clock.start(self._hand_load(place, walk, address, now + 1), now)
        return now + 1

    def _hand_load(self, place: int, walk: Walk, address: int, offered: int) -> Process:
        """Hand the loader a load that is offered from cycle ``offered`` on."""
        while self._walk_end is None or len(self._open_loads) == _LOADS:
            yield self._changed
        started = len(self._dones) - 1 + len(self._open_loads)
        if started >= _LOADS:
            offered = max(offered, self._dones[started - _LOADS + 1] + 1)
        taken = max(offered + WALK_SETUP, self._last_walk + NEXT_WALK_SETUP, self._walk_end)
        self._last_walk, self._walk_end = taken, None
        yield taken
        self._load_taken = taken
        self._changed.notify()
        answered: list[int] = []
        self._open_loads.append((place, answered))

        def begins(cycle: int) -> None:
            self._walk_end = cycle
            self._changed.notify()

        def done(cycle: int) -> None:
            answered.append(cycle)
            self._clock.at(cycle, self._account)

        self.port.append(self.port.reads, walk, address, taken, begins=begins, done=done)

    def _account(self, _: object) -> None:
        """Record the loads that are done, in their order."""
        while self._open_loads and self._open_loads[0][1]:
            place, (cycle,) = self._open_loads.popleft()
            self._dones.append(max(cycle, self._dones[-1]) + 1)
            self._loaded[place].append(self._dones[-1])
            self._changed.notify()

    def _queue(self, job: _Job, now: int) -> Routine[int]:
        """Queue a job for the lanes; return the cycle in which the sequencer goes on."""
        while len(self._jobs) == _JOBS_AHEAD:
            yield self._changed
            now = max(now, self._clock.now + 1)
        self._jobs.append((job, now + FIFO_CYCLES))
        self._changed.notify()
        return now + 1

    # The lanes.

    def _compute(self) -> Process:
        lanes, elementwise = self.lanes, self._form.elementwise
        while True:
            while not self._jobs and not self._ended:
                yield self._changed
            if not self._jobs:
                break
            job, cycle = self._jobs[0]
            for place, number in job.needs:
                while len(self._loaded[place]) <= number:
                    yield self._changed
                cycle = max(cycle, self._loaded[place][number] + ANSWER_TO_JOB - 1)
            cycle = max(cycle, lanes.product - 1)
            yield cycle
            self._jobs.popleft()
            lanes.begin(cycle)
            self._changed.notify()
            products = job.chunk.length * job.second_count
            if elementwise:
                yield from self._do_elements(job, cycle)
            else:
                yield from self._do_rounds(job)
                products *= job.tile.first_count
            self._products += products
            for place in job.releases:
                self._clock.at(lanes.product - 1 + RELEASE_CYCLES, self._release, place)
        while self._stores or self._stores_open or not self.port.writes_answered:
            yield self._changed
        rest = max(lanes.quiet + LANES_REST, self.port.last_write + 1)
        yield rest + REST_TO_DONE
        self._done(self, rest + REST_TO_DONE)

    def _release(self, place: int) -> None:
        self._free[place].append(self._clock.now)
        self._changed.notify()

    def _frame(self) -> Routine[int]:
        while not self._frames:
            yield self._changed
        return self._frames.popleft()

    def _do_elements(self, job: _Job, cycle: int) -> Routine[None]:
        tile, nest, size = job.tile, self._form.result, self._elements
        now = cycle + 1
        for first in range(0, tile.first_count, _FRAME_RESULTS):
            count = min(_FRAME_RESULTS, tile.first_count - first)
            frame = yield from self._frame()
            now = max(now, frame) + -(-count // size)
            walk = Walk(1, 0, count, nest.vector)
            self._store(now - 1 + ELEMENTS_TO_STORE, walk, nest.at(tile, tile.first + first))
        self.lanes.product = now

    def _do_rounds(self, job: _Job) -> Routine[None]:
        form, tile, chunk, nest = self._form, job.tile, job.chunk, self._form.result
        lanes = self.lane_count
        turns = 1
        while turns < -(-tile.first_count // lanes):
            turns *= 2
        together = INTERLEAVE // turns if form.second_kind is Second.SHARED else 1
        group = group_of(chunk.length, chunk.tap, form.taps, chunk.channel == 0)
        ready = COPIES_READY if form.second_kind is Second.NONE else PRODUCTS_READY
        for base in range(0, job.second_count, together):
            if not chunk.complete:
                self.lanes.group(group, ready, None)
                continue
            frame = yield from self._frame()
            begun = self.lanes.group(group, ready, frame)
            walk = Walk(
                vectors=tile.first_count,
                vector=nest.vector,
                length=min(together, job.second_count - base),
                column=nest.column,
                group_size=lanes,
                across=abs(nest.vector) == 1,
            )
            address = nest.at(tile, tile.first, column=tile.second + job.second + base)
            walk = self._in_lines(walk, tile, nest.outer1)
            self._store(begun + ROUND_TO_RESULT, walk, address)

    def _in_lines(self, walk: Walk, tile: Tile, step: int) -> Walk:
        """Return a walk over first vectors of ``tile``, with line ends if it crosses any."""
        line = self._form.line
        left = line - tile.first
        if walk.vectors <= left:
            return walk  # Equal walks anywhere in the line share a cached pattern.
        return walk._replace(line=line, line_left=left, line_step=step)

    # Stores.

    def _store(self, cycle: int, walk: Walk, address: int) -> None:
        self._stores.append((cycle, walk, address))
        self._stores_open += 1
        self._hand_stores()

    def _hand_stores(self) -> None:
        """Hand stores to the storer, one after the other."""
        while self._stores and self._store_end is not None:
            cycle, walk, address = self._stores.popleft()
            taken = max(
                max(cycle, self._last_offer) + WALK_SETUP,
                self._last_store + NEXT_WALK_SETUP,
                self._store_end,
            )
            self._last_store, self._store_end = taken, None
            self._last_offer = taken + NEXT_STORE
            self.port.append(
                self.port.writes,
                walk,
                address,
                taken,
                begins=self._store_begins,
                done=self._stored,
            )

    def _store_begins(self, cycle: int) -> None:
        self._store_end = cycle
        self._hand_stores()

    def _stored(self, cycle: int) -> None:
        self._frames.append(cycle + FRAME_CYCLES)
        self._stores_open -= 1
        self._changed.notify()
