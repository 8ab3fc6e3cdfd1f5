"""Backend ``rtl``: the Verilated pool with simulated vaults, in this process."""

from __future__ import annotations

import ctypes
import errno
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hw.pim.config import BEAT_BYTES, PimConfig
from hw.pim.vault.timing import VaultPart, VaultTiming, vault_part
from sw_driver.device.clock import Domain, Steps, finished
from sw_driver.device.streams import whole_call
from sw_driver.device.transport import DeviceFault, DeviceTimeout
from sw_driver.files import Unfinished
from sw_driver.pim.registers import PoolRegisters
from sw_driver.pim.transport import (
    ACCESS_CYCLES,
    QUIET_LIMIT_CYCLES,
    TURN,
    PimTransport,
    alone,
    no_memory,
)
from sw_driver.simulator.library import load_library
from sw_driver.simulator.parts import parts_library
from sw_driver.simulator.traces import trace_head

if TYPE_CHECKING:
    from hw.sim.assembly import Assembly

__all__ = ["RtlPim"]

_OK, _WAITING, _REFUSED = range(3)

_REGISTER_LIMIT_CYCLES = 1000
"""Most cycles of a register access; a sound one takes five."""

_FIRST_STEP_CYCLES = 256
_LAST_STEP_CYCLES = 4096
"""Most cycles between two checks of a transfer's progress; the first step is shorter."""

_CALL_CYCLES = 1 << 16
"""Cycles after which a long wait returns to Python, where it can be interrupted."""

_TRACE_COLUMNS = "tck,vault,command,layer,bank,row,column"

_HARNESS = Path(__file__).with_name("rtl_harness.cpp")

_u64 = ctypes.c_uint64


