"""Times of operations on devices, which a trace does not contain."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .trace import Op

__all__ = ["Profile"]


class Profile:
    """Times by operation and device.

    ``costs`` maps the name of a device to a function that returns an operation's time there, in ns,
    as an integer. The time may depend on the operation's kind, phase, flops and nbytes only. The
    function is called once for each combination of these, since layers of a network are alike.

    Examples
    --------
    >>> from sw_driver.workload import load_trace
    >>> costs = {"cpu": lambda op: op.flops // 100 + 50, "gpu": lambda op: op.flops // 10_000 + 500}
    >>> profile = Profile(costs)
    >>> products = [op for op in load_trace("gpt-tiny").ops if op.kind == "addmm"]
    >>> {device: profile.ns(products[0], device) for device in profile.devices}
    {'cpu': 2016, 'gpu': 519}
    """

    def __init__(self, costs: Mapping[str, Callable[[Op], int]]) -> None:
        self._costs = dict(costs)
        self._known: dict[tuple[str, str, str, int, int], int] = {}

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices."""
        return tuple(self._costs)

    def ns(self, op: Op, device: str) -> int:
        """Return the time of ``op`` on ``device``, in ns.

        Raises ``ValueError`` for a device that is not in :attr:`devices`, and for a cost that is
        not an integer of 0 or more.
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
                f"{op.kind} takes {ns!r} ns on {device!r}: expected an integer of 0 or more"
            )
        return ns
