"""The generator against its authors' vectors."""

from __future__ import annotations

import numpy as np
import pytest

from golden.philox import philox


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_vectors_of_its_authors(
    counter: tuple[int, int, int, int], key: tuple[int, int], words: tuple[int, ...]
) -> None:
    """``kat_vectors`` of Random123, ``philox4x32 10``."""
    assert philox(counter, key) == words
    one, two, three, four = (np.array([0, each], np.uint64) for each in counter)
    arrays = philox((one, two, three, four), key)
    assert tuple(int(each[1]) for each in arrays) == words
