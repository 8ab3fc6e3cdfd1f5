"""The golden model with a clock, for jobs that would take too long in RTL.

Results come from :mod:`golden.rules`, time from :mod:`sw_driver.predict.axdimm`. The time of runs
and of host copies is within 1 % of RTL, usually equal. Late reads are repeated as in RTL.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hw.axdimm.config import ModuleConfig
from hw.csr.register_map import RegisterMap
from hw.dram.timing import BURST_TCK
from hw.narrow.formats import Formats
from hw.rules.update_rule import UpdateRule
from sw_driver.axdimm.backends.golden import (
    CAUSES,
    MODES,
    GoldenChannel,
    GoldenTransport,
    golden_settings,
)
from sw_driver.axdimm.runs import ACTIVITY_REGISTERS
from sw_driver.axdimm.transport import (
    LINE_BYTES,
    TimedTransport,
    arbiter_window,
    kernel_window,
)
from sw_driver.device.clock import Domain
from sw_driver.device.link import LINK_FABRIC_CYCLES_PER_LINE
from sw_driver.predict.axdimm import (
    ChannelState,
    HostTraffic,
    Prediction,
    RefreshState,
    TensorAddresses,
    predict,
)

__all__ = ["START_LATENCY_FABRIC_CYCLES", "CyclesTransport"]

# Measured on RTL.
START_LATENCY_FABRIC_CYCLES = 5
"""Fabric cycles from a request on the link until it takes effect in a kernel register."""
PORT_TO_SAMPLE_FABRIC_CYCLES = 1
"""Fabric cycles from a read's departure at the host port until the kernel register is sampled."""
REGISTER_FABRIC_CYCLES = 4
"""Fabric cycles between accesses to kernel registers, which queue up."""
MODE_TO_DRAINING_FABRIC_CYCLES = {"normal": 2, "acceleration": 1}
"""Fabric cycles from a mode write until the side that loses the DRAM stops sending requests."""
DRAINED_TO_MODE_FABRIC_CYCLES = 1
"""Fabric cycles from when the side that loses the DRAM is idle until the mode is in force."""

SETTLE_FABRIC_CYCLES = 512
"""Fabric cycles after reset until a channel accepts requests, as in the RTL harness."""

_KERNEL_COUNTS = {"cycles": "fabric_cycles", "idle_cycles": "idle_fabric_cycles"}
_RUN_COUNTS = {register: name for name, register in ACTIVITY_REGISTERS.items()}
"""Counts of a prediction, named as in :class:`DramActivity`, by arbiter register."""


@dataclass
class _Clock:
    """Time of a channel, and the state of its DRAM."""

    traffic: HostTraffic
    """Host traffic of the current normal mode, or of the last one during acceleration mode."""
    dram: ChannelState
    """State of the DRAM in acceleration mode."""
    dram_cycle: int = 0
    """Channel cycle at which ``dram`` holds; during a run, the cycle of its end."""
    fabric_cycles: int = SETTLE_FABRIC_CYCLES
    """Simulated fabric cycles of the channel."""
    standstill: int = 0
    """Fabric cycles of the module's time during which the channel's clock stood still."""
    call_cycle: int = 0
    """Fabric cycle of the first line of the last grant on the link."""
    call_address: int = 0
    carried_out: dict[int, int] = field(default_factory=dict)
    """Fabric cycles in which register accesses leave the host port, by line number."""
    requested: list[tuple[int, NDArray[np.uint8]]] = field(default_factory=list)
    """First line and destination of each unanswered request."""
    late: list[tuple[int, int]] = field(default_factory=list)
    """First line and number of lines of late stretches among the unanswered requests."""
    polled: int = 0
    """Fabric cycle in which the last line read was sampled."""
    sampled: int = 0
    """Fabric cycle in which the current register access leaves the host port."""
    register_cycle: int = 0
    """Fabric cycle from which the kernel's registers accept the next access."""
    switched_cycle: int = 0
    """Fabric cycle from which the last written mode is in force."""
    run: Prediction | None = None
    """The kernel's run in progress."""
    last_run: Prediction | None = None
    activates: int = 0
    """Activates of finished runs, and of the host before the last switch to normal mode."""
    precharges: int = 0

    @property
    def now(self) -> int:
        """The module's time at the channel, in fabric cycles."""
        return self.fabric_cycles + self.standstill


