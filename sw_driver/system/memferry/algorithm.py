"""Algorithm 1 of the paper, as printed and as intended."""

from __future__ import annotations

from .link import Mode, overlap
from .profile import ModelProfile

__all__ = ["printed", "repaired"]


def printed(profile: ModelProfile) -> tuple[Mode, ...]:
    """Return GFGB or DHA for each layer, by the paper's lines.

    Two gaps are read as follows:

    - ``baseline``, which line 23 compares with, is not defined: it is taken as ``base``.
    - ``tag`` is -1 until a layer's load was hidden, and line 20 begins there, before the first
      layer. Layers that do not exist are skipped.

    The other faults are kept here, and repaired in :func:`repaired`:

    - Line 3 takes the greater of a load's time and 0, without subtracting the time left for it.
    - Line 20 goes on to the layer itself, whose mode line 13 then overwrites.
    - Line 20 also goes over layers that are DHA already, so that their gain counts twice.
    - Line 22 forgets the cost of the changes before.
    - Line 29 adds a sum to a sum, which no later decision depends on.
    - Line 29 also adds a reserve to the reserve, which all later decisions depend on.
    """
    layers = profile.layers
    modes: list[Mode] = []
    total = reserved = 0
    tag = -1
    for number, layer in enumerate(layers):
        forward, dha, transfer = layer.forward_ns, layer.forward_dha_ns, layer.transfer_ns
        if dha <= forward + max(transfer, 0):
            modes.append("DHA")
            total, reserved = total + dha, reserved + dha
        else:
            modes.append("GFGB")
            if transfer < reserved:
                tag = number if tag == -1 else tag
                total, reserved = total + forward, reserved + forward - transfer
            else:
                before, left = total, reserved
                base = before + transfer + forward - left
                for i in range(max(tag, 0), number + 1):
                    slower = layers[i].forward_dha_ns - layers[i].forward_ns
                    gain = layers[i].transfer_ns + slower
                    tried = max(transfer - left - gain, 0) + before + slower + forward
                    if tried < base:
                        modes[i], tag = "DHA", i + 1
                        base, left = tried, left + gain
                        if left >= transfer:
                            break
                total, reserved = total + base, reserved + max(left - transfer, 0) + forward
                modes[number] = "GFGB"
        total, reserved = total + layer.gap_forward_ns, reserved + layer.gap_forward_ns
    return tuple(modes)


def repaired(profile: ModelProfile) -> tuple[Mode, ...]:
    """Return GFGB or DHA for each layer, as the algorithm is evidently meant.

    Layers are visited once. The time between the end of earlier loads and a layer's start is its
    reserve, for its own load. A layer is DHA if that is no slower than its forward pass with the
    rest of its load. If the load of another layer does not fit into the reserve, earlier layers
    become DHA, in order, while that makes the layer end sooner.
    """
    modes: list[Mode] = []
    tag = 0
    """First layer that may still be changed."""
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
