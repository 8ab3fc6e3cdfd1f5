"""The PIM's device API: the paper's low-level calls (Table III), registers and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from hw.csr.bank import CSR_DATA_WIDTH
from hw.pim.registers.pool_registers import busy_window
from hw.pim.work.descriptor import FORMS
from sw_driver.device.clock import Clock, Domain, Steps
from sw_driver.device.errors import (
    ClosedError,
    DeviceTimeoutError,
    IncompatibleDeviceError,
    InvalidArgumentError,
    RangeError,
    RefusedWorkError,
    UnknownWorkError,
    WaitTimeoutError,
)
from sw_driver.device.registers import RegisterWindow
from sw_driver.device.streams import Handle
from sw_driver.numbers import check_integer, listed

from .bounds import check_bounds
from .cores import Core, Kernel, KernelCounters, offset_in, window_of
from .descriptor import ELEMENT_BYTES, StridedTensor, Work, banks_of
from .placing import PlacedTensor, integers
from .planning import planned
from .programs import WINDOW_BYTES, Command, Firmware, Window
from .registers import PoolRegisters, pool_map, ring_map
from .ring import Ring, driver_place, ring_place
from .transport import QUIET_LIMIT_CYCLES, TURN, PimTransport

__all__ = ["Counters", "DataLocation", "Pim"]

P = ParamSpec("P")
T = TypeVar("T")

_WAIT = (64, 4096, 4096, QUIET_LIMIT_CYCLES)
"""Pace of a wait, in cycles: first step, longest step, look interval and quiet limit.

A look reads the pool's counters, which takes time, too. The wait is given up once no counter has
changed for the quiet limit.
"""

_KERNEL_WAIT = (4096, 4096, 1 << 22, QUIET_LIMIT_CYCLES)
"""Pace of a wait for kernels, which queries nothing before an interrupt.

The core's cycle limit ends such a wait.
"""

_KERNEL_ID = 1 << 32
"""Smallest id of a kernel.

An id is the core's number plus one, times this, plus the number of the core's earlier kernels.
"""

KERNEL_LIMIT_CYCLES = 100_000_000
"""Default limit of a kernel's cycles."""

_CHECK = (16, 16, 100_000, 100_000)
"""Pace of a wait for the check of a descriptor; a valid one takes some hundreds of cycles."""


class Counters(NamedTuple):
    """Counters of a work.

    ``cycles`` is None if the backend has no clock. Bytes are those moved between memory and banks;
    without a clock, the least possible number.
    """

    multiplications_done: int
    multiplications_left: int
    additions_done: int
    additions_left: int
    cycles: int | None
    bytes_read: int
    bytes_written: int


class DataLocation(NamedTuple):
    """Banks that hold the operands and the results of a work or kernel.

    A tensor counts from its lowest to its highest byte, with any gaps.
    """

    inputs: list[int]
    outputs: list[int]


def _once(call: Callable[[], Any]) -> Steps:
    """Make a call a single step."""
    yield from ()
    return call()


def _at_once(method: Callable[Concatenate[Pim, P], T]) -> Callable[Concatenate[Pim, P], T]:
    """Turn a method into a call of the clock with a single step."""

    @wraps(method)
    def call(self: Pim, *args: P.args, **kwargs: P.kwargs) -> T:
        steps = _once(lambda: method(self, *args, **kwargs))
        return self._call(method.__name__.removeprefix("_"), steps)

    return call


