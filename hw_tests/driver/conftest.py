"""The driver's tests run on every backend; this is where a backend comes from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hw.rules import RULES
from hw_tests.driver.transports import WatchedTransport
from sw_driver.axdimm import Axdimm
from sw_driver.axdimm.backends import BackendOptions, open_backend
from sw_driver.axdimm.transport import Transport

PRESET = "tiny"

EVERY_RULE = BackendOptions(preset=PRESET, settings={"rules": tuple(RULES)})
"""A module with every rule, whose simulator is built once for all tests that need several."""


@pytest.fixture(scope="session", params=["golden", "cycles", "rtl"])
def backend(request: pytest.FixtureRequest) -> Iterator[Transport]:
    """A module of the small configuration, opened once for all tests."""
    transport = open_backend(f"{request.param}:{PRESET}")
    yield transport
    transport.close()


@pytest.fixture
def watched(backend: Transport) -> WatchedTransport:
    """The backend, watched and held up as a test likes."""
    return WatchedTransport(backend)


@pytest.fixture
def device(watched: WatchedTransport) -> Iterator[Axdimm]:
    """An opened device without allocations, both channels in normal mode."""
    with Axdimm(watched) as device:
        yield device
        watched.held = False
        for channel in range(device.channels):
            device.stream(channel).recover()
            device.WaitAxdimm(channel, timeout=60)
            device.SetArbiterNormal(channel)
