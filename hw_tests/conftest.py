"""Settings for all tests."""

from __future__ import annotations

import warnings

from amaranth.hdl import UnusedElaboratable


def pytest_configure() -> None:
    # Components that tests construct only to see them refused are never elaborated. Amaranth
    # says so when they are collected, which may be after the tests.
    warnings.simplefilter("ignore", UnusedElaboratable)
