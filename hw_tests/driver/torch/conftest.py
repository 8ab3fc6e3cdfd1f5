"""Modules with all rules, for the optimizers of PyTorch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sw_driver.axdimm import Axdimm, BackendOptions

RULES = (
    "adam", "amsgrad", "adamw", "sgd", "momentum", "nesterov", "adagrad", "rmsprop", "lion",
    "sum_squares",
)  # fmt: skip


@pytest.fixture(scope="session", params=["golden:tiny", "cycles:tiny", "rtl:tiny"])
def module(request: pytest.FixtureRequest) -> Iterator[Axdimm]:
    """A module with all rules, opened once."""
    with Axdimm(request.param, options=BackendOptions(settings={"rules": RULES})) as device:
        yield device


@pytest.fixture(scope="session")
def golden() -> Iterator[Axdimm]:
    """One without a clock."""
    with Axdimm("golden", options=BackendOptions(settings={"rules": RULES})) as device:
        yield device
