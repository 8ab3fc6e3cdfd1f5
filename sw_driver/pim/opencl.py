"""OpenCL's model as the paper extends it (Table II): a platform with the CPU, the pools and the
programmable cores as devices, one memory that all share, and kernels that run on any of them.

Words are OpenCL's. Commands go on while somebody waits, in simulated time, each of the queues' when
the one before it has ended (:mod:`sw_driver.device.streams`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import ceil
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hw.pim.config import BEAT_BYTES
from sw_driver.device.clock import Exclusive, Steps
from sw_driver.device.errors import InvalidArgumentError, RefusedWorkError
from sw_driver.device.streams import Handle, Stream
from sw_driver.machine.processors import XEON_E5_2630_V3
from sw_driver.numbers import check_integer, check_name, check_number, listed

from .bounds import check_bounds
from .buffers import Buffer, Held
from .cores import offset_in
from .descriptor import ELEMENT_BYTES, Work
from .device import Pim
from .host import HostLibrary, Shown, package_kernels, package_library
from .placing import PlacedTensor, StackMemory
from .planning import planned
from .programs import WINDOW_BYTES, Command, Window, work_slots

__all__ = [
    "Access",
    "CommandQueue",
    "Context",
    "Device",
    "Event",
    "Kernel",
    "Place",
    "Platform",
    "Profile",
    "host_ns",
]

_CPU_CORES = 8
"""Of the paper's CPU."""
_MOST_NS = 1e15
"""Nanoseconds of a kernel at most, 12 days."""


class Device(NamedTuple):
    """A compute device: ``pools``, whose compute units are banks and whose processing elements are
    multipliers and adders; ``cores``, the programmable PIM; or ``cpu``, the host."""

    name: str
    compute_units: int
    processing_elements: int


class Access(NamedTuple):
    """Bytes of the stack that a command reads or writes; it does both where it writes but some."""

    span: range
    reads: bool
    writes: bool


class Platform:
    """The host with a stack, and their devices by name."""

    def __init__(self, pim: Pim) -> None:
        if not isinstance(pim, Pim):
            raise InvalidArgumentError(f"got {pim!r}: expected a Pim")
        self.pim, config = pim, pim.config
        found = [
            Device("pools", config.banks, config.units),
            Device("cores", config.cores, config.cores),
            Device("cpu", _CPU_CORES, _CPU_CORES),
        ]
        self.devices = {each.name: each for each in found if each.compute_units}


class Profile(NamedTuple):
    """When a command was queued, when what it waited for had ended, and when it began and ended, in
    ns of simulated time; all 0 on a backend without a clock."""

    queued_ns: int
    submitted_ns: int
    begin_ns: int
    end_ns: int


class Event(Handle[Any]):
    """A command of a queue, which other commands may wait for."""

    def __init__(self, context: Context, what: str) -> None:
        super().__init__(what, context.domain)
        self.context = context
        self.place = ""
        """Where it runs or ran: a device, or which of the cores; none if it computes nothing."""
        self.queued = self.submitted = self.running = context.domain.program_now
        """The cycles of the device in which it was queued, had nothing to wait for, and began."""

    @property
    def profile(self) -> Profile:
        """The event's times. Raises :class:`~sw_driver.device.errors.InvalidArgumentError` before
        its end."""
        if not self.over:
            raise InvalidArgumentError(f"{self.label} has not ended: wait for it first")
        cycles = self.queued, self.submitted, self.running, self.ended
        return Profile(*(int(each * self.context.cycle_ns) for each in cycles))


