"""What is saved of offloaded training: plain PyTorch reads it, and a kill loses one step."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hw_tests.soak import for_soak

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[torch]'")

from hw_tests.driver.torch.offloading import killed
from hw_tests.driver.torch.offloading.models import Branches, Tied, batches, loss_of
from sw_driver.axdimm import Axdimm, BackendOptions
from sw_driver.torch import AdamW
from sw_driver.torch.offloading import Offloading

STEPS = 12


@contextmanager
def training(folder: Path, make: Any = Tied) -> Iterator[tuple[Offloading, Any, Any]]:
    options = BackendOptions(settings={"rules": ("adamw",)})
    file = folder / "nvme.img"
    file.write_bytes(bytes(1 << 20))
    with (
        Axdimm("golden:tiny", options=options) as device,
        Offloading(device, AdamW, lr=0.01, capacity_bytes=20 << 10, storage=file) as platform,
    ):
        yield platform, platform.build(make), platform.optimizer()


def train(model: Any, optimizer: Any, given: list[Any]) -> None:
    for batch in given:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()


def same_states(one: Any, other: Any) -> bool:
    """Whether two state dicts are equal in every bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_states(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same_states, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def test_plain_pytorch_goes_on_from_it_and_back(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    given = batches(4)
    with training(tmp_path, Branches) as (platform, model, optimizer):
        train(model, optimizer, given[:2])
        platform.save(path, note="two steps")
        state = optimizer.state_dict()
    content = torch.load(path)
    assert content["note"] == "two steps"
    plain = Branches()
    plain.load_state_dict(content["model"])
    theirs = torch.optim.AdamW(plain.parameters())
    theirs.load_state_dict(content["optimizer"])
    assert theirs.param_groups[0]["lr"] == 0.01
    assert same_states(theirs.state_dict()["state"], state["state"])
    assert {int(each["step"]) for each in state["state"].values()} == {1, 2}
    train(plain, theirs, given[2:])
    with training(tmp_path, Branches) as (platform, model, optimizer):
        model.load_state_dict(plain.state_dict())
        optimizer.load_state_dict(theirs.state_dict())
        assert same_states(model.state_dict(), plain.state_dict())
        assert same_states(optimizer.state_dict()["state"], theirs.state_dict()["state"])


def test_an_iteration_that_went_wrong_is_given_up(tmp_path: Path) -> None:
    given = batches(STEPS)
    path = tmp_path / "checkpoint.pt"
    with training(tmp_path) as (platform, model, optimizer):
        train(model, optimizer, given[:3])
        platform.save(path)
        wanted = torch.load(path)
        optimizer.zero_grad()
        loss_of(model, given[3]).backward()
        model(given[3])
        platform.save(tmp_path / "between.pt")  # as before the backward pass
        assert same_states(torch.load(tmp_path / "between.pt"), wanted)
        optimizer.step()
        platform.load(path)
        assert same_states(model.state_dict(), wanted["model"])
        assert same_states(optimizer.state_dict(), wanted["optimizer"])
        train(model, optimizer, given[3:])
        result = model.state_dict()
    with training(tmp_path) as (platform, model, optimizer):
        platform.load(path)
        train(model, optimizer, given[3:])
        assert same_states(model.state_dict(), result)


def test_a_save_that_fails_leaves_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "checkpoint.pt"
    with training(tmp_path) as (platform, model, optimizer):
        platform.save(path)
        before, files = path.read_bytes(), set(tmp_path.iterdir())
        train(model, optimizer, batches(1))

        def full(_: int) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            with pytest.raises(OSError, match=r"checkpoint\.pt"):
                platform.save(path)
        assert path.read_bytes() == before
        assert set(tmp_path.iterdir()) == files
        with pytest.raises(FileNotFoundError):
            platform.save(tmp_path / "none" / "checkpoint.pt")


def test_files_that_are_no_checkpoint(tmp_path: Path) -> None:
    with training(tmp_path) as (platform, model, _):
        torch.save(model.state_dict(), tmp_path / "other.pt")
        with pytest.raises(ValueError, match=r"other\.pt is no checkpoint of save\(\)"):
            platform.load(tmp_path / "other.pt")
        platform.save(tmp_path / "whole.pt", strange=object)
        whole = (tmp_path / "whole.pt").read_bytes()
        for content in (b"", b"abc", whole[: len(whole) // 2], whole):
            (tmp_path / "part.pt").write_bytes(content)
            with pytest.raises(ValueError, match=r"part\.pt is no checkpoint .*not whole"):
                platform.load(tmp_path / "part.pt")
        with pytest.raises(FileNotFoundError, match="none"):
            platform.load(tmp_path / "none.pt")


@pytest.mark.parametrize("seed", [0, *for_soak(1)])
def test_a_kill_loses_at_most_the_step_in_flight(seed: int, tmp_path: Path) -> None:
    choice = random.Random(seed)
    command = [sys.executable, "-m", killed.__name__, str(tmp_path), str(STEPS)]
    checkpoint = tmp_path / "checkpoint.pt"
    reached = 0
    for after in (1, choice.randint(2, 5), STEPS):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            began = int(child.stdout.readline())
            assert began >= reached
            reached = began
            for line in child.stdout:
                reached = int(line)
                if reached >= began + after:
                    time.sleep(choice.random() * 0.03)
                    child.send_signal(signal.SIGKILL)
        assert reached > began
        assert reached <= torch.load(checkpoint)["step"] <= reached + 1
    assert reached == STEPS
    found = torch.load(checkpoint)
    (tmp_path / "whole").mkdir()
    torch.manual_seed(7)
    with training(tmp_path / "whole") as (_, model, optimizer):
        train(model, optimizer, batches(STEPS))
        assert same_states(found["model"], model.state_dict())
        assert same_states(found["optimizer"], optimizer.state_dict())
