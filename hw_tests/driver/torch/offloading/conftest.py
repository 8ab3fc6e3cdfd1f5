"""Small modules with the rules that stores need, among others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from hw_tests.driver.conftest import EVERY_RULE
from sw_driver.axdimm import Axdimm


@pytest.fixture(scope="module", params=["golden", "cycles", "rtl"])
def device(request: pytest.FixtureRequest) -> Iterator[Axdimm]:
    """A module of each kind, opened once; storage that is registered stays."""
    with Axdimm(request.param, options=EVERY_RULE) as opened:
        yield opened


@pytest.fixture
def golden() -> Iterator[Axdimm]:
    """One of the test's own, without a clock."""
    with Axdimm("golden", options=EVERY_RULE) as opened:
        yield opened


@pytest.fixture
def cycles() -> Iterator[Axdimm]:
    """One of the test's own, with a clock."""
    with Axdimm("cycles", options=EVERY_RULE) as opened:
        yield opened


@pytest.fixture
def single() -> Iterator[Axdimm]:
    """One of the test's own, without a clock, of one channel."""
    options = replace(EVERY_RULE, settings={**EVERY_RULE.settings, "channels": 1})
    with Axdimm("golden", options=options) as opened:
        yield opened
