"""The oracle of compression: a block worked out by hand, and blocks there and back."""

from __future__ import annotations

import numpy as np
import pytest

from hw_tests.driver.memory_node.compression import compressed, expanded


def test_a_block_by_hand() -> None:
    block = np.zeros(16 * 33, "<u4")
    block[[1, 15, 16 * 32]] = 7, 0x80000000, 9
    words = np.zeros(3 * 16, "<u4")
    # Masks of line 0 and of line 32, and the words.
    words[0], words[16], words[32:35] = 1 << 1 | 1 << 15, 1, (7, 0x80000000, 9)
    assert compressed(block.tobytes()) == words.tobytes()
    assert expanded(words.tobytes(), 33) == block.tobytes()


@pytest.mark.parametrize("lines", [1, 2, 31, 32, 33, 64])
def test_blocks_there_and_back(lines: int) -> None:
    rng = np.random.default_rng(lines)
    for share in (0.0, 0.02, 0.5, 0.9, 0.97, 1.0):
        words = rng.integers(1, 1 << 32, 16 * lines, np.uint32) * (rng.random(16 * lines) < share)
        block = words.astype("<u4").tobytes()
        stored = compressed(block)
        count = -(-lines // 32) + -(-np.count_nonzero(words) // 16)
        assert len(stored) == 64 * min(lines, count)
        assert expanded(stored, lines) == block
