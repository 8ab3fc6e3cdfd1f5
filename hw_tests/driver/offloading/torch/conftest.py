"""One thread of PyTorch's: several would wait for each other longer than they compute."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    torch = sys.modules.get("torch")
    if torch is None:  # what is tested does without
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