class Pim:
    """A stack of memory with its pool, over ``transport``. Any thread may call it.

    Each call begins at the program's time or later. The program goes on at the call's end; until
    then other devices on the same clock make progress.

    Raises :class:`~sw_driver.device.errors.IncompatibleDeviceError` if the registers identify
    another device or configuration.

    Parameters
    ----------
    transport: the stack; no call of another ``Pim`` over it may be in progress.
    clock: clock shared with other devices; the device's time then counts from the clock's
        beginning. None for a clock of its own.
    firmware: firmware of the cores, by default the package's.
    kernel_limit_cycles: cycles of its core after which a kernel is stopped. A core's first kernel
        includes the core's start: some 45,000 cycles, more with a faster core clock.

    Examples
    --------
    >>> import numpy as np
    >>> from hw.pim.config import PIM_PRESETS
    >>> from sw_driver.pim.backends.golden import GoldenPim
    >>> with Pim(GoldenPim(PIM_PRESETS["tiny"])) as pim:
    ...     pim.write_memory(4096, np.ones(4, np.float32))
    ...     print(pim.read_memory(4096, 4), pim.describe())
    [  0   0 128  63] banks idle 0x3f, last cause none; no work
    """

    def __init__(
        self,
        transport: PimTransport,
        clock: Clock | None = None,
        *,
        firmware: Firmware | None = None,
        kernel_limit_cycles: int = KERNEL_LIMIT_CYCLES,
    ) -> None:
        limit = check_integer("kernel_limit_cycles", kernel_limit_cycles, 1, (1 << 32) - 1)
        if not isinstance(firmware, Firmware | None):
            raise InvalidArgumentError(
                f"firmware is {firmware!r}: expected a Firmware, such as Firmware.of(image)"
            )
        if not hasattr(transport, "domain"):
            raise InvalidArgumentError(
                f"transport is {transport!r}: expected one, such as GoldenPim(config)"
            )
        transport.domain.check_open()
        self.transport = transport
        self.config = transport.config
        if clock is not None:
            query_cycles = transport.domain.question_cycles
            transport.domain = Domain(
                clock, mhz=self.config.clock_mhz, question_cycles=query_cycles
            )
        self._domain = transport.domain
        self._turn = self._domain.turn(TURN)
        self._closed = False
        self._beside = " and the cores' firmware" if self.config.cores else ""
        self._place = driver_place(self.config)
        self._registers = PoolRegisters(transport)
        self._offered: dict[int, tuple[int, Work]] = {}
        """The last accepted work of each slot, with its id."""
        self.firmware = firmware or Firmware.of()
        """Firmware of the cores."""
        cores = range(self.config.cores)
        self._cores = [Core(transport, number, self.firmware, limit) for number in cores]
        self._running: set[int] = set()
        """Ids of works that the driver has not seen complete."""
        self._open()

    def __enter__(self) -> Pim:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the device; later calls of this method do nothing."""
        if not self._domain.clock.is_forked:
            self._domain.clock.release(self._close)

    def _close(self) -> None:
        self._closed = True
        self._domain.clock.close(self._domain)
        self.transport.close()

    # The low-level API of the paper (Table III).

    def pim_fix(
        self,
        pim_ids: Sequence[int] | None,
        args: Work,
        ret: StridedTensor,
        num_pim: int,
    ) -> int:
        """Offer the work ``args`` with the result ``ret`` to banks; return its id at once.

        The work runs on the banks ``pim_ids``, whose number is ``num_pim``. Without ``pim_ids``
        the pool chooses banks with ``num_pim`` units, but no more than the work can use.

        Raises
        ------
        RefusedWorkError: the pool refused the work, for ``error.cause``, or its result overlaps
            the driver's ring; nothing was written. The cause ``full`` means that the pool holds no
            more works of this program: offer it again when one has completed.
        InvalidArgumentError: ``pim_ids`` are not ``num_pim`` different banks that a descriptor can
            name, or a value does not fit its field.
        """
        if not isinstance(args, Work) or not isinstance(ret, StridedTensor):
            raise InvalidArgumentError(f"got {args!r} and {ret!r}: expected a Work and a Tensor")
        banks, units = 0, check_integer("num_pim", num_pim, None)
        if pim_ids is not None:
            ids = list(integers("pim_ids", "banks", pim_ids, None))
            # The pool itself refuses a missing bank that the descriptor's bit mask can name.
            strange = [bank for bank in ids if not 0 <= bank < 32]
            problem = None
            if not 1 <= num_pim == len(ids) == len(set(ids)):
                problem = (
                    f"pim_ids are {ids}: expected num_pim = {num_pim} different banks, one at "
                    "least, or None to leave the choice to the pool"
                )
            elif strange:
                problem = f"there is no bank {strange[0]!r}: expected 0 to {self.config.banks - 1}"
            if problem is not None:
                raise InvalidArgumentError(problem, pim_ids=ids, num_pim=num_pim)
            banks, units = sum(1 << bank for bank in ids), 0
        work = replace(args, result=ret, banks=banks, units=units)
        return self._call("pim_fix", self._offer(work))

    def _pim_prog(
        self,
        pim_id: int,
        kernel: str,
        args: Sequence[PlacedTensor | float | np.floating],
        ret: Sequence[PlacedTensor] = (),
        *,
        windows: Sequence[Window] | None = None,
    ) -> int:
        """Offer a kernel of the firmware to a core; return the kernel's id at once.

        Numbers of cores follow those of the banks. Kernels of a core run one after the other.

        The kernel can access the stack's memory through ``windows``, numbered from 1, at most
        seven. By default they are the tensors among ``args``. The kernel gets a tensor as its
        address in a window, and a float as its bits. ``ret`` lists the results, for
        :meth:`work_info`.

        Raises
        ------
        InvalidArgumentError: the core or kernel does not exist, its arguments differ, or a tensor
            is in no window.
        RangeError: a window is outside of the stack or overlaps the driver's memory, or sizes make
            a kernel of the package go beyond a tensor.
        PointerError: a tensor was released.
        RefusedWorkError: the core has 16 kernels that have not ended (cause ``full``).
        """
        banks, cores = self.config.banks, self.config.cores
        if not cores:
            raise InvalidArgumentError(
                f"the stack has no programmable PIM (its number would be {banks}): offer what is "
                "additions and multiplications with pim_fix, compute the rest on the host, or open "
                "one with cores"
            )
        number = check_integer("pim_id", pim_id, banks, banks + cores - 1) - banks
        args = listed("args", args, "a list of tensors and numbers")
        results = listed("ret", ret, "a list of tensors")
        tensors = [arg for arg in args if isinstance(arg, PlacedTensor)]
        for tensor in results:
            _check_placed(tensor)
        for tensor in [*tensors, *results]:
            tensor.check()
        check_bounds(kernel, args)
        shown = list(
            dict.fromkeys(map(window_of, tensors))
            if windows is None
            else listed("windows", windows, "a list of windows")
        )
        for window in shown:
            if not isinstance(window, Window):
                raise InvalidArgumentError(f"windows have {window!r}: expected a Window")
            check_integer("bytes of a window", window.size_bytes, 0, WINDOW_BYTES)
            self._check_range(*window, writes=True)
        words = [offset_in(a, shown) if isinstance(a, PlacedTensor) else a for a in args]
        offered = Kernel(kernel, shown, list(map(window_of, results)))
        kernel_number = self._cores[number].offer(Command(kernel, words), offered)
        return (number + 1) * _KERNEL_ID + kernel_number

    pim_prog = _at_once(_pim_prog)

    @_at_once
    def pim_status(self, pim_id: int) -> int:
        """Return 0 if a bank or core is idle, 1 if it is busy or absent.

        Raises :class:`~sw_driver.device.errors.InvalidArgumentError` for any other ``pim_id``.
        """
        # Numbers of cores follow those of the banks.
        last = self.config.banks + max(1, self.config.cores) - 1
        pim_id = check_integer("pim_id", pim_id, 0, last)
        return self._answered(1 - (self._registers.pool.read_field("idle") >> pim_id & 1))

    @_at_once
    def work_query(self, work_id: int) -> int:
        """Return 1 if the work or kernel has completed, 0 if not.

        Raises
        ------
        UnknownWorkError: the id was not given out.
        KernelError: the kernel failed, or its core was stopped.
        """
        return self._answered(self._work_query(work_id))

    def _answered(self, answer: int) -> int:
        """Return ``answer``; without a clock, complete a work, so that a polling loop ends."""
        if not self.transport.timed:
            self.transport.advance(1)
        return answer

    def _work_query(self, work_id: int) -> int:
        core, _ = self._core_of(work_id)
        if core is not None:
            core.look()
            return int(self._has_ended(work_id))
        self._running.difference_update(self._ring.completed())
        if work_id in self._running:
            return 0
        offered, _ = self._offered.get(self._slot(work_id), (None, None))
        return int(offered == work_id or self._state(work_id) == "completed")

    @_at_once
    def work_info(self, work_id: int) -> tuple[list[int], DataLocation]:
        """Return the banks or the core that a work or kernel runs or ran on, and its data's banks.

        A work that waits has no banks.

        Raises
        ------
        UnknownWorkError: the id was not given out to this program, or another work has taken the
            slot.
        """
        core, number = self._core_of(work_id)
        if core is not None:
            kernel = core.kernel(number)
            if kernel is None:
                raise UnknownWorkError(
                    f"kernel {work_id} has ended, and others have taken its place", work_id=work_id
                )
            inputs = [window for window in kernel.windows if window not in kernel.results]
            inputs, outputs = (
                banks_of((range(at, at + size) for at, size in windows), self.config)
                for windows in (inputs, kernel.results)
            )
            place = self.config.banks + self._cores.index(core)
            return [place], DataLocation(inputs, outputs)
        number = self._slot(work_id)
        slot = self._registers.slots[number]
        self._check_id(work_id, slot, current=True)
        offered, work = self._offered.get(number, (None, None))
        if work is None or offered != work_id:
            raise UnknownWorkError(
                f"work {work_id} was not offered by this program, which does not know its tensors",
                work_id=work_id,
            )
        banks = slot.read_field("banks")
        inputs, outputs = map(work.span, work.operands), [work.span("result")]
        location = DataLocation(*(banks_of(spans, self.config) for spans in (inputs, outputs)))
        return [bank for bank in range(self.config.banks) if banks >> bank & 1], location

    # Registers.

    @property
    @_at_once
    def idle(self) -> int:
        """Bit mask of idle banks, and above them of cores that run without a kernel."""
        return self._answered(self._registers.pool.read_field("idle"))

    @property
    @_at_once
    def cause(self) -> str:
        """Cause for which the pool refused the last offered work, or ``none``."""
        return self._ring.cause

    def _state(self, work_id: int) -> str:
        """Return the state of a work: ``waiting``, ``running`` or ``completed``.

        Raises :class:`~sw_driver.device.errors.UnknownWorkError` for an id that was not given out.
        """
        slot = self._registers.slots[self._slot(work_id)]
        completed = work_id < self._check_id(work_id, slot)
        return "completed" if completed else slot.read_name("state")

    state = _at_once(_state)

    @_at_once
    def counters(self, work_id: int) -> Counters:
        """Return a work's counters, all read in one cycle.

        They are available until another work takes the slot.

        Raises
        ------
        UnknownWorkError: the id was not given out, or another work has taken the slot.
        """
        self._registers.pool.write("snapshot", self._slot(work_id))
        kept = self._registers.kept
        self._check_id(work_id, kept, current=True)
        values = {name: kept.read_field(name) for name in Counters._fields}
        counters = Counters(**values)
        return counters if self.transport.timed else counters._replace(cycles=None)

    @_at_once
    def kernel_counters(self, work_id: int) -> KernelCounters:
        """Return the counters of a core's kernel, which has to be running or its last one.

        Raises :class:`~sw_driver.device.errors.UnknownWorkError` for any other ``work_id``.
        """
        core, number = self._core_of(work_id)
        if core is not None:
            core.look()
        if core is None or number != min(core.ended, core.offered - 1):
            raise UnknownWorkError(
                f"{work_id} is neither a running kernel nor the last one of its core",
                work_id=work_id,
            )
        return core.counters()

    @_at_once
    def busy_cycles(self) -> list[int]:
        """Return each bank's cycles with a work since reset; 0 without a clock.

        Reading them takes simulated time.
        """
        places = busy_window()[:: CSR_DATA_WIDTH // 8][: self.config.banks]
        return list(map(self.transport.read_register, places))

    @property
    def has_offered(self) -> bool:
        """True if the pool has accepted a work from this program."""
        return bool(self._offered)

    # Waiting.

    def wait(self, work_id: int, *, timeout_cycles: int | None = None) -> None:
        """Let time pass until the work has completed; raise the same errors as :meth:`wait_any`."""
        work_id = check_integer("work_id", work_id, None)
        self.wait_any([work_id], timeout_cycles=timeout_cycles)

    def wait_any(self, work_ids: Sequence[int], *, timeout_cycles: int | None = None) -> list[int]:
        """Let time pass until at least one work has completed; return the completed ones.

        Without works, return []. A wait for kernels alone waits for the interrupt: it accesses no
        registers or memory.

        Raises
        ------
        WaitTimeoutError: none has completed after ``timeout_cycles``; the works go on.
        DeviceTimeoutError: nothing has happened in the pool for ``QUIET_LIMIT_CYCLES``.
        UnknownWorkError: an id was not given out.
        KernelError: a kernel failed, or its core was stopped.
        InvalidArgumentError: the timeout is neither a number of cycles nor None.
        """
        if timeout_cycles is not None:
            check_integer("timeout_cycles", timeout_cycles, 0)

        def completed() -> list[int]:
            return [work_id for work_id in work_ids if self._work_query(work_id)]

        work_ids = integers("work_ids", "works", work_ids, None)
        if not work_ids:
            return []
        works = ", ".join(f"work {work_id}" for work_id in work_ids)
        kernels = all(self._core_of(work_id)[0] is not None for work_id in work_ids)
        if kernels and (ended := list(filter(self._has_ended, work_ids))):
            return ended
        pace = _KERNEL_WAIT if kernels else _WAIT
        steps = self._until(completed, works, pace, timeout_cycles, interrupts=kernels)
        return self._call("wait_any", steps)

    def _until(
        self,
        poll: Callable[[], object],
        awaited: str,
        pace: tuple[int, int, int, int],
        timeout_cycles: int | None = None,
        *,
        interrupts: bool = False,
    ) -> Steps:
        """Let time pass until ``poll`` returns a true result; return that result.

        Operations with an earlier time run first. With ``interrupts``, poll only after one.
        Messages call the condition ``awaited``; ``pace`` is laid out as :data:`_WAIT`.
        """
        step, last, look, limit = pace
        passed = quiet = unseen = 0
        before = None
        result = None if interrupts else poll()
        while not result:
            if timeout_cycles is not None:
                if passed >= timeout_cycles:
                    raise WaitTimeoutError(
                        f"waiting for {awaited}: none has completed after {passed} cycles, the "
                        f"timeout is {timeout_cycles}; they go on; {self._describe()}",
                        timeout_cycles=timeout_cycles,
                        state=self._describe(),
                    )
                step = min(step, timeout_cycles - passed)
            if unseen >= look:
                progress = self._registers.progress()
                kernels = any(core.offered > core.ended for core in self._cores)
                still = progress == before and not kernels
                quiet = quiet + unseen if still else 0
                before, unseen = progress, 0
                if quiet >= limit:
                    raise DeviceTimeoutError(
                        f"waiting for {awaited}: nothing has happened for {quiet} cycles, the "
                        f"limit is {limit}; {self._describe()}",
                        limit_cycles=limit,
                        state=self._describe(),
                    )
                # Reading the counters took time, in which a work may have completed.
                result = poll()
                continue
            self._domain.now = self.transport.cycles()
            yield
            start = self.transport.cycles()
            self.transport.advance(step)
            taken = self.transport.cycles() - start
            passed += taken if interrupts else step
            unseen += step
            if not interrupts:
                result = poll()
            elif taken < step:  # Clear every cause of the interrupt, or it stays active.
                self._running.difference_update(self._ring.completed())
                for core in self._cores:
                    core.look()
                result = poll()
            step = min(2 * step, last)
        return result

    def _describe(self) -> str:
        """Return the pool's state as text, for messages."""
        works = [
            f"work {slot.read_field('id')} {slot.read_name('state')}"
            f" ({slot.read_field('multiplications_left')} multiplications,"
            f" {slot.read_field('additions_left')} additions left)"
            for slot in self._registers.slots
            if slot.read_name("state") in ("waiting", "running")
        ]
        idle = self._registers.pool.read_field("idle")
        return (
            f"banks idle {idle:#x}, last cause {self._ring.cause}; {', '.join(works) or 'no work'}"
        )

    describe = _at_once(_describe)

    # Memory.

    def write_memory(self, address_bytes: int, values: NDArray[np.generic]) -> None:
        """Write the bytes of ``values`` to the stack.

        Raises
        ------
        InvalidArgumentError: the address or the size is not a multiple of 4, or the values are not
            contiguous.
        RangeError: the bytes do not fit into the stack, or overlap the driver's ring at its end.
        """
        self._call("write_memory", self._write([(address_bytes, values)]))

    def _write(self, blocks: Iterable[tuple[int, NDArray[np.generic]]]) -> Steps:
        for address_bytes, values in blocks:
            if not isinstance(values, np.ndarray) or values.dtype.hasobject:
                raise InvalidArgumentError(f"got {values!r}: expected an array of numbers")
            if not values.flags.c_contiguous:
                raise InvalidArgumentError(
                    f"the values, of shape {values.shape}, are not contiguous: copy them first",
                    shape=values.shape,
                )
            self._check_range(address_bytes, values.nbytes, writes=True)
            yield from self.transport.write_steps(address_bytes, values.reshape(-1).view(np.uint8))

    def read_memory(self, address_bytes: int, nbytes: int) -> NDArray[np.uint8]:
        """Read bytes of the stack; a work's result is read either complete or unwritten.

        If a work that has not completed writes there, the call may wait until it has.

        Raises
        ------
        InvalidArgumentError: the address or the size is not a multiple of 4.
        RangeError: the bytes are not within the stack.
        """
        return self._call("read_memory", self._read(address_bytes, nbytes))

    def _read(self, address_bytes: int, nbytes: int) -> Steps:
        self._check_range(address_bytes, nbytes)
        return (yield from self.transport.read_steps(address_bytes, nbytes))

    def write_tensor(self, placed: PlacedTensor, values: NDArray[np.float32]) -> None:
        """Write ``values`` to a tensor of the same shape.

        Raises :class:`~sw_driver.device.errors.InvalidArgumentError` for another shape or type.
        """
        _check_placed(placed)
        self._call("write_tensor", self._write(placed.blocks_of(values)))

    def read_tensor(self, placed: PlacedTensor) -> NDArray[np.float32]:
        """Return the tensor's values."""
        _check_placed(placed)
        return self._call("read_tensor", self._read_tensor(placed, self._read))

    def _read_tensor(self, placed: PlacedTensor, read: Callable[[int, int], Steps]) -> Steps:
        """Read a tensor block by block; return its values."""
        values = np.empty(placed.shape, np.float32)
        for index, address in placed.blocks():
            block = values[index]
            data = yield from read(address, block.nbytes)
            values[index] = data.view(np.float32).reshape(block.shape)
        return values

    # Steps for operations of other users of the clock.

    def offer_steps(self, work: Work) -> Steps:
        """Offer a work as soon as the pool has room; return its id.

        Raises the same errors as :meth:`pim_fix`.
        """

        def steps() -> Steps:
            if self._is_full():
                self._running.difference_update(self._ring.completed())
            if not self._is_full():
                return (yield from self._offer(work))
            self._let_pass()
            return None

        while (work_id := (yield from self._in_turn(steps()))) is None:
            yield
        return work_id

    def kernel_steps(self, core: int, command: Command, window: Window) -> Steps:
        """Offer a kernel with one ``window`` to a core, counted from 0; see :meth:`pim_prog`."""
        pim_id = self.config.banks + core
        return self._in_turn(_once(lambda: self._pim_prog(pim_id, *command, windows=[window])))

    def completion_steps(self, work_id: int) -> Steps:
        """Let time pass until a work or kernel has completed.

        Raises the same errors as :meth:`work_query`.
        """

        def query() -> int:
            if not (done := self._work_query(work_id)):
                self._let_pass()
            return done

        while not (yield from self._in_turn(_once(query))):
            yield

    def idle_steps(self) -> Steps:
        """Read :attr:`idle`."""
        return self._in_turn(_once(lambda: self._registers.pool.read_field("idle")))

    def read_steps(self, address_bytes: int, nbytes: int) -> Steps:
        """Return the steps of :meth:`read_memory`."""
        return self._in_turn(self._read(address_bytes, nbytes))

    def tensor_steps(self, placed: PlacedTensor) -> Steps:
        """Return the steps of :meth:`read_tensor`, a turn for each block."""
        return self._read_tensor(placed, self.read_steps)

    def write_steps(self, blocks: Iterable[tuple[int, NDArray[np.generic]]]) -> Steps:
        """Return the steps of :meth:`write_memory` for several pairs of address and values."""
        return self._in_turn(self._write(blocks))

    def _let_pass(self) -> None:
        """Let some time pass, at most until the next step of another operation."""
        until_others = self._domain.horizon - self.transport.cycles()
        self.transport.advance(max(1, min(_WAIT[0], until_others)))

    # Calls.

    def _call(self, name: str, steps: Steps) -> Any:
        """Carry out ``steps`` as one call of the clock; return their result."""
        call: Handle[Any] = Handle(f"the PIM's {name}", self._domain)
        with self._domain.clock:
            if self._closed:
                raise ClosedError("the PIM was closed: open it again")
            call.carry_out(self._in_turn(steps))
        return call.result

    def _in_turn(self, steps: Steps) -> Steps:
        """Carry out ``steps`` from the program's time on, once no other call is in progress.

        Another thread's call may be in progress if a callback made it.
        """
        domain, transport, turn = self._domain, self.transport, self._turn
        while not turn.over:
            yield turn
        turn.holder = steps
        try:
            yield from domain.catch_up(transport.cycles, transport.advance)
            return (yield from steps)
        finally:
            if not domain.closed:
                domain.now = transport.cycles()
            turn.release(domain)

    # Helpers of the calls.

    @_at_once
    def _open(self) -> None:
        expected = {field.name: field.reset for field in pool_map()["identity"].fields}
        pool = self._registers.pool
        identity = {name: pool.read_field("identity", name) for name in expected}
        if identity != expected:
            raise IncompatibleDeviceError(
                f"the device identifies itself with {identity}, this driver was written for "
                f"{expected}: use the driver that belongs to the device",
                found=identity,
            )
        names = ("rows", "columns", "works", "units", "rings", "cores")
        has = {name: pool.read_field("geometry", name) for name in names}
        has["bank_bytes"] = pool.read_field("bank_memory")
        configured = {name: getattr(self.config, name) for name in has}
        if has != configured:
            raise IncompatibleDeviceError(
                f"the device was made with {has}, the configuration given for it has {configured}: "
                "open it with its own",
                found=has,
                expected=configured,
            )
        self._ring = Ring(self.transport, 0, ring_place(self.config))

    def _check_range(self, address_bytes: int, nbytes: int, *, writes: bool = False) -> None:
        check_integer("address_bytes", address_bytes, None)
        check_integer("nbytes", nbytes, None)
        if address_bytes % ELEMENT_BYTES or nbytes % ELEMENT_BYTES:
            raise InvalidArgumentError(
                f"{nbytes} bytes at {address_bytes:#x}: address and size must be multiples of "
                f"{ELEMENT_BYTES}",
                address_bytes=address_bytes,
                bytes=nbytes,
            )
        place = self._place
        if not self.config.holds(address_bytes, nbytes):
            problem = f"are not within {self.config.memory_description}"
        elif writes and _overlap(range(address_bytes, address_bytes + nbytes), place):
            problem = (
                f"overlap the driver's ring{self._beside}, {place.start:#x} to "
                f"{place.stop - 1:#x}: write elsewhere"
            )
        else:
            return
        raise RangeError(
            f"{nbytes} bytes at {address_bytes:#x} {problem}",
            address_bytes=address_bytes,
            bytes=nbytes,
            stack_bytes=self.config.stack_bytes,
        )

    def _offer(self, work: Work) -> Steps:
        for tensor in (work.a, work.b, work.result):
            if tensor.buffer is not None:
                tensor.buffer.check()
        work.encode()  # Refuses invalid sizes before they are used for planning.
        work = planned(work, self.config)
        words = work.encode()
        place = self._place
        if work.opcode in FORMS and _overlap(work.span("result"), place):
            raise RefusedWorkError(
                f"the result overlaps the driver's ring{self._beside}, {place.start:#x} to "
                f"{place.stop - 1:#x}, the last bytes of the striped memory: put it elsewhere; "
                f"{work}",
                cause="out_of_range",
                work=work,
            )
        if self._is_full():
            self._running.difference_update(self._ring.completed())
        if self._is_full():
            raise RefusedWorkError(
                f"the pool is full: {len(self._running)} works have not completed, and it holds "
                f"{self.config.works}; wait for one of them; {work}",
                cause="full",
                work=work,
            )
        self._ring.write(words)
        cause, work_id = yield from self._settle()
        if cause == "none":
            self._offered[work_id % self.config.works] = work_id, work
            self._running.add(work_id)
            return work_id
        code = ring_map()["tail"]["cause"].code(cause)
        raise RefusedWorkError(
            f"the pool refused the work: {cause} (cause {code}), see 'Refused works' in "
            f"docs/pim-spec.md; {work}",
            cause=cause,
            work=work,
        )

    def _settle(self) -> Steps:
        """Wait until the pool has taken the descriptor; return the cause and the id.

        That takes longer while works of others fill the pool.
        """
        return self._until(self._ring.taken, "the check of a descriptor", _CHECK)

    def _is_full(self) -> bool:
        return len(self._running) >= self.config.works or self._ring.is_full

    def _core_of(self, work_id: int) -> tuple[Core | None, int]:
        """Return a kernel's core and its number there; for a work's id, (None, 0).

        Raises :class:`~sw_driver.device.errors.UnknownWorkError` if a core never gave out the id.
        """
        number, kernel = divmod(check_integer("work_id", work_id, None), _KERNEL_ID)
        if number < 1:
            return None, 0
        if number > len(self._cores) or kernel >= self._cores[number - 1].offered:
            raise UnknownWorkError(f"no core was given a kernel {work_id}", work_id=work_id)
        return self._cores[number - 1], kernel

    def _has_ended(self, work_id: int) -> bool:
        """Return whether the driver knows that a kernel has ended."""
        core, number = self._core_of(work_id)
        return core is not None and core.has_ended(number)

    def _slot(self, work_id: int) -> int:
        """Return the slot of a work."""
        return check_integer("work_id", work_id, None) % self.config.works

    def _check_id(self, work_id: int, slot: RegisterWindow, *, current: bool = False) -> int:
        """Return the id of the work that has the slot now; if ``current``, only ``work_id``.

        Raises :class:`~sw_driver.device.errors.UnknownWorkError` if the pool has not given out
        ``work_id``, or if ``current`` and another work has the slot.
        """
        held = slot.read_field("id")
        if not self.config.works <= work_id <= held:
            problem = f"the pool has not given out the id {work_id}; the last of its slot is {held}"
        elif current and held != work_id:
            problem = (
                f"work {work_id} has completed, and work {held} has taken its slot: ask before "
                f"{self.config.works} more works are offered"
            )
        else:
            return held
        raise UnknownWorkError(problem, work_id=work_id, last=held)


def _check_placed(placed: PlacedTensor) -> None:
    if not isinstance(placed, PlacedTensor):
        raise InvalidArgumentError(f"got {placed!r}: expected a tensor in the stack")
    placed.check()


def _overlap(one: range, other: range) -> bool:
    return one.start < other.stop and other.start < one.stop
