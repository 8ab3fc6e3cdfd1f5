"""The Verilated RTL in this process, behind the driver's transport protocol."""

from __future__ import annotations

import ctypes
import errno
import json
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hw.axdimm.config import ModuleConfig
from hw.dram.timing import DramTiming
from hw.sim.dram_device import Violation
from sw_driver.device.errors import ClosedError
from sw_driver.device.transport import (
    LINE_BYTES,
    LINK_FABRIC_CYCLES_PER_LINE,
    DeviceFault,
    DeviceTimeout,
    check_bytes,
)

from ...simulator.library import load_library, verilated_library
from ...simulator.traces import merge_dram_traces
from .storage import DramStorage

__all__ = ["VerilatedTransport", "build_library", "wave_files"]

_OK, _TIMEOUT, _VIOLATION, _LATE, _LOST = range(5)

SETTLE_FABRIC_CYCLES = 512
"""Fabric cycles after reset until a channel takes requests."""

SETTLE_LIMIT_FABRIC_CYCLES = 100_000

_STORAGE = "channel__DOT__dram__DOT__device__DOT__mem"
"""Verilator's name of the DRAM model's array, see :mod:`hw.sim.channel`."""

_C_FLAGS = (
    f"-DNEARMEM_STORAGE={_STORAGE}",
    f"-DNEARMEM_LINK_CYCLES_PER_LINE={LINK_FABRIC_CYCLES_PER_LINE}",
)

# One copy of the code of a functional unit, run for each of them: it stays in the cache.
_SETTINGS = '`verilator_config\nno_inline -module "*_unit"\nno_inline -module "*_unit_fp32_flush"\n'

HARNESS = Path(__file__).with_name("harness.cpp")

_u64 = ctypes.c_uint64


