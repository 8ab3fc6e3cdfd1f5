"""The docs' example: a GPT on bytes, offloaded, beside plain training."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[torch]'")

ROOT = Path(__file__).parents[4]


@pytest.fixture
def example() -> ModuleType:
    spec = spec_from_file_location("offloading", ROOT / "docs" / "examples" / "offloading.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.LARGE = module.SMALL
    return module


@pytest.mark.parametrize("max_norm", [None, "0.5"])
def test_the_example_trains(
    example: ModuleType, max_norm: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    platform, losses, theirs = example.main("golden", "8", max_norm)
    assert np.abs(np.subtract(losses, theirs)).max() < 1e-4
    assert platform.peak_bytes < 327_680  # ten times the largest weight
    printed = capsys.readouterr().out
    assert "plain training: no room for" in printed
    for route in ("host->module", "module->host", "module->nvme", "nvme->module", "nvme->host"):
        assert f"{route}: " in printed
    assert "in simulated time" not in printed