class RtlPim(PimTransport):
    """A :class:`~sw_driver.pim.transport.PimTransport` over the RTL, with time.

    The clock stands still between calls.

    Parameters
    ----------
    config: configuration of the stack.
    part: timing and organisation of the vaults.
    memory_timing: timing that the simulated vaults check, by default the timing that their
        controllers keep; another one provokes a violation.
    quiet_limit_cycles: cycles without any change in the pool until a read or write of memory times
        out.
    dram_trace: path of a CSV file with every command to a vault's DRAM, written by :meth:`close`.
    announce: callback that gets a message before a build of the simulator.

    Raises
    ------
    BuildError: the simulator cannot be built.
    OSError: the trace cannot be written.

    Examples
    --------
    >>> import numpy as np
    >>> from hw.pim.config import PIM_PRESETS
    >>> from nearmem import Pim
    >>> with Pim(RtlPim(PIM_PRESETS["tiny"])) as pim:
    ...     pim.write_memory(0, np.arange(4, dtype=np.float32))
    ...     print(pim.read_memory(8, 8).view(np.float32))
    [2. 3.]
    """

    name = "rtl"
    timed = True
    computes = True

    def __init__(
        self,
        config: PimConfig,
        *,
        part: VaultPart | None = None,
        memory_timing: VaultTiming | None = None,
        quiet_limit_cycles: int = QUIET_LIMIT_CYCLES,
        dram_trace: Path | None = None,
        announce: Callable[[str], None] | None = None,
    ) -> None:
        self.config = config
        self.domain = Domain(question_cycles=ACCESS_CYCLES)
        self._quiet_limit_cycles = quiet_limit_cycles
        part = part or vault_part("hmc2")

        def design() -> Assembly:
            from hw.sim.pim_system import pim_system

            return pim_system(config, part, memory_timing=memory_timing)

        path = parts_library(
            design,
            name="pim",
            about=f"the simulator of a PIM of {config.banks} banks",
            parameters=[repr(config), repr(part), repr(memory_timing)],
            harness=_HARNESS,
            unused=["axdimm", "kernel", "rules"],
            announce=announce,
        )
        self._library = load_library(path, _HARNESS)
        address_bits = (config.stack_bytes // BEAT_BYTES - 1).bit_length()
        self._address_space_bytes = BEAT_BYTES << address_bits
        self._stack = self._library.nm_open(address_bits)
        self._registers = PoolRegisters(self)
        # Closes a transport that was never closed. Not at exit, where other code closes it.
        self._finalizer = weakref.finalize(self, self._library.nm_close, self._stack)
        self._finalizer.atexit = False
        self._silent = False
        self._trace = None if dram_trace is None else Unfinished(dram_trace)
        if self._trace is not None:
            vault = part.with_capacity(config.vault_bytes)
            with self._trace.named():
                self._trace.part.write_text(trace_head("vault", vault, _TRACE_COLUMNS))
            if not self._library.nm_trace(self._stack, os.fsencode(self._trace.part)):
                raise OSError(f"cannot write the trace of DRAM commands {str(dram_trace)!r}")

    @alone
    def read_register(self, offset_bytes: int) -> int:
        """Return a register's 64 bits; raise :class:`DeviceFault` if no register is there."""
        return self._access("reading", offset_bytes, 0)

    @alone
    def write_register(self, offset_bytes: int, value: int) -> None:
        """Write a register; raise :class:`DeviceFault` if it is missing or refuses the write."""
        self._access("writing", offset_bytes, value)

    def read_memory(self, address_bytes: int, nbytes: int) -> NDArray[np.uint8]:
        """Read memory; see :class:`~sw_driver.pim.transport.PimTransport`."""
        steps = self.read_steps(address_bytes, nbytes)
        return whole_call(self.domain, "reading memory", steps, TURN)

    def read_steps(self, address_bytes: int, nbytes: int) -> Steps:
        """Run :meth:`read_memory` step by step."""
        data = np.empty(nbytes, np.uint8)
        if address_bytes % BEAT_BYTES + nbytes <= BEAT_BYTES:
            # The read of one beat is atomic.
            yield from self._transfer(address_bytes, data, write=False)
            return data
        while True:
            starts = self._registers.pool.read_field("starts")
            yield from self._transfer(address_bytes, data, write=False)
            # If a work started meanwhile, some beats of its result may be old, and others that
            # waited for it new. No work is offered meanwhile, so the loop ends.
            if self._registers.pool.read_field("starts") == starts:
                return data

    def write_memory(self, address_bytes: int, data: NDArray[np.uint8]) -> None:
        """Write memory; see :class:`~sw_driver.pim.transport.PimTransport`."""
        steps = self.write_steps(address_bytes, data)
        whole_call(self.domain, "writing memory", steps, TURN)

    def write_steps(self, address_bytes: int, data: NDArray[np.uint8]) -> Steps:
        """Run :meth:`write_memory` step by step."""
        yield from self._transfer(address_bytes, np.ascontiguousarray(data, np.uint8), write=True)

    @alone
    def post_memory(self, address_bytes: int, data: NDArray[np.uint8]) -> None:
        """Write memory without waiting; see :class:`~sw_driver.pim.transport.PimTransport`."""
        data = np.ascontiguousarray(data, np.uint8)
        finished(self._transfer(address_bytes, data, write=True, posted=True))

    @alone
    def advance(self, cycles: int) -> None:
        """Advance the clock; see :class:`~sw_driver.pim.transport.PimTransport`."""
        self._check_open()
        interrupted = 0
        while cycles > 0 and not interrupted:
            step = min(cycles, _CALL_CYCLES)
            interrupted = self._library.nm_advance(self._stack, step)
            self._check_timing("letting time pass")
            cycles -= step

    def cycles(self) -> int:
        """Return the cycles of the fabric clock since the end of reset."""
        with self.domain.clock.within():
            self._check_open(answering=False)
            return self._library.nm_cycles(self._stack)

    def close(self) -> None:
        """Release the model, once calls of other threads have ended.

        Raises ``OSError`` if the trace could not be written in full; no trace remains then.
        """
        with self.domain.clock.within():
            failed = self._finalizer()
            self._stack = None
            self.domain.close()
        trace, self._trace = self._trace, None
        if trace is not None:
            if not failed:
                trace.keep()
            trace.drop()
            if failed:
                message = "not all of it could be written, is the disk full?"
                raise OSError(errno.EIO, message, str(trace.path))

    def _transfer(
        self, address_bytes: int, data: NDArray[np.uint8], *, write: bool, posted: bool = False
    ) -> Steps:
        self._check_open()
        access = f"{'writing' if write else 'reading'} {data.size} bytes at {address_bytes:#x}"
        if address_bytes + data.size > self._address_space_bytes:
            raise no_memory(access, self.config)
        self._library.nm_begin(self._stack, write, address_bytes, data.size, data.ctypes.data)
        step, quiet, before = _FIRST_STEP_CYCLES, 0, None
        try:
            while self._library.nm_transfer(self._stack, step, posted):
                self._check_timing(access)
                progress = (
                    self._library.nm_left(self._stack),
                    self._registers.progress(),
                )
                quiet = quiet + step if progress == before else 0
                if quiet >= self._quiet_limit_cycles:
                    raise DeviceTimeout(
                        f"{access}: nothing has happened for {quiet} cycles, the limit is "
                        f"{self._quiet_limit_cycles}"
                    )
                before = progress
                step = min(2 * step, _LAST_STEP_CYCLES)
                self.domain.now = self.cycles()
                yield
            refused = self._library.nm_refused(self._stack)
        finally:
            # The device must not write to a buffer that is freed.
            self._library.nm_abandon(self._stack)
        self._check_timing(access)
        if refused:
            raise no_memory(access, self.config)

    def _check_open(self, *, answering: bool = True) -> None:
        self.domain.check_open()
        if answering and self._silent:
            raise DeviceTimeout("the registers have stopped answering: open the device again")

    def _access(self, doing: str, offset_bytes: int, value: int) -> int:
        self._check_open()
        word = _u64(value)
        status = self._library.nm_access(
            *(self._stack, doing == "writing", offset_bytes, _REGISTER_LIMIT_CYCLES),
            ctypes.byref(word),
        )
        access = f"{doing} the register at {offset_bytes:#x}"
        self._check_timing(access)
        if status == _WAITING:
            self._silent = True
            raise DeviceTimeout(
                f"{access}: the device has not answered for {_REGISTER_LIMIT_CYCLES} cycles"
            )
        if status == _REFUSED:
            raise DeviceFault(f"{access}: the device refused it (SLVERR)")
        return word.value

    def _check_timing(self, action: str) -> None:
        if self._library.nm_violated(self._stack):
            raise DeviceFault(
                f"a vault's timing was violated, at the latest in cycle {self.cycles()} while "
                f"{action}; a line on the standard output describes it. Do not trust the "
                "simulation from there on"
            )
