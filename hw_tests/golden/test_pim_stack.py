"""The PIM's address space: local and striped memory, against a table made byte by byte."""

from __future__ import annotations

import pytest

from golden.pim import StackMap
from hw.pim.config import PIM_PRESETS, configure
from sw_driver.pim.descriptor import banks_of


def table(banks: int, bank_bytes: int) -> dict[int, tuple[int, int]]:
    """Bank and byte of its vault of every 512th byte, by address: first all local memory, then
    a stripe of each bank in turn."""
    power = max(each for each in (1, 2, 4, 8, 16, 32) if each <= banks)
    places = {
        bank * bank_bytes + byte: (bank, byte)
        for bank in range(banks)
        for byte in range(0, bank_bytes, 512)
    }
    address = bank_bytes * (banks if power == banks else 2 * power)
    for byte in range(bank_bytes, 2 * bank_bytes, 512):
        for bank in range(power):
            places[address] = bank, byte
            address += 512
    return places


@pytest.mark.parametrize("banks", [1, 2, 3, 6, 8])
def test_every_byte_has_its_place(banks: int) -> None:
    stack = StackMap(banks=banks, bank_bytes=4096)
    config = configure("tiny", rows=1, columns=banks, total=16, bank_bytes=4096)
    places = table(banks, 4096)
    assert len(set(places.values())) == len(places)
    for address in range(0, 40 * 4096, 512):
        place = places.get(address)
        if place is None:
            with pytest.raises(ValueError, match="no bank holds"):
                stack.decode(address)
        else:
            assert stack.decode(address) == place
            assert stack.decode(address + 511) == (place[0], place[1] + 511)
        for span in (range(address, address + 512), range(address, address + 1024)):
            held = [places.get(each // 512 * 512) for each in (span[0], span[-1])]
            assert config.holds(span.start, len(span)) == all(held)
            joint = address < stack.local.stop <= span[-1]
            assert stack.holds(span) == (all(held) and not joint)
    assert config.stack_bytes == max(places) + 512 == stack.striped.stop
    assert config.striped_start_bytes == stack.striped.start
    assert not config.holds(-4, 8)


@pytest.mark.parametrize("banks", [1, 3, 8])
def test_the_banks_of_spans(banks: int) -> None:
    config = configure("tiny", rows=1, columns=banks, total=16, bank_bytes=4096)
    stack = StackMap(banks=banks, bank_bytes=4096)
    places = table(banks, 4096)
    for first in places:
        for size in (4, 512, 516, 1536, 4096, 10_000):
            for start in (first, first + 508):
                span = range(start, start + size)
                if not stack.holds(span):
                    continue
                touched = {places[each - each % 512][0] for each in (*span[::512], span[-1])}
                assert banks_of([span], config) == stack.banks_of([span]) == sorted(touched)


def test_presets_have_a_place_for_all_of_their_vaults() -> None:
    for name in ("paper", "pairs"):
        config = PIM_PRESETS[name]
        assert config.stack_bytes == config.banks * config.vault_bytes == 8 << 30
        assert config.striped_start_bytes == config.local_bytes
