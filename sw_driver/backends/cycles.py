"""The golden model with a clock: results from :mod:`golden.adam`, time from :mod:`golden.cycles`.

For jobs that would take too long in RTL. What the kernel's runs and the host's copies take is
within 1 % of RTL, usually to the cycle; reads that come late are repeated as there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from golden.cycles import (
    LINK_FABRIC_CYCLES_PER_LINE,
    ChannelState,
    CycleConfig,
    HostTraffic,
    Placement,
    Prediction,
    RefreshState,
    predict,
)
from hw.axdimm.config import ModuleConfig
from hw.registers import RegisterMap
from sw_driver.backends.golden import CAUSES, MODES, GoldenChannel, GoldenTransport
from sw_driver.runs import ACTIVITY_REGISTERS
from sw_driver.schedule import Schedule
from sw_driver.transport import (
    LINE_BYTES,
    DeviceFault,
    DeviceTimeout,
    arbiter_window,
    kernel_window,
)

__all__ = ["START_LATENCY_FABRIC_CYCLES", "CyclesTransport", "cycle_config"]

TCK_PER_FABRIC_CYCLE = 4
LINK_CHUNK_LINES = 16
"""Lines after which another channel may have the link."""
LINK_CHUNK_LINES_ALONE = 1024
"""The same while no other channel asks for it."""
YIELD_SECONDS = 1e-4
"""Of host time, for other threads to begin what they do at the same simulated time."""
READ_ATTEMPTS = 64
"""How often the host asks for a line that comes late, as in the RTL's harness."""

# Measured on RTL.
START_LATENCY_FABRIC_CYCLES = 5
"""From the request that writes a register of the kernel until it takes effect."""
REGISTER_FABRIC_CYCLES = 4
"""From one access to a register of the kernel to the next: they queue up."""
MODE_TO_DRAINING_FABRIC_CYCLES = {"normal": 2, "acceleration": 1}
"""From the write of the mode until the side that loses the DRAM has offered its last request."""
DRAINED_TO_MODE_FABRIC_CYCLES = 1
"""Until the mode is in force."""

SETTLE_FABRIC_CYCLES = 512
"""After reset, until a channel takes requests, as in the RTL's harness."""

_KERNEL_COUNTS = {"cycles": "fabric_cycles", "idle_cycles": "idle_fabric_cycles"}
_RUN_COUNTS = {register: name for name, register in ACTIVITY_REGISTERS.items()}
"""Registers by what they hold of a prediction, whose counts have the names of DramActivity's."""


def cycle_config(config: ModuleConfig) -> CycleConfig:
    """What the cycle model needs to know of a module."""
    sources = (config, config.controller, config.part.timing, config.part.geometry)
    values = {}
    for each in fields(CycleConfig):
        values[each.name] = next(
            getattr(source, each.name) for source in sources if hasattr(source, each.name)
        )
    return CycleConfig(**values)


@dataclass
class _Clock:
    """The time of a channel, and what its DRAM is like."""

    traffic: HostTraffic
    """Of the host, in normal mode; in acceleration mode that of before."""
    dram: ChannelState
    """In acceleration mode."""
    dram_cycle: int = 0
    """When ``dram`` is so, in the channel's fabric cycles; the end of a run in progress."""
    fabric_cycles: int = SETTLE_FABRIC_CYCLES
    """For how long the channel was simulated."""
    standstill: int = 0
    """For how many fabric cycles of the module's time it was not."""
    call_cycle: int = 0
    """When the first line of the call in progress went over the link."""
    call_address: int = 0
    carried_out: dict[int, int] = field(default_factory=dict)
    """When the call's accesses to registers leave the port, by the line."""
    register_cycle: int = 0
    """From when the kernel's registers take the next access."""
    switched_cycle: int = 0
    """From when the mode is in force."""
    run: Prediction | None = None
    """In progress."""
    last_run: Prediction | None = None
    activates: int = 0
    """Of runs that are over and of the host before the last switch to normal mode."""
    precharges: int = 0
    link_uses: list[tuple[int, int]] = field(default_factory=list)
    """Begins and ends in the module's time since the driver last asked."""

    @property
    def now(self) -> int:
        """The module's time."""
        return self.fabric_cycles + self.standstill


