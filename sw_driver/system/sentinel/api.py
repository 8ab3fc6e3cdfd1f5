"""The paper's API for a step of a training loop; it needs PyTorch.

``start_profile`` goes before the step and ``end_profile`` after it. Layers are found from modules.
To set other layers, call ``add_layer`` at the end of each in the model.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from torch import nn

from hw.rules import PAPER_RULES
from sw_driver.workload.capture import Recorder, add_layer, recording

from .profiling import StepProfile, profile_of

__all__ = ["add_layer", "end_profile", "start_profile"]

_running: list[tuple[ExitStack, Recorder]] = []


def start_profile(model: nn.Module, *batch: Any, rule: str = PAPER_RULES[0]) -> None:
    """Start to profile a forward and backward pass; ``rule`` is the update rule.

    Raises ``ValueError`` for an unknown rule, and if a profile has been started.
    """
    with ExitStack() as entered:
        recorder = entered.enter_context(recording(model, batch, rule))
        _running.append((entered.pop_all(), recorder))


def end_profile(cache_bytes: int = 30 << 20) -> StepProfile:
    """Return the profile of the step, behind a last-level cache of ``cache_bytes``.

    The default is the cache of the paper's processor. Raises ``ValueError`` if no profile has been
    started or the step has left no gradient, and :class:`~sw_driver.workload.trace.TraceError` for
    a step without layers.
    """
    if not _running:
        raise ValueError("no profile has been started: call start_profile() before the step")
    entered, recorder = _running.pop()
    entered.close()
    return profile_of(recorder.trace("step", {}), cache_bytes)
