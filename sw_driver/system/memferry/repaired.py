"""Algorithm 1 of the paper, as it is evidently meant.

Layers are gone through once. What is left of the time before a layer, when the loads before it are
over, is reserved for its own load. A layer whose DHA is no slower than the rest of its load and its
forward pass is DHA. If the load of another does not fit into the reserve, layers before it become
DHA, in their order, as long as that makes it end sooner.
"""

from __future__ import annotations

from .link import Mode, overlap
from .profile import ModelProfile

__all__ = ["repaired"]


def repaired(profile: ModelProfile) -> tuple[Mode, ...]:
    """GFGB or DHA for each layer."""
    modes: list[Mode] = []
    tag = 0
    """From here on layers may be changed: those before were gone through."""
    for number, layer in enumerate(profile.layers):
        before = profile.layers[: number + 1]
        _, reserved = overlap(before, modes)
        wait = max(layer.transfer_ns - reserved, 0)
        modes.append("DHA" if layer.forward_dha_ns <= layer.forward_ns + wait else "GFGB")
        if modes[number] == "DHA" or not wait:
            continue
        base, _ = overlap(before, modes)
        for i in range(tag, number):
            if modes[i] == "GFGB":
                modes[i] = "DHA"
                tried, _ = overlap(before, modes)
                if tried >= base:
                    modes[i] = "GFGB"
                    continue
                base, tag = tried, i + 1
                if overlap(before, modes[:number])[1] >= layer.transfer_ns:
                    break
    return tuple(modes)
