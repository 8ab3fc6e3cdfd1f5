"""The golden model with a clock: results from :mod:`golden.adam`, time from :mod:`golden.cycles`.

For jobs that would take too long in RTL. What the kernel's runs take is within 1 % of RTL, usually
to the cycle. Host copies take what the link takes: that a host read comes late and is repeated, and
that lines in ever other rows wait for the DRAM, is left out.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from golden.cycles import ChannelState, CycleConfig, Placement, Prediction, RefreshState, predict
from hw.axdimm.config import ModuleConfig
from hw.registers import RegisterMap
from sw_driver.backends.golden import CAUSES, MODES, GoldenChannel, GoldenTransport
from sw_driver.backends.link import HostLink
from sw_driver.runs import ACTIVITY_REGISTERS
from sw_driver.transport import LINE_BYTES, DeviceTimeout, arbiter_window, kernel_window

__all__ = ["START_LATENCY_FABRIC_CYCLES", "CyclesTransport", "cycle_config"]

TCK_PER_FABRIC_CYCLE = 4
LINK_FABRIC_CYCLES_PER_LINE = 2
LINK_CHUNK_LINES = 16
"""Lines after which another channel may have the link."""

# Measured on RTL.
START_LATENCY_FABRIC_CYCLES = 5
"""From the request that writes a register of the kernel until it takes effect."""
REGISTER_FABRIC_CYCLES = 4
"""From one access to a register of the kernel to the next: they queue up."""
SAMPLE_LATENCY_FABRIC_CYCLES = 4
"""From the request that reads a register until it is read."""
LEAVE_NORMAL_FABRIC_CYCLES = 32
"""From the last line that went to or from the DRAM until the channel can leave normal mode."""
LEAVE_ACCELERATION_FABRIC_CYCLES = 8
"""From the request of normal mode until it is in force."""

SETTLE_FABRIC_CYCLES = 512
"""After reset, until a channel takes requests, as in the RTL's harness."""

_KERNEL_COUNTS = {"cycles": "fabric_cycles", "idle_cycles": "idle_fabric_cycles"}
_RUN_COUNTS = {register: name for name, register in ACTIVITY_REGISTERS.items()}
"""Registers by what they hold of a prediction, whose counts have the names of DramActivity's."""


def cycle_config(config: ModuleConfig) -> CycleConfig:
    """What the cycle model needs to know of a module."""
    sources = (config, config.controller, config.part.timing, config.part.geometry)
    values = {}
    for field in fields(CycleConfig):
        values[field.name] = next(
            getattr(source, field.name) for source in sources if hasattr(source, field.name)
        )
    return CycleConfig(**values)


