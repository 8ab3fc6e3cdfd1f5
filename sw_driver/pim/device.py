"""The PIM as a program sees it: the low-level API of the paper (Table III), registers, memory."""

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
from .descriptor import ELEMENT_BYTES, Tensor, Work, banks_of
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
"""Cycles of the first step of a wait, of its longest, from a look at the pool's counters to the
next, which takes time too, and without a change of any after which it is given up."""

_KERNEL_WAIT = (4096, 4096, 1 << 22, QUIET_LIMIT_CYCLES)
"""The same for a wait for kernels, which asks nothing until an interrupt comes; the core's limit is
what ends it."""

_KERNEL_ID = 1 << 32
"""Ids of kernels begin here: so many times the core's number and one, and how many kernels it had
before."""

KERNEL_LIMIT_CYCLES = 100_000_000
"""Cycles that a kernel may take unless the program says otherwise."""

_CHECK = (16, 16, 100_000, 100_000)
"""The same for the check of a descriptor; of a sound one it takes some hundreds."""


class Counters(NamedTuple):
    """The counters of a work. Cycles are None if the backend has no clock; bytes are those that
    moved between memory and banks (without a clock: the least that must)."""

    multiplications_done: int
    multiplications_left: int
    additions_done: int
    additions_left: int
    cycles: int | None
    bytes_read: int
    bytes_written: int


class DataLocation(NamedTuple):
    """The banks that a work's or a kernel's operands, and its result, lie in, from each tensor's
    lowest to its highest byte."""

    inputs: list[int]
    outputs: list[int]


def _once(call: Callable[[], Any]) -> Steps:
    """A call as a single step."""
    yield from ()
    return call()


def _at_once(method: Callable[Concatenate[Pim, P], T]) -> Callable[Concatenate[Pim, P], T]:
    """Makes a method a call that is a single step."""

    @wraps(method)
    def call(self: Pim, *args: P.args, **kwargs: P.kwargs) -> T:
        steps = _once(lambda: method(self, *args, **kwargs))
        return self._call(method.__name__.removeprefix("_"), steps)

    return call