@dataclass
class _LinkUser:
    """A call that uses the link: each step of ``steps`` asks for it once."""

    clock: _Clock
    steps: Generator[None, None, None]
    done: bool = False
    error: BaseException | None = None

    def step(self) -> None:
        """To the next use of the link, or the end."""
        try:
            next(self.steps)
        except StopIteration:
            self.done = True
        except BaseException as error:  # goes to the thread that made the call
            self.done = True
            self.error = error


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
        super().__init__(
            channels=config.channels,
            capacity_bytes=config.capacity_bytes,
            lanes=config.lanes,
            block_bytes=config.block_bytes,
            arithmetic=arithmetic,
        )
        self.fabric_mhz = config.fabric_mhz
        self._read_latency = config.read_latency_fabric_cycles
        self._config["read_latency_fabric_cycles"] = self._read_latency
        self._cycle_config = cycle_config(config)
        self._link = Schedule()
        self._host = threading.local()
        self._latest = 0
        self._link_lock = threading.Lock()
        self._link_users: list[_LinkUser] = []
        self._record_link = False
        reset = ChannelState(refresh=RefreshState(owed=0, elapsed_fabric_cycles=0))
        self._clocks = [
            _Clock(traffic=self._traffic(reset, 0), dram=reset) for _ in range(config.channels)
        ]

    def write_lines(self, channel: int, address: int, data: NDArray[np.uint8]) -> None:
        """See :class:`sw_driver.transport.Transport`."""
        with self._call(channel, address, data.nbytes) as clock:
            self._use_link(clock, self._write(clock, channel, address, data.nbytes))
            super().write_lines(channel, address, data)

    def read_lines(self, channel: int, address: int, nbytes: int) -> NDArray[np.uint8]:
        """See :class:`sw_driver.transport.Transport`."""
        with self._call(channel, address, nbytes) as clock:
            self._use_link(clock, self._read(clock, channel, address, nbytes))
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
        """See :class:`sw_driver.transport.Transport`."""
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
            self._use_link(clock, polls())
            return found

    def fabric_cycles(self, channel: int) -> int:
        """See :class:`sw_driver.transport.Transport`."""
        return self._clocks[channel].fabric_cycles

    def now(self, channel: int) -> int:
        """The module's time at the channel, in fabric cycles, idle time included."""
        return self._clocks[channel].now

    def host_time(self) -> int:
        """See :class:`sw_driver.transport.Transport`."""
        return getattr(self._host, "now", self._latest)

    def set_host_time(self, fabric_cycle: int) -> None:
        """See :class:`sw_driver.transport.Transport`."""
        self._host.now = fabric_cycle

    def engage(self, channel: int, fabric_cycle: int) -> None:
        """See :class:`sw_driver.transport.Transport`. Here a call takes no time of the host's."""

    def disengage(self, channel: int) -> None:
        """See :class:`sw_driver.transport.Transport`."""

    def record_link(self, record: bool) -> None:
        """See :class:`sw_driver.transport.Transport`."""
        self._record_link = record

    def link_uses(self, channel: int) -> NDArray[np.uint64]:
        """See :class:`sw_driver.transport.Transport`."""
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
            yield clock
        finally:
            self._host.now = clock.now
            self._latest = max(self._latest, clock.now)

    def _owns_dram(self, channel: int, address: int) -> bool:
        """Whether the host reaches the DRAM at ``address``."""
        normal = self._states[channel].mode == MODES["normal"]
        return normal and address < kernel_window(self.capacity_bytes)

    def _use_link(self, clock: _Clock, steps: Generator[None, None, None]) -> None:
        """Takes the steps of a call; each uses the link.

        Of calls that use it at once the one whose time is behind goes first, whichever thread takes
        its step; one that has not begun yet is not waited for.
        """
        user = _LinkUser(clock, steps)
        self._link_users.append(user)
        yielded = False
        while not user.done:
            with self._link_lock:
                if user.done:
                    break
                behind = min(self._link_users, key=lambda each: each.clock.now)
                behind.step()
                if behind.done:
                    self._link_users.remove(behind)
            # Others may be about to use the link, too: at the begin of a long call, and when one of
            # theirs is over.
            if not user.done and (behind.done or not yielded):
                yielded = True
                time.sleep(YIELD_SECONDS)
        if user.error is not None:
            raise user.error

    def _write(
        self, clock: _Clock, channel: int, address: int, nbytes: int
    ) -> Generator[None, None, None]:
        """Steps of a write."""
        for first, count in self._stretches(address, nbytes):
            done = 0
            while done < count:
                yield
                chunk = min(count - done, self._chunk_lines)
                self._move(clock, channel, first + done, chunk, write=True)
                done += chunk

    def _read(
        self, clock: _Clock, channel: int, address: int, nbytes: int
    ) -> Generator[None, None, None]:
        """Steps of a read; what comes late is asked for again when all have been answered."""
        wanted = self._stretches(address, nbytes)
        for _ in range(READ_ATTEMPTS):
            late: list[tuple[int, int]] = []
            for first, count in wanted:
                done = 0
                while done < count:
                    yield
                    chunk = min(count - done, self._chunk_lines)
                    late += self._move(clock, channel, first + done, chunk, write=False)
                    done += chunk
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
        """First line and number of lines in the DRAM and beyond it."""
        in_dram = self._dram_bytes(address, nbytes)
        stretches = ((address, in_dram), (address + in_dram, nbytes - in_dram))
        return [(start // LINE_BYTES, size // LINE_BYTES) for start, size in stretches if size]

    @property
    def _chunk_lines(self) -> int:
        """Lines that the link moves before others are asked."""
        return LINK_CHUNK_LINES_ALONE if len(self._link_users) == 1 else LINK_CHUNK_LINES

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
        return HostTraffic(self._cycle_config, state, begin=begin, read_latency=self._read_latency)

    def _rest(self, clock: _Clock, until: int) -> None:
        """Lets the DRAM's time pass without requests."""
        if until > clock.dram_cycle:
            before = clock.dram
            clock.dram = before.after_rest(self._cycle_config, until - clock.dram_cycle)
            clock.dram_cycle = until
            # A refresh has closed all rows.
            clock.precharges += bool(before.open_rows) and not clock.dram.open_rows

    # The registers.

    def _register(self, state: GoldenChannel, address: int) -> tuple[RegisterMap, str] | None:
        found = super()._register(state, address)
        if found is not None and address < arbiter_window(self.capacity_bytes):
            clock = self._clocks[state.number]
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
        self, state: GoldenChannel, count: int, inputs: dict[str, int], outputs: dict[str, int]
    ) -> None:
        clock = self._clocks[state.number]
        placement = Placement(
            **{f"{name}_in": address for name, address in inputs.items()},
            **{f"{name}_out": address for name, address in outputs.items()},
        )
        clock.run = predict(self._cycle_config, placement, count, clock.dram)
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
        sampled = max(clock.carried_out.values(), default=clock.fabric_cycles)
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
            return {"count": TCK_PER_FABRIC_CYCLE * gap}
        if name in ("activates", "precharges"):
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
