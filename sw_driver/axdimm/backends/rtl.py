"""The Verilated RTL in this process, behind the driver's transport interface."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import weakref
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hw.axdimm.config import ModuleConfig
from hw.dram.timing import DramTiming
from hw.sim.dram_device import Violation
from sw_driver.axdimm.transport import (
    LINE_BYTES,
    LINK_FABRIC_CYCLES_PER_LINE,
    TimedTransport,
    alone,
    check_bytes,
)
from sw_driver.device.clock import Domain
from sw_driver.device.errors import InvalidArgumentError
from sw_driver.device.transport import DeviceFault
from sw_driver.files import Unfinished

from ...simulator.library import load_library, verilated_library
from ...simulator.traces import is_whole_fst, merge_dram_traces
from .storage import DramStorage

__all__ = ["VerilatedTransport", "build_library", "wave_files"]

_OK, _TIMEOUT, _VIOLATION = range(3)

SETTLE_FABRIC_CYCLES = 512
"""Fabric cycles after reset until a channel accepts requests."""

SETTLE_LIMIT_FABRIC_CYCLES = 100_000

_STORAGE = "channel__DOT__dram__DOT__device__DOT__mem"
"""Verilator's name of the DRAM model's array, see :mod:`hw.sim.channel`."""

_C_FLAGS = (
    f"-DNEARMEM_STORAGE={_STORAGE}",
    f"-DNEARMEM_LINK_CYCLES_PER_LINE={LINK_FABRIC_CYCLES_PER_LINE}",
)

# All functional units run one copy of the code, which stays in the cache.
_SETTINGS = '`verilator_config\nno_inline -module "*_unit"\nno_inline -module "*_unit_fp32_flush"\n'

HARNESS = Path(__file__).with_name("harness.cpp")

_NOT_ALL = "not all of it could be written, is the disk full?"

_u64 = ctypes.c_uint64


class VerilatedTransport(TimedTransport):
    """The module's RTL, one model for each channel.

    A channel's passed time is simulated when its state is needed. A second host thread may simulate
    it earlier, while another channel is simulated.

    Parameters
    ----------
    config: the module.
    wave: file for a waveform (FST), written by :meth:`close`. With several channels ``.chN`` is
        inserted into the name.
    wave_window: start and exclusive end of the waveform in fabric cycles of the module's time; None
        for all.
    dram_trace: file for the DRAM commands (CSV), written by :meth:`close`.
    announce: function called with a message when the simulator must be built first.
    memory_timing, arithmetic, shared, faults: see :func:`build_library`.

    Raises
    ------
    BuildError: the simulator cannot be built.

    Examples
    --------
    >>> from hw.axdimm.config import configure
    >>> from nearmem import Axdimm
    >>> with Axdimm(VerilatedTransport(config=configure("tiny"))) as device:
    ...     device.poke(0, 0, b"near memory")
    ...     print(device.peek(0, 5, 6))
    b'memory'
    """

    name = "rtl"

    WINDOW_FABRIC_CYCLES = 4096
    """Fabric cycles simulated in one step; results do not depend on it."""

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
        faults: bool = False,
    ) -> None:
        super().__init__(config.channels)
        self.domain = Domain(
            mhz=config.fabric_mhz, question_cycles=config.read_latency_fabric_cycles
        )
        self.config = config
        self.capacity_bytes = config.capacity_bytes
        self.fabric_mhz = config.fabric_mhz
        self.subnormals = config.subnormals
        self.late_reads = [0] * config.channels
        """Number of late and repeated host reads, by channel."""
        self._dram_trace = dram_trace
        self._wave_window = wave_window
        self._library = load_library(
            build_library(
                config,
                wave=wave is not None,
                announce=announce,
                memory_timing=memory_timing,
                arithmetic=arithmetic,
                shared=shared,
                faults=faults,
            ),
            HARNESS,
        )
        self._module = self._library.nm_open(config.channels, config.read_latency_fabric_cycles)
        # Closes a transport that the program did not close; not at exit, where others close it.
        self._finalizer = weakref.finalize(self, self._library.nm_close, self._module)
        self._finalizer.atexit = False
        # Files in progress, by channel.
        self._waves: list[Unfinished] = []
        self._traces: list[Unfinished] = []
        # Destinations of the answers, by channel.
        self._targets: list[list[NDArray[np.uint8]]] = [[] for _ in range(self.channels)]
        geometry = config.part.geometry
        self._storage: list[DramStorage] = []
        for channel in range(config.channels):
            address = self._library.nm_storage(self._module, channel)
            raw = ctypes.cast(address, ctypes.POINTER(ctypes.c_uint8))
            lines = np.ctypeslib.as_array(raw, shape=(geometry.lines, LINE_BYTES))
            self._storage.append(DramStorage(geometry, lines))
            if dram_trace is not None:
                self._traces.append(Unfinished(self.part(dram_trace, channel)))
                path = os.fsencode(self._traces[-1].part)
                if self._library.nm_trace(self._module, channel, path):
                    raise ValueError(f"cannot write the DRAM trace {str(dram_trace)!r}")
            if wave is not None:
                self._waves.append(Unfinished(wave_files(wave, self.channels)[channel]))
                path = os.fsencode(self._waves[-1].part)
                times = (round(500_000 / config.fabric_mhz), *(wave_window or (0, 2**64 - 1)))
                if self._library.nm_wave(self._module, channel, path, *times):
                    raise ValueError(f"cannot write the waveform {str(wave)!r}")
            self._pass(channel, SETTLE_FABRIC_CYCLES)

    @staticmethod
    def part(path: Path, channel: int) -> Path:
        """Return the path of one channel's file."""
        return path.with_name(f"{path.stem}.ch{channel}{path.suffix}")

    def _check(
        self, channel: int, address: int = 0, nbytes: int = 0, *, lines: bool = True
    ) -> None:
        """Raise errors of a call before it reaches the C code, which checks nothing."""
        self.domain.check_open()
        check_bytes(self, channel, address, nbytes, lines=lines)

    def _call(self, function: str, channel: int, *arguments: Any) -> Any:
        # One thread at a time: the library has no locks.
        with self.domain.clock.within():
            self._check(channel)
            return getattr(self._library, f"nm_{function}")(self._module, channel, *arguments)

    def _do(self, channel: int, label: str, function: str, *arguments: Any) -> None:
        """Make a call to the library, called ``label`` in messages; raise its errors."""
        status = self._call(function, channel, *arguments)
        if status == _OK:
            return
        if status == _TIMEOUT:
            raise DeviceFault(
                f"channel {channel}: requests still in flight after "
                f"{SETTLE_LIMIT_FABRIC_CYCLES} fabric cycles"
            )
        if status == _VIOLATION:
            tck = _u64()
            code = self._library.nm_violation(self._module, channel, ctypes.byref(tck))
            raise DeviceFault(
                f"channel {channel}: DRAM rule {Violation(code).name} broken at tCK {tck.value}, "
                f"while {label}; the simulation is not to be trusted from there on"
            )
        raise DeviceFault(f"channel {channel}: the device stopped answering while {label}")

    def forget(self, channel: int) -> None:
        """See :class:`sw_driver.axdimm.transport.TimedTransport`."""
        if self._targets[channel]:
            self._call("forget", channel)
            self._targets[channel].clear()

    def put(self, channel: int, start: int, line: int, data: NDArray[np.uint8]) -> None:
        """See :class:`sw_driver.axdimm.transport.TimedTransport`."""
        source = np.ascontiguousarray(data, dtype=np.uint8)
        label = f"writing {source.size} bytes at {LINE_BYTES * line:#x}"
        lines = source.size // LINE_BYTES
        self._do(channel, label, "put", start, line, source.ctypes.data, lines)

    def ask(self, channel: int, start: int, line: int, target: NDArray[np.uint8]) -> None:
        """See :class:`sw_driver.axdimm.transport.TimedTransport`."""
        self._targets[channel].append(target)
        label = f"reading {target.size} bytes at {LINE_BYTES * line:#x}"
        lines = target.size // LINE_BYTES
        self._do(channel, label, "ask", start, line, target.ctypes.data, lines)

    def answers(self, channel: int) -> list[tuple[int, int]]:
        """See :class:`sw_driver.axdimm.transport.TimedTransport`."""
        count = _u64()
        self._do(channel, "answering the host", "answers", ctypes.byref(count))
        self._targets[channel].clear()
        if not count.value:
            return []
        stretches = np.empty((count.value, 2), dtype=np.uint64)
        self._call("late", channel, stretches.ctypes.data)
        self.late_reads[channel] += int(stretches[:, 1].sum())
        return [(first, lines) for first, lines in stretches.tolist()]

    def rest(self, channel: int, until: int) -> None:
        """See :class:`sw_driver.axdimm.transport.TimedTransport`."""
        self._call("rest", channel, until)

    def stand_still(self, channel: int, until: int) -> None:
        """See :class:`sw_driver.axdimm.transport.TimedTransport`."""
        self._call("stand_still", channel, until)

    def wake(self, channel: int, at: int | None) -> None:
        """See :class:`sw_driver.axdimm.transport.TimedTransport`."""
        super().wake(channel, at)
        if not self.domain.closed:
            self._call("wake", channel, at or 0)

    def catch_up(self, channel: int) -> Generator[None, None, None]:
        """See :class:`sw_driver.axdimm.transport.TimedTransport`."""
        while self._call("behind", channel):
            # Other channels at rest are simulated in parallel.
            self.domain.now = self.now(channel)
            yield
            self._do(channel, "waiting", "catch_up", self.WINDOW_FABRIC_CYCLES)

    def _pass(self, channel: int, fabric_cycles: int) -> None:
        """Advance the channel, and simulate it."""
        self._call("rest", channel, self.now(channel) + fabric_cycles)
        self._call("catch_up", channel, self._call("behind", channel))

    @alone
    def stream(
        self,
        channel: int,
        addresses: NDArray[np.uint64],
        writes: NDArray[np.bool_],
        *,
        interval_fabric_cycles: int,
    ) -> tuple[NDArray[np.uint32], int]:
        """Request a line at each address, read or written, for measurements.

        Requests are ``interval_fabric_cycles`` apart, more where the channel has no room. Read data
        is discarded; written data is a pattern. Nothing else may use the link at that time.

        Returns the latency of each read in fabric cycles, from request to data at the arbiter, and
        the number of reads that were late for the host.
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
        inputs = (lines.size, lines.ctypes.data, is_write.ctypes.data, interval_fabric_cycles)
        outputs = (latencies.ctypes.data, ctypes.byref(late))
        self._begin(channel)
        self._do(channel, f"streaming {lines.size} lines", "stream", *inputs, *outputs)
        self.domain.now = self.now(channel)
        return latencies, late.value

    def _settle(self, channel: int) -> None:
        """Advance the channel until its earlier link traffic has reached the DRAM."""
        label = "waiting for requests in flight"
        self._do(channel, label, "settle", SETTLE_LIMIT_FABRIC_CYCLES)

    @alone
    def backdoor_write(self, channel: int, address: int, data: NDArray[np.uint8]) -> None:
        """See :class:`sw_driver.axdimm.transport.Transport`."""
        self._check(channel, address, data.size, lines=False)
        self._settle(channel)
        self._storage[channel].write(address, data)

    @alone
    def backdoor_read(self, channel: int, address: int, nbytes: int) -> NDArray[np.uint8]:
        """See :class:`sw_driver.axdimm.transport.Transport`."""
        self._check(channel, address, nbytes, lines=False)
        self._settle(channel)
        return self._storage[channel].read(address, nbytes)

    def fabric_cycles(self, channel: int) -> int:
        """See :class:`sw_driver.axdimm.transport.Transport`."""
        return self._call("cycles", channel)

    def now(self, channel: int) -> int:
        """See :class:`sw_driver.axdimm.transport.Transport`."""
        return self._call("now", channel)

    def run_bare(self, fabric_cycles: Sequence[int]) -> None:
        """Run each channel's clock for its number of cycles, in a host thread of its own.

        This measures the simulator's speed; nothing else happens.
        """
        with self.domain.clock.within(), ThreadPoolExecutor(self.channels) as threads:
            self._check(0)
            bare = partial(self._library.nm_bare, self._module)
            list(threads.map(bare, range(self.channels), fabric_cycles))

    def close(self) -> None:
        """Close the device once calls of other threads are over; write waveforms and DRAM commands.

        Raises ``OSError`` if a file could not be written completely, and
        :class:`~sw_driver.device.errors.InvalidArgumentError` if the waveform's window is empty for
        all channels; then there is no file.
        """
        with self.domain.clock.within():
            self._close()

    def _close(self) -> None:
        if self._module is None:
            return
        with ExitStack() as files:
            for file in (*self._waves, *self._traces):
                files.callback(file.drop)
            if self._waves or self._traces:
                # All channels' traces end at the same time, so that no refresh seems to be missing.
                cycles = [self.fabric_cycles(channel) for channel in range(self.channels)]
                for channel, done in enumerate(cycles):
                    self._pass(channel, max(cycles) - done if self._traces else 0)
            end = max(self.now(channel) for channel in range(self.channels))
            has_wave = not all(
                self._library.nm_wave_empty(self._module, channel)
                for channel in range(self.channels)
            )
            self._storage.clear()
            whole = self._finalizer() == _OK
            self._module = None
            super().close()
            if not any(file.is_given_up for file in (*self._waves, *self._traces)):
                self._keep_files(has_wave, whole, end)

    def _keep_files(self, has_wave: bool, whole_traces: bool, end: int) -> None:
        """Keep the waveforms if they are not empty, and the traces as one file."""
        for wave in self._waves if has_wave else ():
            if not is_whole_fst(wave.part):
                raise OSError(errno.EIO, _NOT_ALL, str(wave.path))
            wave.keep()
        if self._dram_trace is not None:
            if not whole_traces:
                raise OSError(errno.EIO, _NOT_ALL, str(self._dram_trace))
            parts = [trace.part for trace in self._traces]
            merge_dram_traces(parts, self._dram_trace, self.config.part)
        if self._waves and not has_wave:
            begin, until = self._wave_window or (0, end)
            why = (
                f"the simulated time ended at {end}: begin earlier"
                if begin >= end
                else f"all channels' clocks stood still until {until}: take more cycles"
            )
            raise InvalidArgumentError(
                f"the waveform from fabric cycle {begin} on would be empty, for {why}",
                wave_window=self._wave_window,
            )


def build_library(
    config: ModuleConfig,
    *,
    wave: bool = False,
    announce: Callable[[str], None] | None = None,
    memory_timing: DramTiming | None = None,
    arithmetic: bool = True,
    shared: bool = False,
    faults: bool = False,
) -> Path:
    """Return the shared library of ``config``, and build it unless it is already built.

    ``wave``, ``faults`` and ``announce`` are those of
    :func:`~sw_driver.simulator.library.verilated_library`, the others those of
    :class:`hw.sim.channel.SimulatedChannel`. With ``faults`` a broken DRAM rule ends no call.

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
        about=_about(config, wave=wave, arithmetic=arithmetic, faults=faults),
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
        faults=faults,
        announce=announce,
    )


def wave_files(wave: Path, channels: int) -> list[Path]:
    """Return the files of the waveform ``wave``, one for each of a module's channels."""
    if channels == 1:
        return [wave]
    return [VerilatedTransport.part(wave, channel) for channel in range(channels)]


def _about(config: ModuleConfig, *, wave: bool, arithmetic: bool, faults: bool) -> str:
    extras = [
        *(["bits that can be flipped"] if faults else []),
        *(["narrow formats"] if config.narrow else []),
        *(["waveform"] if wave else []),
        *([] if arithmetic else ["delays in place of the units"]),
    ]
    about = (
        f"the simulator of a channel ({', '.join(config.rules)}, {config.lanes} lanes, blocks of "
        f"{config.block_bytes} bytes, {config.capacity_bytes >> 20} MiB"
    )
    return ", ".join([about, *extras]) + ")"


def _untraced(lanes: int) -> str:
    """Return Verilator settings that leave all units but the first out of a waveform.

    That saves nine tenths of its size.
    """
    scope = "channel.channel.kernel.lanes.unit_"
    return "".join(f'tracing_off -scope "{scope}{lane}*"\n' for lane in range(1, lanes))