class CyclesTransport(TimedTransport, GoldenTransport):
    """A transport to the golden model with simulated time; see :class:`GoldenTransport`.

    As in the Verilated RTL, a channel's clock stands still while no call is made for it. Results
    are in memory from START on; counters hold the run's counts from its end on.

    Parameters
    ----------
    config: the module.
    arithmetic: False to simulate only the time, see :class:`GoldenTransport`.

    Examples
    --------
    >>> from hw.axdimm.config import configure
    >>> from nearmem import Axdimm
    >>> with Axdimm(CyclesTransport(configure("tiny", lanes=4))) as device:
    ...     print(device.registers(0).read("arbiter.config.lanes"), device.describe()["timed"])
    4 True
    """

    name = "cycles"

    def __init__(self, config: ModuleConfig, *, arithmetic: bool = True) -> None:
        GoldenTransport.__init__(self, **golden_settings(config), arithmetic=arithmetic)
        TimedTransport.__init__(self, config.channels)
        self._read_latency = config.read_latency_fabric_cycles
        self.domain = Domain(mhz=config.fabric_mhz, question_cycles=self._read_latency)
        self._config["read_latency_fabric_cycles"] = self._read_latency
        self._module = config
        reset = ChannelState(refresh=RefreshState(owed=0, elapsed_fabric_cycles=0))
        self._clocks = [
            _Clock(traffic=self._traffic(reset, 0), dram=reset) for _ in range(config.channels)
        ]

    def fabric_cycles(self, channel: int) -> int:
        """See :class:`sw_driver.axdimm.transport.Transport`."""
        self.domain.check_open()
        return self._clocks[channel].fabric_cycles

    def now(self, channel: int) -> int:
        """Return the module's time at the channel in fabric cycles, including idle time."""
        self.domain.check_open()
        return self._clocks[channel].now

    def rest(self, channel: int, until: int) -> None:
        """See :class:`sw_driver.axdimm.transport.TimedTransport`."""
        clock = self._clocks[channel]
        clock.fabric_cycles += until - clock.now

    def stand_still(self, channel: int, until: int) -> None:
        """See :class:`sw_driver.axdimm.transport.TimedTransport`."""
        clock = self._clocks[channel]
        clock.standstill += until - clock.now

    def put(self, channel: int, start: int, line: int, data: NDArray[np.uint8]) -> None:
        """See :class:`sw_driver.axdimm.transport.TimedTransport`."""
        self.rest(channel, start)
        clock = self._clocks[channel]
        clock.carried_out.clear()
        self._move(channel, line, data.size, write=True)
        GoldenTransport.write_lines(self, channel, LINE_BYTES * line, data)

    def ask(self, channel: int, start: int, line: int, target: NDArray[np.uint8]) -> None:
        """See :class:`sw_driver.axdimm.transport.TimedTransport`."""
        self.rest(channel, start)
        clock = self._clocks[channel]
        if not clock.requested:
            clock.carried_out.clear()
        clock.late += self._move(channel, line, target.size, write=False)
        clock.requested.append((line, target))

    def forget(self, channel: int) -> None:
        """See :class:`sw_driver.axdimm.transport.TimedTransport`."""
        clock = self._clocks[channel]
        clock.requested.clear()
        clock.late.clear()

    def answers(self, channel: int) -> list[tuple[int, int]]:
        """See :class:`sw_driver.axdimm.transport.TimedTransport`."""
        clock = self._clocks[channel]
        requested, clock.requested = clock.requested, []
        late, clock.late = clock.late, []
        if not requested:
            return late
        last, target = requested[-1]
        last += target.size // LINE_BYTES - 1
        clock.polled = clock.carried_out.get(last, clock.fabric_cycles)
        if self._dram_end <= LINE_BYTES * last < arbiter_window(self.capacity_bytes):
            clock.polled += PORT_TO_SAMPLE_FABRIC_CYCLES
        self._finish_run(clock, clock.polled)
        clock.fabric_cycles += self._read_latency - LINK_FABRIC_CYCLES_PER_LINE
        self._count_late(channel, late)
        for line, target in requested:
            for first, lines in _in_time(line, target.size // LINE_BYTES, late):
                place = LINE_BYTES * (first - line)
                nbytes = LINE_BYTES * lines
                target[place : place + nbytes] = GoldenTransport.read_lines(
                    self, channel, LINE_BYTES * first, nbytes
                )
        return late

    def pause(self, channel: int, interval_fabric_cycles: int, left_fabric_cycles: int) -> int:
        """See :class:`sw_driver.axdimm.transport.TimedTransport`.

        Nothing changes before the end of a switch or run, so polls until then are skipped.
        """
        clock = self._clocks[channel]
        period = self._read_latency + interval_fabric_cycles
        left = left_fabric_cycles
        if clock.polled < clock.switched_cycle:
            left = min(left, clock.switched_cycle - clock.polled)
        elif clock.run is not None:
            left = min(left, clock.dram_cycle - clock.polled)
        return max(1, -(-left // period)) * period - self._read_latency

    # Time.

    def _owns_dram(self, channel: int, address: int) -> bool:
        """Return True if the host can access the DRAM at ``address``."""
        normal = self._states[channel].mode == MODES["normal"]
        return normal and address < kernel_window(self.capacity_bytes)

    def _move(self, channel: int, line: int, nbytes: int, *, write: bool) -> list[tuple[int, int]]:
        """Move lines over the free link; return the late stretches."""
        clock = self._clocks[channel]
        clock.call_cycle = clock.fabric_cycles
        clock.call_address = LINE_BYTES * line
        in_dram = self._dram_bytes(clock.call_address, nbytes)
        late: list[tuple[int, int]] = []
        for first, lines in (
            (line, in_dram // LINE_BYTES),
            (line + in_dram // LINE_BYTES, (nbytes - in_dram) // LINE_BYTES),
        ):
            if lines:
                late += self._move_stretch(clock, channel, first, lines, write=write)
        return late

    def _move_stretch(
        self, clock: _Clock, channel: int, line: int, lines: int, *, write: bool
    ) -> list[tuple[int, int]]:
        cycle = clock.fabric_cycles
        if self._owns_dram(channel, line * LINE_BYTES):
            transfer = clock.traffic.transfer(write=write, line=line, lines=lines, cycle=cycle)
            clock.fabric_cycles = transfer.last_cycle + LINK_FABRIC_CYCLES_PER_LINE
            return transfer.late
        late: list[tuple[int, int]] = []
        for place in range(lines):
            request_cycle = cycle + LINK_FABRIC_CYCLES_PER_LINE * place
            clock.carried_out[line + place] = carried_out = clock.traffic.register(request_cycle)
            if not write and not clock.traffic.in_time(request_cycle, carried_out):
                late.append((line + place, 1))
        clock.fabric_cycles += LINK_FABRIC_CYCLES_PER_LINE * lines
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
        """Advance the DRAM without requests."""
        if until > clock.dram_cycle:
            before = clock.dram
            clock.dram = before.after_rest(self._module, until - clock.dram_cycle)
            clock.dram_cycle = until
            # A refresh closes all rows with a precharge.
            clock.precharges += bool(before.open_rows) and not clock.dram.open_rows

    # The registers.

    def _register(self, state: GoldenChannel, address: int) -> tuple[RegisterMap, str] | None:
        register = super()._register(state, address)
        clock = self._clocks[state.number]
        clock.sampled = clock.carried_out.get(address // LINE_BYTES, clock.fabric_cycles)
        if register is not None and address < arbiter_window(self.capacity_bytes):
            place = (address - clock.call_address) // LINE_BYTES
            request_cycle = clock.call_cycle + LINK_FABRIC_CYCLES_PER_LINE * place
            taken = max(request_cycle + START_LATENCY_FABRIC_CYCLES, clock.register_cycle)
            clock.register_cycle = taken + REGISTER_FABRIC_CYCLES
        return register

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
        formats: Formats,
        count: int,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
    ) -> None:
        clock = self._clocks[state.number]
        clock.run = predict(
            self._module,
            TensorAddresses(inputs=inputs, outputs=outputs),
            count,
            clock.dram,
            unit_latency=chosen.latency,
            sums=bool(chosen.sums),
            formats=formats,
            skipped=formats.skip_not_finite and state.not_finite > 0,
        )
        clock.dram = clock.run.state
        clock.dram_cycle += clock.run.fabric_cycles

    def _finish_run(self, clock: _Clock, cycle: int) -> None:
        """Count the run in progress if it is over in ``cycle``."""
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
            # The count includes a refresh that is decided but not yet issued; leave it out.
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


def _in_time(line: int, lines: int, late: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the stretches of ``lines`` lines from ``line`` on that are not in ``late``."""
    end = line + lines
    for first, count in late:
        if line <= first < end:
            if first > line:
                yield line, first - line
            line = first + count
    if line < end:
        yield line, end - line
