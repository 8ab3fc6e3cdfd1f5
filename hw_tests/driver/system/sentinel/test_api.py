"""A step of a training loop is profiled, by layers that are found and by those that are marked."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[torch]'")

from torch import nn

from sw_driver.system.sentinel.api import add_layer, end_profile, start_profile
from sw_driver.system.sentinel.profiling import StepProfile, profile_of
from sw_driver.workload.capture import Recorder
from sw_driver.workload.loading import load_workload

FILE = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from sw_driver.system.sentinel.api import add_layer

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(4))

    def forward(self, values):
        for number, part in enumerate(self.parts):
            values = part(values)
            if number in (1, 2):
                add_layer()
                add_layer()
        return values

def net():
    return Net(), torch.zeros(8, 4), lambda model, batch: model(batch).sum()

def again():
    return *net()[:2], lambda model, batch: checkpoint(model, batch, use_reentrant=False).sum()
"""


def kinds(profile: StepProfile) -> list[list[str]]:
    """What runs in each visit."""
    return [[profile.step.ops[op_id].kind for op_id in visit] for visit in profile.visits]


def test_a_step_of_a_training_loop_is_profiled() -> None:
    model, batch = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 2)), torch.ones(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    start_profile(model, batch, rule="momentum")
    model(batch).sum().backward()
    profile = end_profile(cache_bytes=0)
    optimizer.step()
    assert kinds(profile) == [
        ["mm"],
        ["addmm", "sum"],
        ["ones_like", "mm", "mm", "sum", "momentum", "momentum"],
        ["mm", "momentum"],
    ]
    assert profile.lines[0] == {0: 1, 3: 2}


def test_marked_layers_are_the_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "net.py").write_text(FILE)
    recomputed = load_workload(f"{tmp_path / 'net.py'}:again")
    profile = profile_of(load_workload(f"{tmp_path / 'net.py'}:net"), 0)
    assert recomputed.stages == profile.step.stages
    assert [stage.name for stage in profile.step.stages] == [f"layer {n}" for n in (0, 1, 1, 0)]
    assert [len(visit) for visit in profile.visits] == [2, 3, 7, 5]
    add_layer()
    monkeypatch.setattr(Recorder, "latest", None)
    with pytest.raises(ValueError, match="start_profile"):
        add_layer()


def test_a_profile_begins_and_ends() -> None:
    model = nn.Linear(4, 4)
    with pytest.raises(ValueError, match="no profile has been started"):
        end_profile()
    start_profile(model)
    with pytest.raises(ValueError, match="captured already"):
        start_profile(model)
    with pytest.raises(ValueError, match="leaves no gradient"):
        end_profile()