@dataclass
class _Clock:
    """The time of a channel, and what its DRAM is like."""

    dram: ChannelState
    dram_cycle: int = 0
    """When ``dram`` is so, in the channel's fabric cycles; the end of a run in progress."""
    fabric_cycles: int = SETTLE_FABRIC_CYCLES
    """For how long the channel was simulated."""
    standstill: int = 0
    """For how many fabric cycles of the module's time it was not."""
    call_cycle: int = 0
    """When the first line of the call in progress went over the link."""
    call_address: int = 0
    register_cycle: int = 0
    """From when the kernel's registers take the next access."""
    traffic_cycle: int = -LEAVE_NORMAL_FABRIC_CYCLES
    """When the host last used the DRAM."""
    switched_cycle: int = 0
    """From when the mode is in force."""
    run: Prediction | None = None
    """In progress."""
    last_run: Prediction | None = None
    activates: int = 0
    """Of runs that are over; those for the host are not known."""
    precharges: int = 0

    @property
    def now(self) -> int:
        """The module's time."""
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
        self._link = HostLink()
        self._host = threading.local()
        self._latest = 0
        reset = ChannelState(refresh=RefreshState(owed=0, elapsed_fabric_cycles=0))
        self._clocks = [_Clock(dram=reset) for _ in range(config.channels)]

    def write_lines(self, channel: int, address: int, data: NDArray[np.uint8]) -> None:
        """See :class:`sw_driver.transport.Transport`."""
        with self._call(channel, address, data.nbytes) as clock:
            self._use_link(clock, data.nbytes // LINE_BYTES)
            if self._owns_dram(channel, address):
                self._host_moves(clock, writing=True)
            super().write_lines(channel, address, data)

    def read_lines(self, channel: int, address: int, nbytes: int) -> NDArray[np.uint8]:
        """See :class:`sw_driver.transport.Transport`."""
        with self._call(channel, address, nbytes) as clock:
            self._use_link(clock, nbytes // LINE_BYTES)
            if self._owns_dram(channel, address):
                self._host_moves(clock, writing=False)
            self._finish_run(clock, clock.fabric_cycles)
            if nbytes:
                clock.fabric_cycles += self._read_latency - LINK_FABRIC_CYCLES_PER_LINE
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
        period = self._read_latency + interval_fabric_cycles
        with self._call(channel, address, LINE_BYTES) as clock:
            begin = clock.fabric_cycles
            while True:
                self._use_link(clock, 1)
                sampled = clock.call_cycle + SAMPLE_LATENCY_FABRIC_CYCLES
                self._finish_run(clock, sampled)
                found = self._read_register(state, channel, address)
                clock.fabric_cycles += self._read_latency - LINK_FABRIC_CYCLES_PER_LINE
                if found & mask == value:
                    return found
                left = begin + timeout_fabric_cycles - clock.fabric_cycles
                if left <= 0:
                    raise DeviceTimeout(
                        f"channel {channel}: register at {address:#x} read {found:#x} after "
                        f"{timeout_fabric_cycles} fabric cycles, awaited {value:#x} in the bits "
                        f"{mask:#x}"
                    )
                # Nothing changes before the switch or the run is over: the polls until then are
                # not made.
                if sampled < clock.switched_cycle:
                    left = min(left, clock.switched_cycle - sampled)
                elif clock.run is not None:
                    left = min(left, clock.dram_cycle - sampled)
                clock.fabric_cycles += -(-left // period) * period - self._read_latency

    def fabric_cycles(self, channel: int) -> int:
        """See :class:`sw_driver.transport.Transport`."""
        return self._clocks[channel].fabric_cycles

    def now(self, channel: int) -> int:
        """The module's time at the channel, in fabric cycles, idle time included."""
        return self._clocks[channel].now

    # Time.

    @contextmanager
    def _call(self, channel: int, address: int, nbytes: int) -> Iterator[_Clock]:
        """A call for a channel, which follows those that its thread made before."""
        self._state(channel, address, nbytes)
        clock = self._clocks[channel]
        clock.standstill += max(0, getattr(self._host, "now", self._latest) - clock.now)
        clock.call_cycle = clock.fabric_cycles
        clock.call_address = address
        try:
            yield clock
        finally:
            self._host.now = clock.now
            self._latest = max(self._latest, clock.now)

    def _owns_dram(self, channel: int, address: int) -> bool:
        """Whether the host reaches the DRAM at ``address``."""
        normal = self._states[channel].mode == MODES["normal"]
        return normal and address < kernel_window(self.capacity_bytes)

    def _use_link(self, clock: _Clock, lines: int) -> None:
        """Moves lines over the link, as soon as it is free."""
        waited = False
        while lines:
            chunk = min(lines, LINK_CHUNK_LINES)
            duration = LINK_FABRIC_CYCLES_PER_LINE * chunk
            start = self._link.reserve(clock.now, duration)
            clock.fabric_cycles += start - clock.now
            if not waited:
                clock.call_cycle = clock.fabric_cycles
                waited = True
            clock.fabric_cycles += duration
            lines -= chunk

    def _rest(self, clock: _Clock, until: int) -> None:
        """Lets the DRAM's time pass without requests."""
        if until > clock.dram_cycle:
            before = clock.dram
            clock.dram = before.after_rest(self._cycle_config, until - clock.dram_cycle)
            clock.dram_cycle = until
            # A refresh has closed all rows.
            clock.precharges += bool(before.open_rows) and not clock.dram.open_rows

    def _host_moves(self, clock: _Clock, *, writing: bool) -> None:
        """The call in progress was for the DRAM, up to now."""
        self._rest(clock, clock.call_cycle)
        passed = clock.fabric_cycles - clock.dram_cycle
        if passed > 0:
            clock.dram = clock.dram.after_traffic(self._cycle_config, passed, writing=writing)
            clock.dram_cycle = clock.fabric_cycles
        clock.traffic_cycle = clock.fabric_cycles

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
        if state.mode == MODES["normal"]:
            clock.switched_cycle = clock.call_cycle + LEAVE_ACCELERATION_FABRIC_CYCLES
        else:
            clock.switched_cycle = clock.traffic_cycle + LEAVE_NORMAL_FABRIC_CYCLES

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
        if name == "status":
            draining = clock.call_cycle + SAMPLE_LATENCY_FABRIC_CYCLES < clock.switched_cycle
            return {
                "mode": state.mode ^ draining,
                "draining": int(draining),
                "kernel_busy": int(clock.run is not None),
            }
        if name == "refreshes":
            self._rest(clock, clock.fabric_cycles)
            return {"count": clock.dram.refresh.given}
        if name in ("activates", "precharges"):
            return {"count": getattr(clock, name)}
        if name == "longest_refresh_gap_tck":
            self._rest(clock, clock.fabric_cycles)
            refresh = clock.dram.refresh
            gap = max(refresh.longest_gap_fabric_cycles, refresh.since_fabric_cycles)
            return {"count": TCK_PER_FABRIC_CYCLE * gap}
        if name in _RUN_COUNTS:
            run = clock.last_run
            return {"count": 0 if run is None else getattr(run, _RUN_COUNTS[name])}
        return super()._arbiter_values(state, name)
