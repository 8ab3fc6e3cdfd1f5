"""Which layers with a forward pass by DHA are copied to the GPU for their backward pass.

The paper has no pseudo-code for its greedy choice. Here: the link towards the GPU is idle from the
end of the last load to the first gradient, when the last layer's backward pass is over, on the
paper's link. As long as a copy fits into what is left of that and of the memory, the layer whose
backward pass gains most of it becomes DFGB.
"""

from __future__ import annotations

from collections.abc import Sequence

from .link import Mode, backward_way, overlap
from .profile import ModelProfile

__all__ = ["dfgb"]


def dfgb(profile: ModelProfile, modes: Sequence[Mode], room_bytes: int) -> tuple[Mode, ...]:
    """``modes`` with DFGB for some that are DHA, whose parameters take ``room_bytes`` at most."""
    layers, chosen = profile.layers, list(modes)
    gains = [layer.backward_dha_ns - layer.backward_ns for layer in layers]
    last = layers[-1]
    _, idle = overlap(layers, modes)
    idle += last.gap_backward_ns
    idle += backward_way(last, modes[-1], True)[0]
    for i in sorted(range(len(layers)), key=lambda i: -gains[i]):
        layer = layers[i]
        fits = layer.transfer_ns <= idle and layer.nbytes <= room_bytes
        if modes[i] == "DHA" and gains[i] > 0 and fits:
            chosen[i] = "DFGB"
            idle -= layer.transfer_ns
            room_bytes -= layer.nbytes
    return tuple(chosen)