class Pim:
    """A stack of memory with its pool, over ``transport``. Any thread may call it.

    Each call begins at the program's time, or later, and the program goes on at its end; others on
    the same clock get on until then.

    Raises :class:`~sw_driver.device.errors.IncompatibleDeviceError` if the registers say that the
    device is another one.

    Parameters
    ----------
    transport: the stack; no call of another ``Pim`` over it may be under way.
    clock: the clock that it shares with other devices, on which it has had its time from the
        beginning; None: it keeps its own.
    firmware: what the cores run; by default the package's.
    kernel_limit_cycles: a kernel that takes as many cycles of its core is stopped; for a core's
        first one its start counts, too, some 45,000 cycles, more of one with a faster clock.
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
            asked = transport.domain.question_cycles
            transport.domain = Domain(clock, mhz=self.config.clock_mhz, question_cycles=asked)
        self._domain = transport.domain
        self._turn = self._domain.turn(TURN)
        self._closed = False
        self._beside = " and the cores' firmware" if self.config.cores else ""
        self._place = driver_place(self.config)
        self._registers = PoolRegisters(transport)
        self._offered: dict[int, tuple[int, Work]] = {}
        """The works that were accepted, with their ids, by slot."""
        self.firmware = firmware or Firmware.of()
        """What the cores run."""
        cores = range(self.config.cores)
        self._cores = [Core(transport, number, self.firmware, limit) for number in cores]
        self._running: set[int] = set()
        """Ids of the works whose completion has not been seen."""
        self._open()

    def __enter__(self) -> Pim:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Releases the device. Calling it twice does no harm."""
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
        ret: Tensor,
        num_pim: int,
    ) -> int:
        """Has the banks ``pim_ids``, ``num_pim`` of them, compute ``args`` to ``ret``.

        Without ``pim_ids`` the pool chooses banks, with ``num_pim`` units, but no more than the
        work has use for. Returns the work's id at once.

        Raises
        ------
        RefusedWorkError: the pool refused it, for ``error.cause``, or its result is where the
            driver's ring is; nothing was written. With the cause ``full`` the pool holds as many
            works of this program as it can: ask again when one has completed.
        InvalidArgumentError: ``pim_ids`` are not ``num_pim`` different banks that a descriptor can
            name, or a field cannot hold its value.
        """
        if not isinstance(args, Work) or not isinstance(ret, Tensor):
            raise InvalidArgumentError(f"got {args!r} and {ret!r}: expected a Work and a Tensor")
        banks, units = 0, check_integer("num_pim", num_pim, None)
        if pim_ids is not None:
            ids = list(integers("pim_ids", "banks", pim_ids, None))
            # A bank that the stack does not have is for the pool to refuse, if a bit can say it.
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
        """Has a core, whose number comes after those of the banks, run ``kernel`` of its firmware
        on ``args``; returns the work's id at once. Kernels of a core run one after the other.

        Of the stack's memory the kernel sees ``windows``, numbered from 1 on, by default the
        tensors among ``args``, seven at most. A tensor becomes its place in there, a float its
        bits. ``ret`` are the tensors that are results, for :meth:`work_info`.

        Raises
        ------
        InvalidArgumentError: there is no such core or kernel, or it has other arguments, or a
            tensor is in no window.
        RangeError: a window is not within the stack, or meets what the driver keeps; or sizes have
            a kernel of the package go beyond a tensor.
        PointerError: a tensor was released.
        RefusedWorkError: with the cause ``full``: 16 kernels of the core have not ended.
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
        tensors = [each for each in args if isinstance(each, PlacedTensor)]
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
        asked = Kernel(kernel, shown, list(map(window_of, results)))
        taken = self._cores[number].offer(Command(kernel, words), asked)
        return (number + 1) * _KERNEL_ID + taken

    pim_prog = _at_once(_pim_prog)

    @_at_once
    def pim_status(self, pim_id: int) -> int:
        """1 if a bank, or a core of the programmable PIM, is busy or not there, 0 if it is idle.

        Raises :class:`~sw_driver.device.errors.InvalidArgumentError`.
        """
        # After the banks come the cores.
        last = self.config.banks + max(1, self.config.cores) - 1
        pim_id = check_integer("pim_id", pim_id, 0, last)
        return self._asked(1 - (self._registers.pool.read_field("idle") >> pim_id & 1))

    @_at_once
    def work_query(self, work_id: int) -> int:
        """1 if the work or the kernel has completed, 0 if not.

        Raises
        ------
        UnknownWorkError: the id was not given out.
        KernelError: the kernel failed, or its core was stopped.
        """
        return self._asked(self._work_query(work_id))

    def _asked(self, answer: int) -> int:
        """The answer to a question: without a clock a work completes after each, so that a loop
        that asks ends."""
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
        """The banks that a work runs or ran on (none while it waits), or the core of a kernel, and
        where its data is.

        Raises
        ------
        UnknownWorkError: the id was not given out, or not to this program, or another work has
            taken the slot.
        """
        core, number = self._core_of(work_id)
        if core is not None:
            kernel = core.kernel(number)
            if kernel is None:
                raise UnknownWorkError(
                    f"kernel {work_id} has ended, and others have taken its place", work_id=work_id
                )
            inputs = [each for each in kernel.windows if each not in kernel.results]
            inputs, outputs = (
                banks_of((range(at, at + size) for at, size in each), self.config)
                for each in (inputs, kernel.results)
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
        location = DataLocation(*(banks_of(each, self.config) for each in (inputs, outputs)))
        return [bank for bank in range(self.config.banks) if banks >> bank & 1], location

    # Registers.

    @property
    @_at_once
    def idle(self) -> int:
        """A bit for each bank, 1 if it works for no work; above them one for each core, 1 if it
        runs and has no kernel."""
        return self._asked(self._registers.pool.read_field("idle"))

    @property
    @_at_once
    def cause(self) -> str:
        """Why the last work that was offered was refused, or ``none``."""
        return self._ring.cause

    def _state(self, work_id: int) -> str:
        """``waiting``, ``running`` or ``completed``.

        Raises :class:`~sw_driver.device.errors.UnknownWorkError` for an id that was not given out.
        """
        slot = self._registers.slots[self._slot(work_id)]
        completed = work_id < self._check_id(work_id, slot)
        return "completed" if completed else slot.read_name("state")

    state = _at_once(_state)

    @_at_once
    def counters(self, work_id: int) -> Counters:
        """The counters of a work, all of one cycle; they stay until another takes its slot.

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
        """What a core counts of its kernel ``work_id``, the one that runs or ran last.

        Raises :class:`~sw_driver.device.errors.UnknownWorkError` for another.
        """
        core, number = self._core_of(work_id)
        if core is not None:
            core.look()
        if core is None or number != min(core.ended, core.offered - 1):
            raise UnknownWorkError(
                f"{work_id} is no kernel that runs, or was the last one of its core",
                work_id=work_id,
            )
        return core.counters()

    @_at_once
    def busy_cycles(self) -> list[int]:
        """For each bank the cycles since reset in which it had a work; 0 without a clock. Reading
        them takes time."""
        places = busy_window()[:: CSR_DATA_WIDTH // 8][: self.config.banks]
        return list(map(self.transport.read_register, places))

    @property
    def has_offered(self) -> bool:
        """Whether a work was accepted from this program."""
        return bool(self._offered)

    # Waiting.

    def wait(self, work_id: int, *, timeout_cycles: int | None = None) -> None:
        """Lets time pass until the work has completed; raises what :meth:`wait_any` does."""
        work_id = check_integer("work_id", work_id, None)
        self.wait_any([work_id], timeout_cycles=timeout_cycles)

    def wait_any(self, work_ids: Sequence[int], *, timeout_cycles: int | None = None) -> list[int]:
        """Lets time pass until some of the works have completed; returns these. Of none it is [].

        Raises
        ------
        WaitTimeoutError: none has, after ``timeout_cycles``; they go on.
        DeviceTimeoutError: nothing has happened in the pool for ``QUIET_LIMIT_CYCLES``.
        UnknownWorkError: an id was not given out.
        KernelError: a kernel failed, or its core was stopped.
        InvalidArgumentError: a timeout is not a number of cycles, nor None.

        For kernels alone it waits for the interrupt: it leaves registers and memory alone.
        """
        if timeout_cycles is not None:
            check_integer("timeout_cycles", timeout_cycles, 0)

        def completed() -> list[int]:
            return [work_id for work_id in work_ids if self._work_query(work_id)]

        work_ids = integers("work_ids", "works", work_ids, None)
        if not work_ids:
            return []
        works = ", ".join(f"work {work_id}" for work_id in work_ids)
        kernels = all(self._core_of(each)[0] is not None for each in work_ids)
        if kernels and (ended := list(filter(self._has_ended, work_ids))):
            return ended
        pace = _KERNEL_WAIT if kernels else _WAIT
        steps = self._until(completed, works, pace, timeout_cycles, told=kernels)
        return self._call("wait_any", steps)

    def _until(
        self,
        found: Callable[[], object],
        what: str,
        pace: tuple[int, int, int, int],
        timeout_cycles: int | None = None,
        *,
        told: bool = False,
    ) -> Steps:
        """Lets time pass, after those who are behind, until something is found; returns that. One
        who will be ``told``, by an interrupt, does not ask before."""
        step, last, look, limit = pace
        passed = quiet = unseen = 0
        before = None
        result = None if told else found()
        while not result:
            if timeout_cycles is not None:
                if passed >= timeout_cycles:
                    raise WaitTimeoutError(
                        f"waiting for {what}: none has completed after {passed} cycles, the "
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
                        f"waiting for {what}: nothing has happened for {quiet} cycles, the limit "
                        f"is {limit}; {self._describe()}",
                        limit_cycles=limit,
                        state=self._describe(),
                    )
                # Time does not stop for a work that completed meanwhile.
                result = found()
                continue
            self._domain.now = self.transport.cycles()
            yield
            start = self.transport.cycles()
            self.transport.advance(step)
            taken = self.transport.cycles() - start
            passed += taken if told else step
            unseen += step
            if not told:
                result = found()
            elif taken < step:  # of works and other kernels too: it would stay
                self._running.difference_update(self._ring.completed())
                for core in self._cores:
                    core.look()
                result = found()
            step = min(2 * step, last)
        return result

    def _describe(self) -> str:
        """The pool's state in words, for messages."""
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
        """Writes the bytes of ``values`` to the stack.

        Raises
        ------
        InvalidArgumentError: the address or the size is not a multiple of 4, or the values are not
            contiguous.
        RangeError: they do not fit into the stack, or meet the driver's ring, which is at its
            end.
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
        """Bytes of the stack; of a work's result all or nothing.

        Where a work that has not completed writes, this may let time pass until it has.

        Raises
        ------
        InvalidArgumentError: the address or the size is not a multiple of 4.
        RangeError: they are not within the stack.
        """
        return self._call("read_memory", self._read(address_bytes, nbytes))

    def _read(self, address_bytes: int, nbytes: int) -> Steps:
        self._check_range(address_bytes, nbytes)
        return (yield from self.transport.read_steps(address_bytes, nbytes))

    def write_tensor(self, placed: PlacedTensor, values: NDArray[np.float32]) -> None:
        """Writes ``values``, of the tensor's shape, to its place.

        Raises :class:`~sw_driver.device.errors.InvalidArgumentError` for another shape or type.
        """
        _check_placed(placed)
        self._call("write_tensor", self._write(placed.blocks_of(values)))

    def read_tensor(self, placed: PlacedTensor) -> NDArray[np.float32]:
        """The tensor's values."""
        _check_placed(placed)
        return self._call("read_tensor", self._read_tensor(placed, self._read))

    def _read_tensor(self, placed: PlacedTensor, read: Callable[[int, int], Steps]) -> Steps:
        """Read each block of a tensor; return its values."""
        values = np.empty(placed.shape, np.float32)
        for index, address in placed.blocks():
            block = values[index]
            data = yield from read(address, block.nbytes)
            values[index] = data.view(np.float32).reshape(block.shape)
        return values

    # What operations of the clock's others do, in their steps.

    def offer_steps(self, work: Work) -> Steps:
        """Offers a work as soon as the pool has room for it; its id. Raises what :meth:`pim_fix`
        does."""

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
        """:meth:`pim_prog` of a core, counted from 0, and a kernel that sees ``window``."""
        pim_id = self.config.banks + core
        return self._in_turn(_once(lambda: self._pim_prog(pim_id, *command, windows=[window])))

    def completion_steps(self, work_id: int) -> Steps:
        """Lets time pass until a work or a kernel has completed. Raises what :meth:`work_query`
        does."""

        def query() -> int:
            if not (done := self._work_query(work_id)):
                self._let_pass()
            return done

        while not (yield from self._in_turn(_once(query))):
            yield

    def idle_steps(self) -> Steps:
        """Reads :attr:`idle`."""
        return self._in_turn(_once(lambda: self._registers.pool.read_field("idle")))

    def read_steps(self, address_bytes: int, nbytes: int) -> Steps:
        """The steps of :meth:`read_memory`."""
        return self._in_turn(self._read(address_bytes, nbytes))

    def tensor_steps(self, placed: PlacedTensor) -> Steps:
        """The steps of :meth:`read_tensor`, a turn for each block."""
        return self._read_tensor(placed, self.read_steps)

    def write_steps(self, blocks: Iterable[tuple[int, NDArray[np.generic]]]) -> Steps:
        """Those of :meth:`write_memory` for each address and what is written there."""
        return self._in_turn(self._write(blocks))

    def _let_pass(self) -> None:
        """Some time passes, at most until another operation does something."""
        until_others = self._domain.horizon - self.transport.cycles()
        self.transport.advance(max(1, min(_WAIT[0], until_others)))

    # Calls.

    def _call(self, name: str, steps: Steps) -> Any:
        """Carries out what is one call of the clock."""
        call: Handle[Any] = Handle(f"the PIM's {name}", self._domain)
        with self._domain.clock:
            if self._closed:
                raise ClosedError("the PIM was closed: open it again")
            call.carry_out(self._in_turn(steps))
        return call.result

    def _in_turn(self, steps: Steps) -> Steps:
        """The steps, from the program's time on. Another thread's may be under way if a callback
        has it call."""
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

    # The rest is for calls.

    @_at_once
    def _open(self) -> None:
        expected = {field.name: field.reset for field in pool_map()["identity"].fields}
        pool = self._registers.pool
        found = {name: pool.read_field("identity", name) for name in expected}
        if found != expected:
            raise IncompatibleDeviceError(
                f"the device identifies itself with {found}, this driver was written for "
                f"{expected}: use the driver that belongs to the device",
                found=found,
            )
        names = ("rows", "columns", "works", "units", "rings", "cores")
        has = {name: pool.read_field("geometry", name) for name in names}
        has["bank_bytes"] = pool.read_field("bank_memory")
        said = {name: getattr(self.config, name) for name in has}
        if has != said:
            raise IncompatibleDeviceError(
                f"the device was made with {has}, the configuration given for it has {said}: open "
                "it with its own",
                found=has,
                expected=said,
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
        elif writes and _meet(range(address_bytes, address_bytes + nbytes), place):
            problem = (
                f"meet the driver's ring{self._beside}, {place.start:#x} to {place.stop - 1:#x}: "
                "write elsewhere"
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
        work.encode()  # or it is refused, before anything is made of its sizes
        work = planned(work, self.config)
        words = work.encode()
        place = self._place
        if work.opcode in FORMS and _meet(work.span("result"), place):
            raise RefusedWorkError(
                f"the result meets the driver's ring{self._beside}, {place.start:#x} to "
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
        """Waits until the descriptor is taken, for as long as works of others fill the pool; gives
        the cause, and the id."""
        return self._until(self._ring.taken, "the check of a descriptor", _CHECK)

    def _is_full(self) -> bool:
        return len(self._running) >= self.config.works or self._ring.is_full

    def _core_of(self, work_id: int) -> tuple[Core | None, int]:
        """The core of a kernel, and the kernel's number there; no core if it is a work's id.

        Raises :class:`~sw_driver.device.errors.UnknownWorkError` for one that was not given out.
        """
        number, kernel = divmod(check_integer("work_id", work_id, None), _KERNEL_ID)
        if number < 1:
            return None, 0
        if number > len(self._cores) or kernel >= self._cores[number - 1].offered:
            raise UnknownWorkError(f"no core was given a kernel {work_id}", work_id=work_id)
        return self._cores[number - 1], kernel

    def _has_ended(self, work_id: int) -> bool:
        """Whether a kernel is known to have ended."""
        core, number = self._core_of(work_id)
        return core is not None and core.has_ended(number)

    def _slot(self, work_id: int) -> int:
        """The slot of a work."""
        return check_integer("work_id", work_id, None) % self.config.works

    def _check_id(self, work_id: int, slot: RegisterWindow, *, current: bool = False) -> int:
        """The id of the work that has the slot of ``work_id``, which that must be if ``current``;
        raises :class:`~sw_driver.device.errors.UnknownWorkError`."""
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


def _meet(one: range, other: range) -> bool:
    return one.start < other.stop and other.start < one.stop
