"""Cycles of a pass of a layer on some banks of the pools, by a formula.

A bank does tiles one after the other. It loads the next tile's vectors while lanes work, one beat
of memory after the other. Changes between the vaults take time, and more if more banks change. The
tiles are those of the plan that the driver makes.

Errors against the cycle model are (``python -m hw_tests.driver.pim.pass_costs``):

- products of VGG-19 at full size: 8 % at most; its largest bias gradient: 32 %;
- passes of 2 and 8 million products on all banks: 12 and 15 % in the mean, 42 % at most;
- the same on 4 of the banks: 5 %.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from math import ceil, prod

from hw.pim.config import PimConfig
from hw.pim.work.layouts import Second
from sw_driver.predict.pim.form import Form, form_of

from .descriptor import Work
from .layers import Layer
from .lowering import lower
from .planning import planned

__all__ = ["STACK_BYTES", "pass_cycles", "work_cycles"]

_BEAT, _STRETCH = 8, 128
"""Elements of a beat, and of a stretch in one vault."""
_TURN = 8
"""Cycles of a lane's turn, in which it works on as many sums."""
_DEAL_CYCLES = 4
"""Cycles between two tiles that are dealt."""
_OFFER_CYCLES = 116
"""Cycles between two works whose descriptors are in the ring."""
_FEW_TILES = 8
"""Tiles of a bank below which only whole rounds of tiles count."""
STACK_BYTES = 1 << 30
"""Bytes of a bank, enough for every layer."""


# Fitted to the cycle model on other shapes than the compared ones; all in cycles.
_START = 187
"""Cycles from a work's start to its first load, and from its last store to its end."""
_BEAT_CYCLES, _BEAT_MORE = 0.73, 1.12
"""Cycles of a beat for a bank alone, and further ones if all banks load."""
_ROW_CYCLES, _ROW_MORE = 0.28, 2.14
"""Cycles of a row of adjacent elements, and further ones if all banks load."""
_CHANGE_MORE = 0.13
"""Further cycles of a change to another vault if all banks load."""
_CHUNK_CYCLES, _TILE_CYCLES = 65, 26
_POWER = 4
"""Exponent of the mean of loads and lanes' work: a larger one hides more."""
_TAIL = 0.22
"""Tiles for which banks wait for each other at the end."""


@lru_cache(maxsize=1 << 14)
def pass_cycles(layer: Layer, pass_name: str, config: PimConfig, banks: int) -> int:
    """Return the cycles from the start of a pass's first work to the end of its last.

    Works run side by side, each on its own units.
    """
    works = lower(layer, pass_name, replace(config, bank_bytes=STACK_BYTES)).works
    cycles = 0.0
    for work in works:
        own = max(1, round(banks * work.units / config.units))
        cycles += work_cycles(work, config, own, banks / config.banks) * own / banks
    return ceil(cycles + _OFFER_CYCLES * (len(works) - 1))


def work_cycles(work: Work, config: PimConfig, banks: int, share: float) -> float:
    """Return the cycles of a work on ``banks``; works load on a ``share`` of all banks."""
    if banks < config.banks:
        work = replace(work, banks=(1 << banks) - 1, units=sum(config.placement.units[:banks]))
    form = form_of(planned(work, config))
    outer1, outer2, first, _ = form.extents
    if form.elementwise:
        tiles = outer1 * ceil(first / (1 << form.plan.chunk))
        beats = outer1 * first * (len(form.operands) + 1) / _BEAT / tiles
        tile = beats * (_BEAT_CYCLES + _BEAT_MORE * share) + _TILE_CYCLES
        return _START + max(tile * max(1, tiles / banks), _DEAL_CYCLES * tiles)
    placement = config.placement
    lanes_of = list(map(min, placement.multipliers, placement.adders))
    if form.second_kind is Second.NONE:
        lanes_of = list(placement.adders)
    speed = tile = first_load = last = 0.0
    for lanes in sorted(set(lanes_of)):
        these = lanes_of.count(lanes) / config.banks
        tiles = list(_tiles(form, lanes))
        costs = [_tile_cycles(form, lanes, a, b, share) for _, a, b in tiles]
        count = sum(number for number, *_ in tiles)
        cycles = sum(number * cost for (number, *_), (cost, *_) in zip(tiles, costs, strict=True))
        speed += these * banks / cycles
        tile += these * cycles / count
        # Lanes are idle during the first chunk's load, loads during the last chunk's work.
        first_load += these * max(load for _, load, _ in costs) / form.chunks
        spared = max(cost - lane_cycles for cost, _, lane_cycles in costs) / form.chunks
        last += these * spared
    rounds = outer1 * outer2 / speed / tile
    rounds = max(1, ceil(rounds - _TAIL)) if rounds < _FEW_TILES else rounds + _TAIL
    return _START + first_load + rounds * tile - last


