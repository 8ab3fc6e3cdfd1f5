"""Small modules with the rules that stores need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sw_driver.axdimm import Axdimm, BackendOptions

RULES = ("adam", "sgd", "momentum", "amsgrad", "accumulate", "sum_squares", "fill")
OPTIONS = BackendOptions(preset="tiny", settings={"rules": RULES})


@pytest.fixture(scope="module", params=["golden", "cycles", "rtl"])
def device(request: pytest.FixtureRequest) -> Iterator[Axdimm]:
    """A module of each kind, opened once; storage that is registered stays."""
    with Axdimm(request.param, options=OPTIONS) as opened:
        yield opened


@pytest.fixture
def golden() -> Iterator[Axdimm]:
    """One of the test's own, without a clock."""
    with Axdimm("golden", options=OPTIONS) as opened:
        yield opened


@pytest.fixture
def cycles() -> Iterator[Axdimm]:
    """One of the test's own, with a clock."""
    with Axdimm("cycles", options=OPTIONS) as opened:
        yield opened


@pytest.fixture
def single() -> Iterator[Axdimm]:
    """One of the test's own, without a clock, of one channel."""
    settings = {"rules": RULES, "channels": 1}
    with Axdimm("golden", options=BackendOptions(preset="tiny", settings=settings)) as opened:
        yield opened
