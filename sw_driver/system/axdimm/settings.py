"""What can be chosen of the framework that trains on the platform."""

from __future__ import annotations

from dataclasses import dataclass

from sw_driver.numbers import check_fields

__all__ = ["CHANNELS", "FrameworkSettings"]

CHANNELS = 2


@dataclass(frozen=True, kw_only=True)
class FrameworkSettings:
    """The paper's framework, with what it leaves open. Raises ``ValueError`` for what cannot be."""

    updater: str = "module"
    """Who updates parameters: ``module`` or ``cpu``, the paper's baseline. It has the same runtime
    (6.3) and, by the paper, the same tensors in the same places, so its memory is in as many parts.
    """
    placement: str = "round_robin"
    """Of parameters, with their states, over the channels: in turns as they are made (5.2), or to
    the channel with the fewest bytes."""
    eviction: str = "updated_first"
    """What leaves a full memory first: what was updated in this iteration (5.3), then what was not
    used longest; or only the latter."""
    ahead_ops: int = 20
    """How many operations PyTorch queues ahead of the one that the GPU does: their parameters are
    fetched meanwhile. With 0 nothing is prefetched."""
    one_stream: bool = True
    """Whether parameters and gradients take turns, in one stream of transfers."""
    overlap: bool = True
    """Whether updates run beside transfers; if not, all of both take turns."""
    one_transfer: bool = True
    """Whether the runtime makes one transfer after the other, all queues together."""
    gradient_bits: int = 32
    state_bits: int = 32
    """Of a value, as it is moved and kept."""

    def __post_init__(self) -> None:
        for name, known in (
            ("updater", ("module", "cpu")),
            ("placement", ("round_robin", "by_bytes")),
            ("eviction", ("updated_first", "lru")),
            ("gradient_bits", (8, 16, 32)),
            ("state_bits", (8, 16, 32)),
        ):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}: expected one of "
                    f"{', '.join(map(str, known))}"
                )
        check_fields(self, "ahead_ops")
