"""The PIM's rings of descriptors: turns, what is written of works, counts that wrap around."""

from __future__ import annotations

import numpy as np

from golden.pim import Cause, Pool, Rings

SLOT, PLACE = 256, 192


def make(count: int = 2) -> tuple[Pool, Rings]:
    """Rings of four slots, 4 KiB apart."""
    pool = Pool(multipliers=[2], adders=[2], bank_bytes=1 << 15)
    rings = Rings(count, pool)
    for number, ring in enumerate(rings.rings):
        ring.base, ring.size = 16 * number, 2
    return pool, rings


def put(pool: Pool, rings: Rings, number: int, value: int) -> None:
    """Puts a descriptor of bytes ``value`` into a ring."""
    ring = rings.rings[number]
    place = 4096 * number + SLOT * (ring.head % 4)
    pool.write(place, np.full(192, value, np.uint8))
    ring.head = (ring.head + 1) % 65536


def completion(pool: Pool, number: int, slot: int) -> list[int]:
    words = pool.read(4096 * number + SLOT * slot + PLACE, 12).view("<u4")
    return [words[0] & 0xFFFF, words[0] >> 16, words[1], words[2]]


def test_rings_take_turns() -> None:
    pool, rings = make(3)
    assert rings.fetch() is None
    for value in (1, 2, 3):
        put(pool, rings, 0, value)
    put(pool, rings, 2, 7)
    put(pool, rings, 2, 8)
    seen = []
    while (raw := rings.fetch()) is not None:
        assert raw == raw[:1] * 192
        seen.append(raw[0])
        rings.accept(8 + len(seen))
    assert seen == [7, 1, 8, 2, 3]
    assert [ring.tail for ring in rings.rings] == [3, 0, 2]


def test_completions_come_in_the_order_in_which_works_end() -> None:
    pool, rings = make()
    for value in (1, 2, 3):
        put(pool, rings, 1, value)
    for work in (9, 10):
        rings.fetch()
        rings.accept(work)
    rings.fetch()
    tell = rings.refuse(Cause.OVERLAP)
    ring = rings.rings[1]
    assert (ring.tail, ring.cause, ring.id) == (3, Cause.OVERLAP, 10)
    assert (ring.completions, ring.pending) == (0, False)
    rings.complete(10)
    assert (ring.completions, ring.pending) == (1, True)
    assert ring.completed_id == 10
    tell()
    assert ring.completed_id == 0
    rings.complete(9)
    assert ring.completed_id == 9
    found = [completion(pool, 1, slot) for slot in range(3)]
    assert found == [[1, 1, 10, 0], [2, 2, 0, 6], [3, 0, 9, 0]]
    assert rings.rings[0].completions == 0


def test_counts_wrap_around() -> None:
    pool, rings = make()
    ring = rings.rings[0]
    ring.head = ring.tail = ring.completions = 65534
    for turn in range(5):
        put(pool, rings, 0, turn)
        raw = rings.fetch()
        assert raw is not None
        assert raw[0] == turn
        rings.accept(8 + turn)
        rings.complete(8 + turn)
        number, descriptor = (65535 + turn) % 65536, (65534 + turn) % 65536
        assert completion(pool, 0, (65534 + turn) % 4) == [number, descriptor, 8 + turn, 0]
    assert rings.fetch() is None


def test_bits_of_the_base_below_the_length_do_not_count() -> None:
    _, rings = make()
    ring = rings.rings[1]
    ring.base += 3
    assert ring.region == range(4096, 4096 + 4 * SLOT)
