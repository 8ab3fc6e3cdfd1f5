"""Memory that PyTorch did not allocate stays under Sentinel, and is named."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn

from hw_tests.driver.torch.small_steps import policy_of, same
from sw_driver.device.errors import InvalidArgumentError
from sw_driver.torch.sentinel import Sentinel

pytestmark = pytest.mark.usefixtures("guard")

ARRAY = np.random.default_rng(1).standard_normal((64, 64), np.float32)


def file(folder: Path, content: bytes = ARRAY.tobytes()) -> str:
    path = folder / f"file{len([*folder.iterdir()])}"
    path.write_bytes(content)
    return str(path)


def checkpoint(folder: Path) -> str:
    buffer = io.BytesIO()
    torch.save(torch.tensor(ARRAY), buffer)
    return file(folder, buffer.getvalue())


def storage_of(folder: Path) -> Any:
    return torch.UntypedStorage.from_file(file(folder), True, ARRAY.nbytes)


MAKERS: dict[str, Callable[[Path], Any]] = {
    "from_numpy": lambda _: torch.from_numpy(ARRAY.copy()),
    "from_dlpack": lambda _: torch.from_dlpack(ARRAY.copy()),
    "frombuffer": lambda _: torch.frombuffer(bytearray(ARRAY), dtype=torch.float32),
    "shared": lambda _: torch.tensor(ARRAY).share_memory_(),
    "from_file": lambda folder: torch.from_file(file(folder), shared=True, size=ARRAY.size),
    "private": lambda folder: torch.from_file(file(folder), shared=False, size=ARRAY.size),
    "storage": lambda folder: torch.empty(0).set_(storage_of(folder)),
    "load": lambda folder: torch.load(checkpoint(folder)),
    "mapped": lambda folder: torch.load(checkpoint(folder), mmap=True),
}


class _Holding(nn.Module):
    """Has foreign memory as a parameter and a buffer, and is given more in each call."""

    sums: Any

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(64, 64)
        self.weight = nn.Parameter(make().view(64, 64))
        self.register_buffer("sums", make().view(64, 64))

    def forward(self, x: Any, other: Any) -> Any:
        x = self.layer(x) @ self.weight
        self.sums.mul_(0.5).add_(x.detach().T @ x.detach())
        other.add_(self.sums)
        return (x @ other + self.sums[0]).relu()


@pytest.mark.parametrize("name", MAKERS)
def test_foreign_memory_stays_and_is_counted_apart(name: str, tmp_path: Path) -> None:
    results = []
    for budget in None, "60%":
        model = _Holding(lambda: MAKERS[name](tmp_path))
        others = [MAKERS[name](tmp_path).view(64, 64) for _ in range(7)]
        addresses = [one.data_ptr() for one in (model.weight, model.sums, *others)]
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        policy = None
        if budget:
            with pytest.warns(UserWarning, match=f"{2 * ARRAY.nbytes} bytes .* in 2 tensors"):
                policy = Sentinel(model, optimizer, budget=budget, least_bytes=1 << 10)
        losses = []
        for other in others:
            optimizer.zero_grad()
            loss = model(torch.ones(32, 64), other).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        if policy is not None:
            report, state = policy.report(), policy._residency.state
            assert report["in_place_bytes"] == 2 * ARRAY.nbytes
            assert report["peak_bytes"] <= report["budget_bytes"]
            assert report["out_bytes"] > 0
            assert state is None or state.skipped > 50
            policy.close()
        assert [one.data_ptr() for one in (model.weight, model.sums, *others)] == addresses
        results.append([*losses, *others, *model.state_dict().values()])
    assert same(*results)


def test_memory_of_its_own_is_counted_and_not_shared(tmp_path: Path) -> None:
    model = _Holding(lambda: MAKERS["load"](tmp_path))
    for tensor in model.weight, model.sums:
        tensor.data = tensor.data.clone()
    with (
        warnings.catch_warnings(),
        policy_of("sentinel", model, torch.optim.SGD(model.parameters())) as policy,
    ):
        assert policy.report()["in_place_bytes"] == 0
        with pytest.raises(InvalidArgumentError, match="cannot be shared with another process"):
            model.weight.share_memory_()
