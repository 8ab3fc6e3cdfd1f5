"""Modules with all rules, for the optimizers of PyTorch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hw_tests.driver.conftest import EVERY_RULE
from sw_driver.axdimm import Axdimm, BackendOptions


@pytest.fixture(params=["compiled", "python"])
def guard(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The compiled guard of memory plans, and the Python mode that is its oracle."""
    if request.param == "python":
        monkeypatch.setattr("sw_driver.torch.guard.load", lambda: None)
    return request.param


@pytest.fixture(params=["sentinel", "memferry"])
def policy_name(request: pytest.FixtureRequest) -> Iterator[str]:
    """Name of a policy; nothing of it stays once it is closed."""
    yield request.param
    import torch

    from sw_driver.torch.residency import Residency

    assert Residency.guarded is None
    assert torch._C._len_torch_dispatch_stack() == 0
    assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None
    assert torch.is_grad_enabled()


@pytest.fixture(scope="session", params=["golden", "cycles", "rtl"])
def module(request: pytest.FixtureRequest) -> Iterator[Axdimm]:
    """A module with all rules, opened once."""
    with Axdimm(request.param, options=EVERY_RULE) as device:
        yield device


@pytest.fixture(scope="session")
def golden() -> Iterator[Axdimm]:
    """One of the paper's size, without a clock."""
    with Axdimm("golden", options=BackendOptions(settings=EVERY_RULE.settings)) as device:
        yield device
