"""A vault: when it takes requests, and when it answers."""

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
"""From a column, besides the DRAM's read latency, until the controller answers."""

SWITCH_QUEUE = 4
"""Grants whose beats are not taken, at most."""
_SWITCH_ANSWERS = 2
_UNANSWERED = 32
_STARTING = -(1 << 40)


class Vault:
    """One vault: requests come in order of their grants, columns go in the same order.

    Beats join the access that is open for their row as long as its last column has not been issued;
    else they activate the bank anew.
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
        """From a refresh until nothing more is activated, for the next one."""
        self._refresh = self._refresh_after
        """When the next refresh falls due, or did for an activate that waits for it."""
        self._dues = deque([self._refresh])
        """Those that no request has come after."""
        self._departed = _STARTING
        self._leaving: deque[int] = deque()
        """When answers are there, of those for which no place in the switch is known yet."""
        self._places = deque([_STARTING] * _SWITCH_ANSWERS)
        """When places there became free."""

    @property
    def full(self) -> bool:
        """Nothing more can be taken before it is known when another answer leaves."""
        return not self._departures

    def free(self, queued: int) -> int:
        """From when on the switch may grant with so many grants, fewer than :data:`SWITCH_QUEUE`,
        that were not served yet."""
        return self._takens[queued] + 1

    def serve(self, granted: int, stretch: int, half: int, write: bool) -> int:
        """Takes a beat in layer ``half`` of the two of ``stretch`` that is granted in this cycle;
        returns when its answer is there."""
        times = self._times
        before = max(self._taken, self._issues[0], self._departures.popleft())
        taken = max(before + 1, granted + GRANT_TO_TAKEN)
        last = self._last
        while self._dues and self._dues[0] <= taken:
            # What is open ends when a refresh falls due.
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
        """An answer left its place in the switch in cycle ``granted``."""
        self._places.append(granted)
        self._depart()

    def _depart(self) -> None:
        leaving, places = self._leaving, self._places
        while leaving and places:
            self._departed = max(leaving.popleft(), places.popleft() + 1, self._departed + 1)
            self._departures.append(self._departed)

    def _activate(self, activate: int, bank: int, bound: bool) -> int:
        """Activates ``bank`` from cycle ``activate`` on; ``bound``: even if a refresh is due,
        as long as it must wait for others."""
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