class Kernel(Held):
    """What computes the same bits on each device of :attr:`devices`: what the pools do, a core's
    firmware, and the same compiled for the host (the paper's four binaries, Figure 4). Made by
    :meth:`Context.kernel`; its memory is given back by :meth:`release`, or at the end of a
    ``with``."""

    def __init__(
        self,
        context: Context,
        name: str,
        works: Sequence[Work],
        command: str | None,
        arguments: Sequence[Any],
        uses: str,
    ) -> None:
        super().__init__(f"the kernel {name!r}", self._release_slots)
        config, firmware = context.pim.config, context.pim.firmware
        if not isinstance(name, str):
            raise InvalidArgumentError(f"a kernel's name is {name!r}: expected a string")
        # Copies: a list that is given is its owner's, and may change.
        works, arguments = listed("works", works), listed("arguments", arguments)
        self.context, self.name, self.command = context, name, command
        tensors = [each for each in arguments if isinstance(each, PlacedTensor)]
        for work in works:
            if not isinstance(work, Work):
                raise InvalidArgumentError(f"works have {work!r}: expected what work_on returns")
        if command is None and not works:
            raise InvalidArgumentError(f"{name} does nothing: give a command, or works")
        if not isinstance(uses, str) or len(uses) != len(tensors) or set(uses) - set("rwb"):
            raise InvalidArgumentError(
                f"{name} has {len(tensors)} tensors, and uses {uses!r}: expected r, w or b (read, "
                "all written, both) for each"
            )
        # Before anything is placed.
        binary, others = self._binary(len(works), arguments)
        firmware.words(
            Command(binary, [0 if isinstance(each, PlacedTensor) else each for each in others])
        )
        check_bounds(binary, arguments, called=name)
        by_name = {
            "pools": command is None,
            "cores": config.cores > 0,
            "cpu": context.host_kernels.get(binary) == firmware.kernels[binary],
        }
        self.devices = [device for device, has in by_name.items() if has]
        """Devices that have a form of it, in the order in which the paper prefers them."""
        if not self.devices:
            raise InvalidArgumentError(
                f"{name}: no device has the kernel {binary!r}: the stack has no cores, and the "
                "context's library for the cpu lacks it; give one, Context(..., library=...)"
            )
        self.tensors = tuple(tensors)
        """Tensors among the arguments."""
        operands = [getattr(each, n) for each in works for n in (*each.operands, "result")]
        self.buffers: list[Buffer] = list(
            {id(t.buffer): t.buffer for t in (*tensors, *operands) if t.buffer is not None}.values()
        )
        """Buffers that it uses."""
        context.check_buffers(self.buffers)
        self.works = [
            planned(each if each.units or each.banks else replace(each, units=config.units), config)
            for each in works
        ]
        used = zip(tensors, uses, strict=True)
        self.accesses = [Access(each.span, use != "w", use != "r") for each, use in used]
        for work in works:
            self.accesses += (Access(work.span(each), True, False) for each in work.operands)
            span = work.span("result")
            self.accesses.append(Access(span, len(span) != ELEMENT_BYTES * work.results, True))
        self._arguments = arguments
        self._slots: PlacedTensor | None = None
        self._words: NDArray[np.uint32] = np.array(work_slots(self.works), np.uint32)
        spans = [each.span for each in self.accesses]
        if works:
            self._slots = context.buffer(f"works of {name}", (len(self._words),))
            if self._slots.buffer is not None:
                self.buffers.append(self._slots.buffer)
            spans.append(self._slots.span)
        try:
            self._place(spans)
        except BaseException:
            self._release_slots()
            raise

    def _place(self, spans: Sequence[range]) -> None:
        """Find the window, and write the slots for the cores."""
        context, name = self.context, self.name
        if self._slots is not None and context.pim.config.cores:
            context.pim.write_memory(self._slots.address_bytes, self._words)
        start = min((each.start for each in spans), default=0) // BEAT_BYTES * BEAT_BYTES
        stop = max((each.stop for each in spans), default=BEAT_BYTES)
        size = -(-(stop - start) // BEAT_BYTES) * BEAT_BYTES
        check_integer(f"bytes over which {name} spreads", size, 1, WINDOW_BYTES)
        self.window = Window(start, size)
        """What a core sees of the stack while it runs the kernel."""
        self._offset = (WINDOW_BYTES - start) % (1 << 32)
        context.pim.firmware.words(self.on_core())

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _release_slots(self) -> None:
        if self._slots is not None:
            self._slots.release()

    @property
    def operations(self) -> int:
        """Multiplications and additions of its works, or elements that it uses without any."""
        return sum(sum(work.operations) for work in self.works) or self.nbytes // ELEMENT_BYTES

    @property
    def nbytes(self) -> int:
        """Bytes that it reads and writes at least."""
        return sum(len(each.span) for each in self.accesses)

    def spans(self, used: Callable[[Access], bool]) -> list[tuple[int, int]]:
        """Where bytes that are so used begin and end, in order, each once."""
        return sorted({(each.span.start, each.span.stop) for each in self.accesses if used(each)})

    def check_works(self) -> None:
        """Raises :class:`~sw_driver.device.errors.RefusedWorkError` for a work that the pools would
        refuse: whoever is in their place refuses it, too."""
        for number, work in enumerate(self.works):
            if work.overlaps:
                raise RefusedWorkError(
                    f"work {number} of {self.name} was refused: overlap; give it a result of its "
                    "own, or one that is an operand of an element-wise work",
                    cause="overlap",
                )

    def on_core(self) -> Command:
        """The command of a core, or of the host, which sees ``window`` as its first."""
        name, arguments = self._binary(
            len(self.works), self._arguments, slots=self._slots, offset=self._offset
        )
        shown = [self.window]
        return Command(
            name, [offset_in(a, shown) if isinstance(a, PlacedTensor) else a for a in arguments]
        )

    def _binary(
        self,
        works: int,
        arguments: Sequence[Any],
        *,
        slots: PlacedTensor | None = None,
        offset: int = 0,
    ) -> tuple[str, list[Any]]:
        """The firmware's kernel for this one, and its arguments."""
        of_works = [slots or 0, works] * (works > 0)
        if self.command is None:
            return "compute", [*of_works, *arguments, offset]
        return self.command, [*of_works, *arguments]

    def on_host(self, memory: NDArray[np.uint8]) -> None:
        """Computes on the host, on ``memory``, which is what ``window`` shows.

        Raises :class:`~sw_driver.device.errors.KernelError` if it goes beyond its tensors.
        """
        start = self.window.address_bytes
        places = list(self.accesses)
        if self._slots is not None:
            at = self._slots.address_bytes - start
            memory[at : at + self._words.nbytes] = self._words.view(np.uint8)
            places.append(Access(self._slots.span, True, False))
        shown = [
            Shown(self._label(each.span), _moved(each.span, -start), each.writes) for each in places
        ]
        library = self.context.library or package_library()
        library.run(
            self.name, self.context.pim.firmware, self.on_core(), memory, shown, self._offset
        )

    def _label(self, span: range) -> str:
        """Return in words the buffers in a span of memory."""
        named = [*self.tensors, *([self._slots] if self._slots is not None else [])]
        for tensor in named:
            if tensor.span == span and tensor.buffer is not None:
                return tensor.buffer.title
        return f"the tensor at {span.start:#x}"


def _moved(span: range, nbytes: int) -> range:
    return range(span.start + nbytes, span.stop + nbytes)


def host_ns(kernel: Kernel, *, launch_ns: int = 0) -> int:
    """What the paper's CPU takes for a kernel: its operations at the processor's rate or its bytes
    at its memory's, whichever is more, and at least 1 ns; and before that a framework's
    ``launch_ns``."""
    cpu = XEON_E5_2630_V3
    compute_ns = kernel.operations / (1000 * cpu.tflop_per_s.value)
    return launch_ns + ceil(max(compute_ns, kernel.nbytes / cpu.gb_per_s.value, 1))


class Place(Exclusive):
    """Where a kernel runs: the pools, which take several at once, the host or one of the cores."""

    def __init__(self, device: str, number: int = 0) -> None:
        super().__init__(f"core {number}" if device == "cores" else device)
        self.device, self.number = device, number


class Context:
    """The devices of a platform with their memory, the striped memory of the stack. The cores load
    their firmware, in some 45,000 cycles.

    What a command wrote is seen by commands that wait for it, whatever device they are on. On the
    host a kernel's operands are read through the stack's port, and results written, in the port's
    time; in between it takes ``cpu_ns(kernel)``, by default :func:`host_ns`. What is in the gaps of
    a result, as between the elements of a column, is written back, too: nobody else may write to
    them meanwhile, which :class:`~sw_driver.pim.runtime.Scheduler` sees to.
    The host has the package's kernels, or those of ``library``, which ``compile_library`` made of
    the same C files as the cores' image; a kernel that is not there has no form for the cpu.
    """

    def __init__(
        self,
        platform: Platform,
        *,
        cpu_ns: Callable[[Kernel], int] = host_ns,
        library: ctypes.CDLL | None = None,
    ) -> None:
        if not isinstance(platform, Platform):
            raise InvalidArgumentError(f"got {platform!r}: expected a Platform")
        if not callable(cpu_ns):
            raise InvalidArgumentError(
                f"cpu_ns is {cpu_ns!r}: expected a function of a kernel that returns ns, such as "
                "lambda kernel: 500"
            )
        self.platform, self.pim, self._cpu_ns = platform, platform.pim, cpu_ns
        self.library = None if library is None else HostLibrary(library)
        """The host's kernels, if they are not the package's."""
        self.host_kernels = package_kernels() if self.library is None else self.library.kernels
        """Words of arguments of the host's kernels, by name."""
        self.kernel_names: set[str] = set()
        """Names of the kernels that were made."""
        self.domain = self.pim.transport.domain
        config = self.pim.config
        self.cycle_ns = 1000 / config.clock_mhz if self.domain.timed else 0.0
        self.memory = StackMemory(config)
        cores = range(config.cores)
        self.places = [Place("pools"), *(Place("cores", core) for core in cores), Place("cpu")]
        for each in [self.pim.pim_prog(config.banks + core, "fill", (0, 0, 0)) for core in cores]:
            self.pim.wait(each)

    def buffer(self, name: str, shape: tuple[int, ...]) -> PlacedTensor:
        """A buffer, which all devices see, until :meth:`~PlacedTensor.release
        <sw_driver.pim.placing.PlacedTensor.release>` or the end of a ``with``.

        A release is refused, with :class:`~sw_driver.device.errors.BusyError`, while a command that
        uses the buffer has not ended; what uses it later, with
        :class:`~sw_driver.device.errors.PointerError`.
        """
        return self.memory.place(name, shape)

    def kernel(
        self,
        name: str,
        command: str | None = None,
        arguments: Sequence[PlacedTensor | float | np.floating] = (),
        uses: str = "",
        *,
        works: Sequence[Work] = (),
    ) -> Kernel:
        """A kernel: ``works``, which the pools do, or a core or the host in their place; or
        ``command``, a kernel of the firmware, with its arguments; or a recursive one, which has the
        works done, and whose arguments begin behind its slots.

        ``uses`` has a letter for each tensor among the arguments: ``r`` for one that is read, ``w``
        for one of which all is written, ``b`` for one of which some is, or that is read, too.

        Raises
        ------
        InvalidArgumentError: the command is not there, on no device, or has other arguments.
        RangeError: sizes have a kernel of the package go beyond a tensor. A kernel of one's own, or
            a program, that does so fails when it runs: on the host where it goes beyond any of its
            tensors, on a core where it goes beyond what these spread over.
        """
        kernel = Kernel(self, name, works, command, arguments, uses)
        self.kernel_names.add(name)
        return kernel

    def cpu_ns(self, kernel: Kernel) -> float:
        """Return what the host takes for a kernel.

        Raises :class:`~sw_driver.device.errors.InvalidArgumentError` if the context's ``cpu_ns``
        returns no number of ns.
        """
        value = self._cpu_ns(kernel)
        check_number(f"what cpu_ns returns for {kernel.name}", value, 0, _MOST_NS)
        return value

    def check_buffers(self, buffers: Iterable[Buffer]) -> None:
        """Raises :class:`~sw_driver.device.errors.InvalidArgumentError` for a buffer of another
        context, and :class:`~sw_driver.device.errors.PointerError` for one that was released."""
        for each in buffers:
            each.check()
            if each.memory is not self.memory:
                raise InvalidArgumentError(f"{each.title} is another context's: make one here")

    def check(self, *mine: Event | Kernel) -> None:
        """Raises :class:`~sw_driver.device.errors.InvalidArgumentError` for what is another's."""
        for each in mine:
            if not isinstance(each, Event | Kernel) or each.context is not self:
                raise InvalidArgumentError(
                    f"{each!r} is no event or kernel of this context: make it with this one"
                )

    def run(self, kernel: Kernel, place: Place, event: Event) -> Steps:
        """The steps of a kernel at a place, when that is free."""
        domain, pim = self.domain, self.pim
        if place.device != "pools":
            while not place.over:
                yield place
            place.holder = event
            domain.now = max(domain.now, domain.cycles(place.time))
        event.place, event.running = place.label, domain.now
        try:
            if place.device != "pools":
                kernel.check_works()
            if place.device == "cpu":
                yield from self._on_host(kernel)
                return
            if place.device == "cores":
                offers = [pim.kernel_steps(place.number, kernel.on_core(), kernel.window)]
            else:
                offers = [pim.offer_steps(work) for work in kernel.works]
            running = []
            for each in offers:
                running.append((yield from each))
            for each in running:
                yield from pim.completion_steps(each)
        finally:
            place.release(domain)

    def _on_host(self, kernel: Kernel) -> Steps:
        start = kernel.window.address_bytes
        memory = np.zeros(kernel.window.size_bytes, np.uint8)
        for at, stop in kernel.spans(lambda each: each.reads):
            memory[at - start : stop - start] = yield from self.pim.read_steps(at, stop - at)
        kernel.on_host(memory)
        if self.domain.timed:
            self.domain.now += ceil(self.cpu_ns(kernel) / self.cycle_ns)
            yield
        written = kernel.spans(lambda each: each.writes)
        blocks = [(at, memory[at - start : stop - start]) for at, stop in written]
        yield from self.pim.write_steps(blocks)


class CommandQueue:
    """Commands for a device, one after the other. Each is queued, and its event returned, at once;
    it begins when the one before it, and all that it is to ``wait_for``, has ended.

    When one fails, those behind it are not carried out, and the queue takes no more, until
    :meth:`recover`; :meth:`finish` raises what it failed with. Lists that are given may change
    afterwards. Raises :class:`~sw_driver.device.errors.InvalidArgumentError` for what is another
    context's.
    """

    def __init__(self, context: Context, device: str) -> None:
        if not isinstance(context, Context):
            raise InvalidArgumentError(f"got {context!r}: expected a Context")
        check_name("the device", device, context.platform.devices)
        self.context, self.device = context, device
        self._devices = [device]
        """Devices that commands may go to."""
        self._stream = Stream(f"of the {device}", context.domain)

    def enqueue_kernel(self, kernel: Kernel, wait_for: Sequence[Event] = ()) -> Event:
        """Runs a kernel. Raises :class:`~sw_driver.device.errors.InvalidArgumentError` for one that
        has no form for the device."""
        self.context.check(kernel)
        if not set(kernel.devices).intersection(self._devices):
            raise InvalidArgumentError(
                f"{kernel.name} has no form for the {self.device}: queue it on "
                f"{' or '.join(kernel.devices)}"
            )
        kernel.check()
        self.context.check_buffers(kernel.buffers)
        return self._enqueue(
            kernel.name,
            kernel.accesses,
            lambda event: self._run(kernel, event),
            wait_for,
            [kernel, *kernel.buffers],
        )

    def enqueue_write(
        self, buffer: PlacedTensor, values: NDArray[np.float32], wait_for: Sequence[Event] = ()
    ) -> Event:
        """Writes values, which may change afterwards, to a buffer of their shape."""
        self._check_buffer(buffer)
        blocks = buffer.blocks_of(values)
        access = Access(buffer.span, False, True)
        return self._enqueue(
            "write",
            [access],
            lambda _: self.context.pim.write_steps(blocks),
            wait_for,
            [buffer.buffer],
        )

    def enqueue_read(self, buffer: PlacedTensor, wait_for: Sequence[Event] = ()) -> Event:
        """Reads a buffer, whose values are the event's result."""
        self._check_buffer(buffer)
        return self._enqueue(
            "read",
            [Access(buffer.span, True, False)],
            lambda _: self.context.pim.tensor_steps(buffer),
            wait_for,
            [buffer.buffer],
        )

    def enqueue_barrier(self, wait_for: Sequence[Event] = ()) -> Event:
        """Ends when all before it, and what it is to wait for, has."""
        everything = Access(range(self.context.pim.config.stack_bytes), True, True)
        return self._enqueue("barrier", [everything], lambda _: (each for each in ()), wait_for)

    def finish(self) -> None:
        """Lets time pass until all that was queued has ended; raises what one failed with."""
        self._stream.wait()

    def recover(self) -> BaseException | None:
        """Forget the failure, which is returned: what is queued from now on is carried out."""
        return self._stream.recover()

    def _check_buffer(self, buffer: PlacedTensor) -> None:
        if not isinstance(buffer, PlacedTensor):
            raise InvalidArgumentError(f"got {buffer!r}: expected a buffer, or a part of one")
        if buffer.buffer is not None:
            self.context.check_buffers([buffer.buffer])

    def _enqueue(
        self,
        what: str,
        accesses: Sequence[Access],
        run: Callable[[Event], Steps],
        wait_for: Sequence[Event],
        used: Sequence[Held | None] = (),
    ) -> Event:
        context = self.context
        before = listed("wait_for", wait_for, "a list of events, such as [event]")
        for each in before:
            if not isinstance(each, Event) or each.context is not context:
                raise InvalidArgumentError(
                    f"wait_for has {each!r}, which is no event of this context: expected what its "
                    "queues returned"
                )
        event = Event(context, what)

        def steps() -> Steps:
            for each in before:
                yield each
                each.outcome()
            event.start()
            event.submitted = event.running = context.domain.now
            return (yield from run(event))

        with context.domain.clock:
            self._begin(event, accesses, steps)
        for each in used:
            if each is not None:
                each.use(event)
        return event

    def _begin(self, event: Event, _: Sequence[Access], steps: Callable[[], Steps]) -> None:
        """Queues an event."""
        self._stream.submit(event, steps)

    def _run(self, kernel: Kernel, event: Event) -> Steps:
        places = [each for each in self.context.places if each.device == self.device]
        place = next((each for each in places if each.over), places[0])
        return self.context.run(kernel, place, event)