def _tiles(form: Form, lanes: int) -> Iterator[tuple[int, int, int]]:
    """Yield the tiles of a plane for banks of ``lanes`` lanes: number, first and second vectors."""
    first, second = form.extents[2:]
    depth, seconds = 1 << form.plan.depth, 1 << form.plan.seconds
    whole, rest = divmod(first, lanes * depth)
    parts = [(whole, lanes * depth)]
    while rest:
        if seconds >= _TURN:
            depth = min(depth, 1 << ceil(rest / lanes).bit_length() - 1)
        parts.append((1, min(rest, lanes * depth)))
        rest -= parts[-1][1]
    for count, vectors in parts:
        for number, columns in ((second // seconds, seconds), (1, second % seconds)):
            if count * number * columns:
                yield count * number, vectors, columns


def _tile_cycles(
    form: Form, lanes: int, first: int, second: int, share: float
) -> tuple[float, float, float]:
    """Return the cycles of a tile, of its loads alone, and of its lanes."""
    vectors = 1 << (ceil(first / lanes) - 1).bit_length()
    lane_cycles = form.channels * form.taps * _TURN * ceil(vectors * second / _TURN)
    moves = [_load(form, 0, first, lanes)]
    if form.second_kind is not Second.NONE:
        shared = form.second_kind is Second.SHARED
        moves.append(_load(form, 1, *((second, _TURN) if shared else (first, lanes))))

    def cycles(moves: Sequence[tuple[float, float, float]]) -> float:
        beats, rows, changes = map(sum, zip(*moves, strict=True))
        beats *= _BEAT_CYCLES + _BEAT_MORE * share
        return beats + rows * (_ROW_CYCLES + _ROW_MORE * share) + changes * _CHANGE_MORE * share

    moved = (
        cycles([*moves, _store(form, first, second, vectors, lanes)]) + _CHUNK_CYCLES * form.chunks
    )
    tile = (lane_cycles**_POWER + moved**_POWER) ** (1 / _POWER)
    return tile + _TILE_CYCLES, cycles(moves), lane_cycles


def _load(form: Form, place: int, vectors: int, lanes: int) -> tuple[float, float, float]:
    """Return the beats, rows and changes of vault of a tile's loads of an operand."""
    nest, plan = form.operands[place], form.plan
    image = form.padded == place
    loops = [
        (form.tap_columns, nest.column),
        (form.tap_rows, nest.row),
        (form.channels, nest.channel),
    ]
    if plan.across[place]:
        run = min(_BEAT, lanes, vectors, form.line if place == 0 else vectors)
        loops = [(run, nest.vector), (ceil(vectors / run), run * nest.vector), *loops]
        single = image and form.work.stride > 1
    else:
        while not image and len(loops) > 1 and loops[1][1] == loops[0][0] * loops[0][1]:
            loops[:2] = [(loops[0][0] * loops[1][0], loops[0][1])]
        length = min(1 << plan.chunk, loops[0][0])
        loops[:1] = [(length, loops[0][1]), (loops[0][0] // length, length * loops[0][1])]
        loops.append((vectors, nest.vector))
        single = image and form.work.dilation > 1
    run, step = loops[0]
    elements = prod(count for count, _ in loops)
    whole = not image and not any(stride % _BEAT for _, stride in loops[1:])
    beats = elements / run * _beats(run, 2 if single else step, whole)
    changes, extent, outer = 1.0, 0, elements
    for count, stride in loops:
        outer //= count
        changes += outer * (count - 1) * min(1, abs(stride - extent) / _STRETCH)
        extent += (count - 1) * stride
    return beats, elements / run, changes


def _store(
    form: Form, first: int, second: int, vectors: int, lanes: int
) -> tuple[float, float, float]:
    """Return the beats, rows and changes of vault of storing a tile's results."""
    nest, columns = form.result, second if form.second_kind is Second.SHARED else 1
    if abs(nest.vector) == 1:
        run, step, change = min(_BEAT, lanes, first), 1, nest.column
    else:
        run = max(1, min(columns, _TURN // vectors))
        step, change = nest.column, nest.vector
    runs = first * columns / run
    return runs * _beats(run, step), runs, runs * min(1, abs(change) / _STRETCH)


def _beats(run: int, step: int, whole: bool = False) -> float:
    """Return the beats of ``run`` elements.

    It is the mean over all first elements; if ``whole``, the first element starts a beat.
    """
    if abs(step) > 1:
        return run
    return ceil(run / _BEAT) if whole or not step else (run - 1) / _BEAT + 1
