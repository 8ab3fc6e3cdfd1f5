"""Parameters with which a test runs in ``make soak`` alone."""

from __future__ import annotations

from typing import Any

import pytest

__all__ = ["for_soak"]


def for_soak(*values: Any) -> list[Any]:
    """Return parameters that ``make soak`` takes and ``make test`` does not."""
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.soak)
        for value in values
    ]
