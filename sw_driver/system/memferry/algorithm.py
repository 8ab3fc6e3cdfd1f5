"""Algorithm 1 of the paper, as printed, and as it is evidently meant."""

from __future__ import annotations

from .link import Mode, overlap
from .profile import ModelProfile

__all__ = ["printed", "repaired"]


def printed(profile: ModelProfile) -> tuple[Mode, ...]:
    """GFGB or DHA for each layer, as the paper's lines have it. They run with two readings:

    - ``baseline``, which line 23 compares with, is nowhere defined: it is taken as ``base``.
    - ``tag`` is -1 until a layer's load was hidden, and line 20 begins there, before the first
      layer: layers that there are not are passed over.

    What else they do is done here too, and mended by :func:`repaired`: line 3 takes the greater of
    a load's time and 0, as if the time left for it had been subtracted, which it is not; line 20
    goes on to the layer itself, whose mode line 13 then overwrites, and over layers that are DHA
    already, so that their gain counts twice; line 22 forgets what the changes before cost; line 29
    adds a sum to a sum, which no later decision depends on, and a reserve to the reserve, on which
    all do.
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
    """GFGB or DHA for each layer, as is evidently meant.

    Layers are gone through once. What is left of the time before a layer, when the loads before it
    are over, is reserved for its own load. A layer whose DHA is no slower than the rest of its load
    and its forward pass is DHA. If the load of another does not fit into the reserve, layers before
    it become DHA, in their order, as long as that makes it end sooner.
    """
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
