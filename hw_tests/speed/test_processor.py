"""What the cost model is told of operations that run over and over; no time is measured."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[torch]'")

from .processor import COPY, PREDICTED, PRODUCT, in_a_row, main

CACHE_BYTES = 32 << 20


def test_operations_in_a_row_move_what_does_not_fit() -> None:
    """A copy reads, and fetches what it overwrites and writes it back. A softmax of 64 MiB does,
    too. Of a product of matrices all is in the cache."""
    assert in_a_row(COPY, CACHE_BYTES).nbytes == 3 * 2**28
    assert in_a_row(PREDICTED["softmax of 16384 x 1024"], CACHE_BYTES).nbytes == 3 * 2**26
    assert in_a_row(PREDICTED["addition of 1 MiB"], CACHE_BYTES).nbytes == 0
    product = in_a_row(PRODUCT, 48 << 20)
    assert (product.kind, product.flops, product.nbytes) == ("mm", 2 * 2048**3, 0)


def test_a_cache_without_a_size_is_refused() -> None:
    with pytest.raises(SystemExit, match="the size of the cache is 'big': give it, such as 32MiB"):
        main("big")