class VerilatedTransport:
    """The module's RTL, one model a channel, run by the threads that call.

    A channel's clock stands still while no call is made for it. A thread's calls follow each other
    in simulated time also when they are for different channels; what several threads do at once
    shares the host link by simulated time.

    Parameters
    ----------
    config: the module.
    wave: where to write a waveform (FST); with several channels ``.chN`` is put into the name.
    wave_window: the waveform is of these fabric cycles of the module's time, from the first to
        before the second; None: of all.
    dram_trace: where :meth:`close` writes the DRAM commands (CSV).
    announce: told when the simulator has to be built first.
    memory_timing, arithmetic, shared: see :func:`build_library`.

    Raises
    ------
    BuildError: the simulator cannot be built.
    """

    timed = True
    name = "rtl"

    def __init__(
        self,
        *,
        config: ModuleConfig,
        wave: Path | None = None,
        wave_window: tuple[int, int] | None = None,
        dram_trace: Path | None = None,
        announce: Callable[[str], None] | None = None,
        memory_timing: DramTiming | None = None,
        arithmetic: bool = True,
        shared: bool = False,
    ) -> None:
        self.config = config
        self.channels = config.channels
        self.capacity_bytes = config.capacity_bytes
        self.fabric_mhz = config.fabric_mhz
        self.subnormals = config.subnormals
        self.late_reads = [0] * config.channels
        """Host reads that came late and were repeated, of each channel."""
        self._dram_trace = dram_trace
        self._library = load_library(
            build_library(
                config,
                wave=wave is not None,
                announce=announce,
                memory_timing=memory_timing,
                arithmetic=arithmetic,
                shared=shared,
            ),
            HARNESS,
        )
        self._module = self._library.nm_open(config.channels, config.read_latency_fabric_cycles)
        # For a transport that nobody closes. Not at the program's end, when others close it.
        self._finalizer = weakref.finalize(self, self._library.nm_close, self._module)
        self._finalizer.atexit = False
        self._host = threading.local()
        self._latest = 0
        geometry = config.part.geometry
        self._storage: list[DramStorage] = []
        for channel in range(config.channels):
            address = self._library.nm_storage(self._module, channel)
            raw = ctypes.cast(address, ctypes.POINTER(ctypes.c_uint8))
            lines = np.ctypeslib.as_array(raw, shape=(geometry.lines, LINE_BYTES))
            self._storage.append(DramStorage(geometry, lines))
            if dram_trace is not None and self._library.nm_trace(
                self._module, channel, str(self.part(dram_trace, channel)).encode()
            ):
                raise ValueError(f"cannot write the DRAM trace {str(dram_trace)!r}")
            if wave is not None:
                path = wave_files(wave, self.channels)[channel]
                times = (round(500_000 / config.fabric_mhz), *(wave_window or (0, 2**64 - 1)))
                if self._library.nm_wave(self._module, channel, str(path).encode(), *times):
                    raise ValueError(f"cannot write the waveform {str(wave)!r}")
            self._library.nm_idle(self._module, channel, SETTLE_FABRIC_CYCLES)

    @staticmethod
    def part(path: Path, channel: int) -> Path:
        """The file of one channel."""
        return path.with_name(f"{path.stem}.ch{channel}{path.suffix}")

    def _check(
        self, channel: int, address: int = 0, nbytes: int = 0, *, lines: bool = True
    ) -> None:
        """Raises what is wrong with a call before it goes to C, which checks nothing."""
        if self._module is None:
            raise ClosedError("the device was closed: open it again")
        check_bytes(self, channel, address, nbytes, lines=lines)

    def _call(self, function: str, channel: int, *arguments: Any) -> Any:
        self._check(channel)
        return getattr(self._library, f"nm_{function}")(self._module, channel, *arguments)

    def _begin(self) -> int:
        """The host's simulated time in the calling thread, in fabric cycles."""
        return getattr(self._host, "now", self._latest)

    def _end(self, channel: int, status: int, what: str) -> None:
        now = self._library.nm_now(self._module, channel)
        self._host.now = max(self._begin(), now)
        self._latest = max(self._latest, now)
        if status in (_OK, _TIMEOUT):
            return
        if status == _VIOLATION:
            tck = _u64()
            code = self._library.nm_violation(self._module, channel, ctypes.byref(tck))
            raise DeviceFault(
                f"channel {channel}: DRAM rule {Violation(code).name} broken at tCK {tck.value}, "
                f"while {what}; the simulation is not to be trusted from there on"
            )
        if status == _LATE:
            raise DeviceFault(f"channel {channel}: host reads stayed late while {what}")
        raise DeviceFault(f"channel {channel}: the device stopped answering while {what}")

    def write_lines(self, channel: int, address: int, data: NDArray[np.uint8]) -> None:
        """See :class:`sw_driver.device.transport.Transport`."""
        source = np.ascontiguousarray(data, dtype=np.uint8)
        self._check(channel, address, source.size)
        where = (self._begin(), address // LINE_BYTES)
        lines = source.size // LINE_BYTES
        status = self._call("write", channel, *where, source.ctypes.data, lines)
        self._end(channel, status, f"writing {source.size} bytes at {address:#x}")

    def read_lines(self, channel: int, address: int, nbytes: int) -> NDArray[np.uint8]:
        """See :class:`sw_driver.device.transport.Transport`."""
        self._check(channel, address, nbytes)
        data = np.empty(nbytes, dtype=np.uint8)
        late = _u64(0)
        where = (self._begin(), address // LINE_BYTES)
        lines = nbytes // LINE_BYTES
        status = self._call("read", channel, *where, data.ctypes.data, lines, ctypes.byref(late))
        self.late_reads[channel] += late.value
        self._end(channel, status, f"reading {nbytes} bytes at {address:#x}")
        return data

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
        self._check(channel, address, LINE_BYTES)
        last = _u64(0)
        awaited = (self._begin(), address // LINE_BYTES, mask, value)
        times = (interval_fabric_cycles, timeout_fabric_cycles)
        status = self._call("poll", channel, *awaited, *times, ctypes.byref(last))
        self._end(channel, status, f"polling {address:#x}")
        if status == _TIMEOUT:
            raise DeviceTimeout(
                f"channel {channel}: register at {address:#x} read {last.value:#x} after "
                f"{timeout_fabric_cycles} fabric cycles, awaited {value:#x} in the bits {mask:#x}"
            )
        return last.value

    def stream(
        self,
        channel: int,
        addresses: NDArray[np.uint64],
        writes: NDArray[np.bool_],
        *,
        interval_fabric_cycles: int,
    ) -> tuple[NDArray[np.uint32], int]:
        """Asks for a line at each address, read or written, for measurements.

        The requests are ``interval_fabric_cycles`` apart, more where the channel has no room. What
        is read is thrown away; what is written is a pattern.

        Returns the latency of each read in fabric cycles, from its request to the arrival of its
        data at the arbiter, and how many of the reads were too late for the host.
        """
        for address in (addresses.min(initial=0), addresses.max(initial=0)):
            self._check(channel, int(address), LINE_BYTES)
        lines = np.ascontiguousarray(addresses // LINE_BYTES, dtype=np.uint64)
        is_write = np.ascontiguousarray(writes, dtype=np.uint8)
        if interval_fabric_cycles < LINK_FABRIC_CYCLES_PER_LINE:
            raise ValueError(
                f"interval_fabric_cycles must be at least {LINK_FABRIC_CYCLES_PER_LINE}, what the "
                f"link takes for a line, got {interval_fabric_cycles!r}"
            )
        if lines.shape != is_write.shape:
            raise ValueError(f"{lines.size} addresses for {is_write.size} requests")
        latencies = np.empty(int(lines.size - is_write.sum()), dtype=np.uint32)
        late = _u64(0)
        asked = (lines.size, lines.ctypes.data, is_write.ctypes.data, interval_fabric_cycles)
        found = (latencies.ctypes.data, ctypes.byref(late))
        status = self._call("stream", channel, self._begin(), *asked, *found)
        self._end(channel, status, f"streaming {lines.size} lines")
        return latencies, late.value

    def _settle(self, channel: int) -> None:
        """Lets the channel's time pass until what went over the link before is in the DRAM."""
        status = self._library.nm_settle(self._module, channel, SETTLE_LIMIT_FABRIC_CYCLES)
        if status == _TIMEOUT:
            raise DeviceFault(
                f"channel {channel}: requests still in flight after "
                f"{SETTLE_LIMIT_FABRIC_CYCLES} fabric cycles"
            )
        self._end(channel, status, "waiting for requests in flight")

    def backdoor_write(self, channel: int, address: int, data: NDArray[np.uint8]) -> None:
        """See :class:`sw_driver.device.transport.Transport`."""
        self._check(channel, address, data.size, lines=False)
        self._settle(channel)
        self._storage[channel].write(address, data)

    def backdoor_read(self, channel: int, address: int, nbytes: int) -> NDArray[np.uint8]:
        """See :class:`sw_driver.device.transport.Transport`."""
        self._check(channel, address, nbytes, lines=False)
        self._settle(channel)
        return self._storage[channel].read(address, nbytes)

    def fabric_cycles(self, channel: int) -> int:
        """See :class:`sw_driver.device.transport.Transport`."""
        return self._call("cycles", channel)

    def now(self, channel: int) -> int:
        """The module's time at the channel, in fabric cycles, idle time included."""
        return self._call("now", channel)

    def host_time(self) -> int:
        """See :class:`sw_driver.device.transport.Transport`."""
        return self._begin()

    def set_host_time(self, fabric_cycle: int) -> None:
        """See :class:`sw_driver.device.transport.Transport`."""
        self._host.now = fabric_cycle

    def engage(self, channel: int, fabric_cycle: int) -> None:
        """See :class:`sw_driver.device.transport.Transport`."""
        self._call("engage", channel, fabric_cycle)

    def disengage(self, channel: int) -> None:
        """See :class:`sw_driver.device.transport.Transport`."""
        self._call("disengage", channel)

    def record_link(self, record: bool) -> None:
        """See :class:`sw_driver.device.transport.Transport`."""
        for channel in range(self.channels):
            self._call("link_log", channel, record)

    def link_uses(self, channel: int) -> NDArray[np.uint64]:
        """See :class:`sw_driver.device.transport.Transport`."""
        count = self._call("link_uses", channel, None, 0)
        uses = np.empty((count, 2), dtype=np.uint64)
        if count:
            self._call("link_uses", channel, uses.ctypes.data, count)
        return uses

    def run_bare(self, channel: int, fabric_cycles: int) -> None:
        """Lets the channel's clock run, with nothing else done: the simulator's own speed."""
        self._call("bare", channel, fabric_cycles)

    def close(self) -> None:
        """See :class:`sw_driver.device.transport.Transport`; writes the trace of DRAM commands.

        Raises ``OSError`` if that could not be written in full; then there is none.
        """
        if self._module is None:
            return
        if self._dram_trace is not None:
            # All channels' traces end at the same time, so that refreshes seem to be missing in
            # none of them.
            cycles = [self.fabric_cycles(channel) for channel in range(self.channels)]
            for channel, done in enumerate(cycles):
                self._library.nm_idle(self._module, channel, max(cycles) - done)
        self._storage.clear()
        status = self._finalizer()
        self._module = None
        if self._dram_trace is not None:
            parts = [self.part(self._dram_trace, index) for index in range(self.channels)]
            try:
                if status != _OK:
                    message = "not all of it could be written, is the disk full?"
                    raise OSError(errno.EIO, message, str(self._dram_trace))
                merge_dram_traces(parts, self._dram_trace, self.config.part)
            finally:
                for part in parts:
                    part.unlink(missing_ok=True)


def build_library(
    config: ModuleConfig,
    *,
    wave: bool = False,
    announce: Callable[[str], None] | None = None,
    memory_timing: DramTiming | None = None,
    arithmetic: bool = True,
    shared: bool = False,
) -> Path:
    """The shared library of ``config``, built unless one of the same sources is there.

    ``wave`` and ``announce`` are those of :func:`~sw_driver.simulator.library.verilated_library`,
    the rest is that of :class:`hw.sim.channel.SimulatedChannel`.

    Raises :class:`~sw_driver.simulator.runtime.BuildError`.
    """

    def design() -> Any:
        from hw.sim.channel import SimulatedChannel

        return SimulatedChannel(
            config, memory_timing=memory_timing, arithmetic=arithmetic, shared=shared
        )

    return verilated_library(
        design,
        top="channel",
        about=_about(config, wave=wave, arithmetic=arithmetic),
        parameters=[
            json.dumps(config.describe(), sort_keys=True),
            repr(memory_timing),
            repr((arithmetic, shared)),
        ],
        harness=HARNESS,
        c_flags=_C_FLAGS,
        settings=_SETTINGS + (_untraced(config.lanes) if wave else ""),
        unused=["pim"],
        wave=wave,
        announce=announce,
    )


def wave_files(wave: Path, channels: int) -> list[Path]:
    """The files of the waveform ``wave``, one for each of a module's channels."""
    if channels == 1:
        return [wave]
    return [VerilatedTransport.part(wave, channel) for channel in range(channels)]


def _about(config: ModuleConfig, *, wave: bool, arithmetic: bool) -> str:
    with_what = [
        *(["waveform"] if wave else []),
        *([] if arithmetic else ["delays in place of the units"]),
    ]
    about = (
        f"the simulator of a channel ({', '.join(config.rules)}, {config.lanes} lanes, blocks of "
        f"{config.block_bytes} bytes, {config.capacity_bytes >> 20} MiB"
    )
    return ", ".join([about, *with_what]) + ")"


def _untraced(lanes: int) -> str:
    """Verilator settings that leave all units but the first out of a waveform, nine tenths of its
    size."""
    scope = "channel.channel.kernel.lanes.unit_"
    return "".join(f'tracing_off -scope "{scope}{lane}*"\n' for lane in range(1, lanes))
