"""The golden model with a clock: results from :mod:`golden.rules`, time from
:mod:`sw_driver.predict.axdimm`.

For jobs that would take too long in RTL. What the kernel's runs and the host's copies take is
within 1 % of RTL, usually to the cycle; reads that come late are repeated as there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hw.axdimm.config import ModuleConfig
from hw.csr.register_map import RegisterMap
from hw.dram.timing import BURST_TCK
from hw.rules.update_rule import UpdateRule
from sw_driver.axdimm.backends.golden import (
    CAUSES,
    MODES,
    GoldenChannel,
    GoldenTransport,
    golden_settings,
)
from sw_driver.axdimm.runs import ACTIVITY_REGISTERS
from sw_driver.device.link import Link
from sw_driver.device.transport import (
    LINE_BYTES,
    LINK_FABRIC_CYCLES_PER_LINE,
    DeviceFault,
    DeviceTimeout,
    arbiter_window,
    kernel_window,
)
from sw_driver.predict.axdimm import (
    ChannelState,
    HostTraffic,
    Placement,
    Prediction,
    RefreshState,
    predict,
)

__all__ = ["START_LATENCY_FABRIC_CYCLES", "CyclesTransport"]

LINK_CHUNK_LINES = 16
"""Lines after which another channel may have the host link."""
LINK_CHUNK_LINES_ALONE = 1024
"""Lines after which another channel may have the host link if none asks for it at present."""
YIELD_S = 1e-4
"""Seconds for which a call waits for threads that begin at the same simulated time without engaging
a channel."""
ENGAGED_PATIENCE_S = 10.0
"""Seconds after which an engaged channel without a call is forgotten, as in the RTL's harness."""
LINK_PATIENCE_S = 600.0
"""Seconds after which a call gives up waiting for those before it on the host link."""
NEVER = 1 << 62
READ_ATTEMPTS = 64
"""How often the host asks for a line that comes late, as in the RTL's harness."""

# Measured on RTL.
START_LATENCY_FABRIC_CYCLES = 5
"""Fabric cycles from the request that writes a register of the kernel until it takes effect."""
PORT_TO_SAMPLE_FABRIC_CYCLES = 1
"""Fabric cycles from a read's leaving the host port until the kernel's register is sampled."""
REGISTER_FABRIC_CYCLES = 4
"""Fabric cycles from one access to a register of the kernel to the next: they queue up."""
MODE_TO_DRAINING_FABRIC_CYCLES = {"normal": 2, "acceleration": 1}
"""Fabric cycles from a mode's write until the side that loses the DRAM offers no more requests."""
DRAINED_TO_MODE_FABRIC_CYCLES = 1
"""Fabric cycles from when the side that loses the DRAM is idle until the mode is in force."""

SETTLE_FABRIC_CYCLES = 512
"""Fabric cycles after reset until a channel takes requests, as in the RTL's harness."""

_KERNEL_COUNTS = {"cycles": "fabric_cycles", "idle_cycles": "idle_fabric_cycles"}
_RUN_COUNTS = {register: name for name, register in ACTIVITY_REGISTERS.items()}
"""Names of a prediction's counts, as in :class:`DramActivity`, by the arbiter's registers."""


@dataclass
class _Clock:
    """The time of a channel, and what its DRAM is like."""

    traffic: HostTraffic
    """The host's traffic in normal mode; in acceleration mode that of the normal mode before."""
    dram: ChannelState
    """State of the DRAM in acceleration mode."""
    dram_cycle: int = 0
    """The channel's fabric cycle in which its DRAM is as ``dram``; the end of a run in progress."""
    fabric_cycles: int = SETTLE_FABRIC_CYCLES
    """Fabric cycles for which the channel was simulated."""
    standstill: int = 0
    """Fabric cycles of the module's time in which the channel was not simulated."""
    calling: bool = False
    """Whether a call for the channel is in progress."""
    engaged: int | None = None
    """Module time from which on calls for the channel may come; others wait for them."""
    call_cycle: int = 0
    """Fabric cycle in which the call's first line went over the link; -1 before."""
    call_address: int = 0
    carried_out: dict[int, int] = field(default_factory=dict)
    """Fabric cycles in which the call's accesses to registers leave the port, by line number."""
    sampled: int = 0
    """Fabric cycle in which the access to a register in progress leaves the host port."""
    register_cycle: int = 0
    """Fabric cycle from which on the kernel's registers take the next access."""
    switched_cycle: int = 0
    """Fabric cycle from which on the mode last written is in force."""
    run: Prediction | None = None
    """The kernel's run in progress."""
    last_run: Prediction | None = None
    activates: int = 0
    """Activates of runs that are over and of the host before the last switch to normal mode."""
    precharges: int = 0
    link_uses: list[tuple[int, int]] = field(default_factory=list)
    """Uses of the host link since the driver last asked: begins and ends in the module's time."""

    @property
    def now(self) -> int:
        """The module's time at the channel, in fabric cycles."""
        return self.fabric_cycles + self.standstill


