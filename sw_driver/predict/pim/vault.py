"""Vault: the cycles in which it takes requests and answers them."""

from __future__ import annotations

from collections import deque

from hw.pim.vault.distances import QUEUE_DEPTH, VaultDistances
from hw.pim.vault.timing import vault_part

__all__ = ["SWITCH_QUEUE", "Vault"]

# Pipeline latencies of the switch and the controller, in cycles.
GRANT_TO_TAKEN = 2
ACCESS_CYCLES = 1
"""From a request's arrival at the controller to its activate."""
ISSUE_TO_ANSWER = 3
"""From a column until the controller answers, besides the DRAM's read latency."""

SWITCH_QUEUE = 4
"""Grants with beats that the vault has not taken, at most."""
_SWITCH_ANSWERS = 2
_UNANSWERED = 32
_STARTING = -(1 << 40)


class Vault:
    """Vault that takes requests in the order of their grants and issues columns in that order.

    A beat joins the open access to its row until that access's last column has been issued. A later
    beat activates the bank anew.
    """

    def __init__(self) -> None:
        part = vault_part("hmc2")
        geometry = part.geometry
        self._times = times = VaultDistances.of(part.timing)
        self._pairs = geometry.layers // 2
        self._bank_count = geometry.banks_per_layer
        self._answer = times.read_latency + ISSUE_TO_ANSWER
        self._taken = self._issued = _STARTING
        self._takens = deque([_STARTING] * SWITCH_QUEUE, maxlen=SWITCH_QUEUE)
        self._issues = deque([_STARTING] * QUEUE_DEPTH, maxlen=QUEUE_DEPTH)
        self._departures = deque([_STARTING] * _UNANSWERED)
        self._activates = deque([_STARTING] * 4, maxlen=4)
        self._stretch: int | None = None
        self._write = False
        self._last = [_STARTING, _STARTING]
        self._free = [_STARTING] * geometry.banks
        self._layer_columns = [_STARTING] * geometry.layers
        self._last_read = self._last_write = _STARTING
        self._layer_writes = [_STARTING] * geometry.layers
        self._refresh_after = times.refresh_interval - times.drain_cycles(geometry.banks)
        """Cycles from a refresh until activates stop for the next one."""
        self._refresh = self._refresh_after
        """Cycle in which the next refresh is due, or was due while an activate waits for it."""
        self._dues = deque([self._refresh])
        """Cycles of due refreshes after which no request has come."""
        self._departed = _STARTING
        self._leaving: deque[int] = deque()
        """Cycles of the answers for which no place in the switch is known yet."""
        self._places = deque([_STARTING] * _SWITCH_ANSWERS)
        """Cycles in which the switch's places became free."""

    @property
    def full(self) -> bool:
        """True while no request can be taken until it is known when another answer leaves."""
        return not self._departures

    def free(self, queued: int) -> int:
        """Return the cycle from which the switch may grant while ``queued`` grants are not served.

        ``queued`` is less than :data:`SWITCH_QUEUE`.
        """
        return self._takens[queued] + 1

    def serve(self, granted: int, stretch: int, half: int, write: bool) -> int:
        """Take a beat that is granted in cycle ``granted``; return the cycle of its answer.

        The beat is in layer ``half`` of the two of ``stretch``.
        """
        times = self._times
        before = max(self._taken, self._issues[0], self._departures.popleft())
        taken = max(before + 1, granted + GRANT_TO_TAKEN)
        last = self._last
        while self._dues and self._dues[0] <= taken:
            # A due refresh ends open accesses.
            self._dues.popleft()
            last[0] = last[1] = _STARTING
        self._taken = taken
        self._takens.append(taken)
        pair = stretch % self._pairs
        layer = 2 * pair + half
        issued = max(self._issued, taken) + 1
        same = stretch == self._stretch and write == self._write
        bank = (stretch // self._pairs % self._bank_count) * 2 * self._pairs + layer
        if not same or last[half] <= taken:
            bound = same and last[1 - half] > taken
            if not same:
                self._stretch, self._write = stretch, write
                last[1 - half] = _STARTING
            activate = self._activate(taken + ACCESS_CYCLES, bank, bound)
            issued = max(issued, activate + times.activate_to_column)
        issued = max(issued, self._layer_columns[layer] + times.column_to_column_same_layer)
        if write:
            issued = max(issued, self._last_read + times.read_to_write)
            self._last_write = self._layer_writes[layer] = issued
            self._free[bank] = issued + times.write_to_activate
        else:
            after_write = self._layer_writes[layer] + times.write_to_read_same_layer
            issued = max(issued, self._last_write + times.write_to_read, after_write)
            self._last_read = issued
            self._free[bank] = issued + times.read_to_activate
        self._issues.append(issued)
        self._layer_columns[layer] = issued
        last[half] = self._issued = issued
        answer = issued + self._answer
        self._leaving.append(answer)
        self._depart()
        return answer

    def left(self, granted: int) -> None:
        """Free an answer's place in the switch, which it left in cycle ``granted``."""
        self._places.append(granted)
        self._depart()

    def _depart(self) -> None:
        leaving, places = self._leaving, self._places
        while leaving and places:
            self._departed = max(leaving.popleft(), places.popleft() + 1, self._departed + 1)
            self._departures.append(self._departed)

    def _activate(self, activate: int, bank: int, bound: bool) -> int:
        """Activate ``bank`` from cycle ``activate`` on and return the cycle.

        ``bound`` allows it although a refresh is due, while the refresh waits for other banks.
        """
        times, activates = self._times, self._activates
        activate = max(
            activate,
            activates[3] + times.activate_to_activate,
            activates[0] + times.four_activates,
            self._free[bank],
        )
        while activate >= self._refresh:
            refreshed = max(self._refresh, max(self._free))
            if bound and activate < refreshed:
                break
            self._refresh = refreshed + 1 + self._refresh_after
            if self._refresh > self._taken:
                self._dues.append(self._refresh)
            activate = max(activate, refreshed + times.refresh_to_activate)
        activates.append(activate)
        return activate
