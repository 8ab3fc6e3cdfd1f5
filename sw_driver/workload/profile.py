"""What operations take on devices: the times that a trace has not."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .trace import Op

__all__ = ["Profile"]


class Profile:
    """Times by operation and device.

    ``costs`` has for each device by name what gives the ns of an operation there, an integer. It
    may depend on the operation's kind, phase, flops and nbytes, and is asked once for each of
    these: the layers of a network are alike.
    """

    def __init__(self, costs: Mapping[str, Callable[[Op], int]]) -> None:
        self._costs = dict(costs)
        self._known: dict[tuple[str, str, str, int, int], int] = {}

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices."""
        return tuple(self._costs)

    def ns(self, op: Op, device: str) -> int:
        """Nanoseconds that ``op`` takes on ``device``.

        Raises ``ValueError`` for a device that is none of :attr:`devices`, and for a cost that is
        no time.
        """
        key = (device, op.kind, op.phase, op.flops, op.nbytes)
        if key not in self._known:
            self._known[key] = self._ask(op, device)
        return self._known[key]

    def _ask(self, op: Op, device: str) -> int:
        if device not in self._costs:
            raise ValueError(f"no device {device!r}: give one of {', '.join(self._costs)}")
        ns = self._costs[device](op)
        if type(ns) is not int or ns < 0:
            raise ValueError(
                f"{op.kind} takes {ns!r} ns on {device!r}: a cost is an integer from 0 on"
            )
        return ns