class CyclesTransport(GoldenTransport):
    """A transport to the golden model that tells the time; see :class:`GoldenTransport`.

    As in the Verilated RTL, a channel's clock stands still while no call is made for it, and a
    thread's calls follow each other in the module's time. A poll lets the time pass until a run in
    progress is over. Results are in memory, and counters have the run's counts, from START on and
    from its end on.

    Parameters
    ----------
    config: the module.
    arithmetic: False tells the time only, see :class:`GoldenTransport`.
    """

    name = "cycles"
    timed = True

    def __init__(self, config: ModuleConfig, *, arithmetic: bool = True) -> None:
        super().__init__(**golden_settings(config), arithmetic=arithmetic)
        self._read_latency = config.read_latency_fabric_cycles
        self._config["read_latency_fabric_cycles"] = self._read_latency
        self._module = config
        self._link = Link()
        self._host = threading.local()
        self._latest = 0
        self._link_changed = threading.Condition()
        self._link_users: set[int] = set()
        self._record_link = False
        reset = ChannelState(refresh=RefreshState(owed=0, elapsed_fabric_cycles=0))
        self._clocks = [
            _Clock(traffic=self._traffic(reset, 0), dram=reset) for _ in range(config.channels)
        ]

    def write_lines(self, channel: int, address: int, data: NDArray[np.uint8]) -> None:
        """See :class:`sw_driver.device.transport.Transport`."""
        with self._call(channel, address, data.nbytes) as clock:
            self._use_link(channel, self._write(clock, channel, address, data.nbytes))
            super().write_lines(channel, address, data)

    def read_lines(self, channel: int, address: int, nbytes: int) -> NDArray[np.uint8]:
        """See :class:`sw_driver.device.transport.Transport`."""
        with self._call(channel, address, nbytes) as clock:
            self._use_link(channel, self._read(clock, channel, address, nbytes))
            return super().read_lines(channel, address, nbytes)

    def poll(
        self,
        channel: int,
        address: int,
        mask: int,
        value: int,
        *,
        interval_fabric_cycles: int,
        timeout_fabric_cycles: int,
    ) -> int:
        """See :class:`sw_driver.device.transport.Transport`."""
        state = self._state(channel, address, LINE_BYTES)
        found = 0

        def polls() -> Generator[None, None, None]:
            nonlocal found
            period = self._read_latency + interval_fabric_cycles
            line = address // LINE_BYTES
            begin = clock.fabric_cycles
            while True:
                yield
                late = self._move(clock, channel, line, 1, write=False)
                sampled = clock.carried_out[line]
                if address < arbiter_window(self.capacity_bytes):
                    sampled += PORT_TO_SAMPLE_FABRIC_CYCLES
                self._finish_run(clock, sampled)
                clock.fabric_cycles += self._read_latency - LINK_FABRIC_CYCLES_PER_LINE
                if late:
                    self._count_late(channel, late)
                else:
                    found = self._read_register(state, channel, address)
                    if found & mask == value:
                        return
                left = begin + timeout_fabric_cycles - clock.fabric_cycles
                if left <= 0:
                    raise DeviceTimeout(
                        f"channel {channel}: register at {address:#x} read {found:#x} after "
                        f"{timeout_fabric_cycles} fabric cycles, awaited {value:#x} in the bits "
                        f"{mask:#x}"
                    )
                # Nothing changes before the switch or the run is over: the polls until then are
                # not made.
                if late:
                    left = 0
                elif sampled < clock.switched_cycle:
                    left = min(left, clock.switched_cycle - sampled)
                elif clock.run is not None:
                    left = min(left, clock.dram_cycle - sampled)
                clock.fabric_cycles += max(1, -(-left // period)) * period - self._read_latency

        with self._call(channel, address, LINE_BYTES) as clock:
            self._use_link(channel, polls())
            return found

    def fabric_cycles(self, channel: int) -> int:
        """See :class:`sw_driver.device.transport.Transport`."""
        return self._clocks[channel].fabric_cycles

    def now(self, channel: int) -> int:
        """The module's time at the channel, in fabric cycles, idle time included."""
        return self._clocks[channel].now

    def host_time(self) -> int:
        """See :class:`sw_driver.device.transport.Transport`."""
        return getattr(self._host, "now", self._latest)

    def set_host_time(self, fabric_cycle: int) -> None:
        """See :class:`sw_driver.device.transport.Transport`."""
        self._host.now = fabric_cycle

    def engage(self, channel: int, fabric_cycle: int) -> None:
        """See :class:`sw_driver.device.transport.Transport`."""
        with self._link_changed:
            self._clocks[channel].engaged = fabric_cycle
            self._link_changed.notify_all()

    def disengage(self, channel: int) -> None:
        """See :class:`sw_driver.device.transport.Transport`."""
        with self._link_changed:
            self._clocks[channel].engaged = None
            self._link_changed.notify_all()

    def record_link(self, record: bool) -> None:
        """See :class:`sw_driver.device.transport.Transport`."""
        self._record_link = record

    def link_uses(self, channel: int) -> NDArray[np.uint64]:
        """See :class:`sw_driver.device.transport.Transport`."""
        clock = self._clocks[channel]
        uses, clock.link_uses = clock.link_uses, []
        return np.array(uses, dtype=np.uint64).reshape(-1, 2)

    # Time.

    @contextmanager
    def _call(self, channel: int, address: int, nbytes: int) -> Iterator[_Clock]:
        """A call for a channel, which follows those that its thread made before."""
        self._state(channel, address, nbytes)
        clock = self._clocks[channel]
        clock.standstill += max(0, getattr(self._host, "now", self._latest) - clock.now)
        clock.call_cycle = -1
        clock.call_address = address
        clock.carried_out.clear()
        try:
            clock.calling = True
            yield clock
        finally:
            self._host.now = clock.now
            with self._link_changed:
                clock.calling = False
                self._latest = max(self._latest, clock.now)
                self._link_changed.notify_all()

    def _owns_dram(self, channel: int, address: int) -> bool:
        """Whether the host reaches the DRAM at ``address``."""
        normal = self._states[channel].mode == MODES["normal"]
        return normal and address < kernel_window(self.capacity_bytes)

    def _use_link(self, channel: int, steps: Generator[None, None, None]) -> None:
        """Takes the steps of a call, each when no other channel can use the link before it.

        A call that no channel is engaged for and that has not begun yet is not waited for.

        Raises :class:`DeviceTimeout` if the others do not get on.
        """
        try:
            with self._link_changed:
                self._link_users.add(channel)
                self._link_changed.notify_all()
            done = next(steps, True)
            if self._clocks[channel].engaged is None:
                time.sleep(YIELD_S)
            while not done:
                with self._link_changed:
                    self._await_turn(channel)
                    done = next(steps, True)
                    self._link_changed.notify_all()
        finally:
            with self._link_changed:
                self._link_users.discard(channel)
                self._link_changed.notify_all()

    def _await_turn(self, channel: int) -> None:
        """Waits, with the lock, until no other channel can use the link before this one."""
        now = self._clocks[channel].now

        def earlier() -> list[int]:
            uses = self._next_uses(channel)
            return [other for other, cycle in uses.items() if (cycle, other) < (now, channel)]

        give_up = time.monotonic() + LINK_PATIENCE_S
        while not self._link_changed.wait_for(lambda: not earlier(), ENGAGED_PATIENCE_S):
            for other in earlier():
                if not self._clocks[other].calling:
                    self._clocks[other].engaged = None
            if time.monotonic() > give_up:
                raise DeviceTimeout(
                    f"channel {channel}: waited for {LINK_PATIENCE_S:g} s for the calls of the "
                    f"channels {earlier()}, which are before it on the link"
                )

    def _next_uses(self, channel: int) -> dict[int, int]:
        """Module time from which on each of the other channels that may use the link may do so."""
        uses = {}
        for other, clock in enumerate(self._clocks):
            if other == channel:
                continue
            if other in self._link_users:
                uses[other] = clock.now
            elif clock.engaged is not None:
                uses[other] = max(clock.now, clock.engaged)
        return uses

    def _write(
        self, clock: _Clock, channel: int, address: int, nbytes: int
    ) -> Generator[None, None, None]:
        """The steps of a call that writes lines, for :meth:`_use_link`."""
        for first, count in self._stretches(address, nbytes):
            done = 0
            while done < count:
                yield
                chunk = min(count - done, self._chunk_lines(channel))
                self._move(clock, channel, first + done, chunk, write=True)
                done += chunk

    def _read(
        self, clock: _Clock, channel: int, address: int, nbytes: int
    ) -> Generator[None, None, None]:
        """The steps of a call that reads lines; late ones are asked for again at the end."""
        wanted = self._stretches(address, nbytes)
        for _ in range(READ_ATTEMPTS):
            late: list[tuple[int, int]] = []
            room = 0
            for first, count in wanted:
                done = 0
                while done < count:
                    if room == 0:
                        yield
                        room = self._chunk_lines(channel)
                    chunk = min(count - done, room)
                    late += self._move(clock, channel, first + done, chunk, write=False)
                    done += chunk
                    room -= chunk
            self._finish_run(clock, clock.fabric_cycles)
            if wanted:
                clock.fabric_cycles += self._read_latency - LINK_FABRIC_CYCLES_PER_LINE
            self._count_late(channel, late)
            wanted = late
            if not wanted:
                return
        raise DeviceFault(
            f"channel {channel}: host reads stayed late while reading {nbytes} bytes at "
            f"{address:#x}"
        )

    def _stretches(self, address: int, nbytes: int) -> list[tuple[int, int]]:
        """First line and number of lines of what is in the DRAM, and of what is beyond it."""
        in_dram = self._dram_bytes(address, nbytes)
        stretches = ((address, in_dram), (address + in_dram, nbytes - in_dram))
        return [(start // LINE_BYTES, size // LINE_BYTES) for start, size in stretches if size]

    def _chunk_lines(self, channel: int) -> int:
        """Lines that the channel moves over the link before other channels are asked."""
        now = self._clocks[channel].now
        pace = LINK_FABRIC_CYCLES_PER_LINE
        alone = min(self._next_uses(channel).values(), default=NEVER) - now
        chunks = max(1, alone // (pace * LINK_CHUNK_LINES))
        lines = min(chunks * LINK_CHUNK_LINES, LINK_CHUNK_LINES_ALONE)
        # What others have reserved already leaves gaps, which are used, too.
        first = self._link.first_free(now, pace)
        while self._link.first_free(first, pace * lines) != first:
            lines //= 2
        return lines

    def _move(
        self, clock: _Clock, channel: int, line: int, lines: int, *, write: bool
    ) -> list[tuple[int, int]]:
        """Moves lines over the link, as soon as it is free; returns the stretches that are late."""
        duration = LINK_FABRIC_CYCLES_PER_LINE * lines
        start = self._link.reserve(clock.now, duration)
        clock.fabric_cycles += start - clock.now
        if self._record_link:
            clock.link_uses.append((start, start + duration))
        cycle = clock.fabric_cycles
        if clock.call_cycle < 0:
            clock.call_cycle = cycle
        if self._owns_dram(channel, line * LINE_BYTES):
            transfer = clock.traffic.transfer(write=write, line=line, lines=lines, cycle=cycle)
            clock.fabric_cycles = transfer.last_cycle + LINK_FABRIC_CYCLES_PER_LINE
            return transfer.late
        late: list[tuple[int, int]] = []
        for place in range(lines):
            asked = cycle + LINK_FABRIC_CYCLES_PER_LINE * place
            clock.carried_out[line + place] = carried_out = clock.traffic.register(asked)
            if not write and not clock.traffic.in_time(asked, carried_out):
                late.append((line + place, 1))
        clock.fabric_cycles += duration
        return late

    def _count_late(self, channel: int, late: list[tuple[int, int]]) -> None:
        counts = self._states[channel].counts
        for first, lines in late:
            counts["late_reads"] += lines
            if self._owns_dram(channel, first * LINE_BYTES):
                counts["host_reads"] += lines

    def _traffic(self, state: ChannelState, begin: int) -> HostTraffic:
        return HostTraffic(self._module, state, begin=begin)

    def _rest(self, clock: _Clock, until: int) -> None:
        """Lets the DRAM's time pass without requests."""
        if until > clock.dram_cycle:
            before = clock.dram
            clock.dram = before.after_rest(self._module, until - clock.dram_cycle)
            clock.dram_cycle = until
            # A refresh has closed all rows.
            clock.precharges += bool(before.open_rows) and not clock.dram.open_rows

    # The registers.

    def _register(self, state: GoldenChannel, address: int) -> tuple[RegisterMap, str] | None:
        found = super()._register(state, address)
        clock = self._clocks[state.number]
        clock.sampled = clock.carried_out.get(address // LINE_BYTES, clock.fabric_cycles)
        if found is not None and address < arbiter_window(self.capacity_bytes):
            place = (address - clock.call_address) // LINE_BYTES
            asked = clock.call_cycle + LINK_FABRIC_CYCLES_PER_LINE * place
            taken = max(asked + START_LATENCY_FABRIC_CYCLES, clock.register_cycle)
            clock.register_cycle = taken + REGISTER_FABRIC_CYCLES
        return found

    def _write_register(self, state: GoldenChannel, address: int, value: int) -> None:
        before = state.mode
        super()._write_register(state, address, value)
        if state.mode == before:
            return
        clock = self._clocks[state.number]
        written = clock.carried_out[address // LINE_BYTES]
        if state.mode == MODES["normal"]:
            prompt_from = max(written + 1, clock.dram_cycle)
            self._rest(clock, prompt_from)
            clock.activates += clock.traffic.tally.activates
            clock.precharges += clock.traffic.tally.precharges
            clock.traffic = self._traffic(clock.dram, prompt_from)
            draining = written + MODE_TO_DRAINING_FABRIC_CYCLES["normal"]
        else:
            draining = written + MODE_TO_DRAINING_FABRIC_CYCLES["acceleration"]
        switched = clock.traffic.idle_from(draining) + DRAINED_TO_MODE_FABRIC_CYCLES
        clock.switched_cycle = switched
        if state.mode != MODES["normal"]:
            clock.dram = clock.traffic.state(switched)
            clock.dram_cycle = switched

    def _start(self, state: GoldenChannel) -> None:
        clock = self._clocks[state.number]
        start = clock.register_cycle - REGISTER_FABRIC_CYCLES
        self._finish_run(clock, start)
        if clock.run is not None:
            state.cause = CAUSES["start_while_busy"]
            return
        self._rest(clock, start)
        super()._start(state)

    def _accepted(
        self,
        state: GoldenChannel,
        chosen: UpdateRule,
        count: int,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
    ) -> None:
        clock = self._clocks[state.number]
        clock.run = predict(
            self._module,
            Placement(inputs=inputs, outputs=outputs),
            count,
            clock.dram,
            unit_latency=chosen.latency,
            sums=bool(chosen.sums),
        )
        clock.dram = clock.run.state
        clock.dram_cycle += clock.run.fabric_cycles

    def _finish_run(self, clock: _Clock, cycle: int) -> None:
        """Counts the run in progress if it is over in ``cycle``."""
        run = clock.run
        if run is None or cycle < clock.dram_cycle:
            return
        clock.last_run, clock.run = run, None
        clock.activates += run.activates
        clock.precharges += run.precharges

    def _kernel_values(self, state: GoldenChannel, name: str) -> dict[str, int] | None:
        clock = self._clocks[state.number]
        values = super()._kernel_values(state, name)
        if values is None:
            return None
        if name == "status" and clock.run is not None:
            return {**values, "busy": 1, "done": 0}
        if name in _KERNEL_COUNTS and clock.last_run is not None and clock.run is None:
            return {"count": getattr(clock.last_run, _KERNEL_COUNTS[name])}
        return values

    def _arbiter_values(self, state: GoldenChannel, name: str) -> dict[str, int]:
        clock = self._clocks[state.number]
        sampled = clock.sampled
        if name == "status":
            draining = sampled < clock.switched_cycle
            return {
                "mode": state.mode ^ draining,
                "draining": int(draining),
                "kernel_busy": int(clock.run is not None),
            }
        if name == "refreshes":
            refresh = self._refresh_state(state, sampled)
            # One that was decided on and is yet to come is given already.
            return {"count": refresh.given - (refresh.since_fabric_cycles <= 0)}
        if name == "longest_refresh_gap_tck":
            refresh = self._refresh_state(state, sampled)
            gap = max(refresh.longest_gap_fabric_cycles, refresh.since_fabric_cycles)
            return {"count": BURST_TCK * gap}
        if name in ("activates", "precharges"):
            self._refresh_state(state, sampled)
            return {"count": getattr(clock, name) + getattr(clock.traffic.tally, name)}
        if name in _RUN_COUNTS:
            run = clock.last_run
            return {"count": 0 if run is None else getattr(run, _RUN_COUNTS[name])}
        return super()._arbiter_values(state, name)

    def _refresh_state(self, state: GoldenChannel, cycle: int) -> RefreshState:
        clock = self._clocks[state.number]
        if state.mode == MODES["normal"]:
            return clock.traffic.refreshes(cycle)
        self._rest(clock, cycle)
        return clock.dram.refresh
