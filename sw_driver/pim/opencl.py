"""OpenCL's model as the paper extends it (Table II).

A platform has the CPU, the pools and the programmable cores as devices. They share one memory, and
kernels run on any of them. Terms are OpenCL's.

Commands make progress in simulated time, while a caller waits. A queue's command begins when the
one before it has ended (:mod:`sw_driver.device.streams`).
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
"""Cores of the paper's CPU."""
_MOST_NS = 1e15
"""Longest time of a kernel on the CPU, in ns: 12 days."""


class Device(NamedTuple):
    """A compute device: ``pools``, ``cores`` (the programmable PIM) or ``cpu`` (the host).

    Compute units of the pools are banks; their processing elements are multipliers and adders.
    """

    name: str
    compute_units: int
    processing_elements: int


class Access(NamedTuple):
    """Bytes of the stack that a command reads or writes.

    A command that writes only some bytes of the span also reads it.
    """

    span: range
    reads: bool
    writes: bool


class Platform:
    """A host with a stack, and their devices by name."""

    def __init__(self, pim: Pim) -> None:
        if not isinstance(pim, Pim):
            raise InvalidArgumentError(f"got {pim!r}: expected a Pim")
        self.pim, config = pim, pim.config
        devices = [
            Device("pools", config.banks, config.units),
            Device("cores", config.cores, config.cores),
            Device("cpu", _CPU_CORES, _CPU_CORES),
        ]
        self.devices = {device.name: device for device in devices if device.compute_units}


class Profile(NamedTuple):
    """Times of a command, in ns of simulated time; all 0 on a backend without a clock.

    It is submitted when everything that it waits for has ended.
    """

    queued_ns: int
    submitted_ns: int
    begin_ns: int
    end_ns: int


class Event(Handle[Any]):
    """A command of a queue, which other commands may wait for."""

    def __init__(self, context: Context, label: str) -> None:
        super().__init__(label, context.domain)
        self.context = context
        self.place = ""
        """Device or core on which the command runs or ran; empty if it computes nothing."""
        self.queued = self.submitted = self.running = context.domain.program_now
        """Cycles of the device in which the command was queued, became ready, and began."""

    @property
    def profile(self) -> Profile:
        """Times of the command.

        Raises :class:`~sw_driver.device.errors.InvalidArgumentError` before its end.
        """
        if not self.over:
            raise InvalidArgumentError(f"{self.label} has not ended: wait for it first")
        cycles = self.queued, self.submitted, self.running, self.ended
        return Profile(*(int(cycle * self.context.cycle_ns) for cycle in cycles))


class Kernel(Held):
    """A kernel that computes the same bits on each device of :attr:`devices`.

    Its forms are works of the pools, a core's firmware, and the same compiled for the host (the
    paper's four binaries, Figure 4). :meth:`Context.kernel` makes kernels. :meth:`release`, or the
    end of a ``with``, frees the kernel's memory.
    """

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
        # Copy the lists: the caller may change its own later.
        works, arguments = listed("works", works), listed("arguments", arguments)
        self.context, self.name, self.command = context, name, command
        tensors = [value for value in arguments if isinstance(value, PlacedTensor)]
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
        # Check the arguments before placing anything.
        binary, others = self._binary(len(works), arguments)
        firmware.words(
            Command(binary, [0 if isinstance(value, PlacedTensor) else value for value in others])
        )
        check_bounds(binary, arguments, called=name)
        by_name = {
            "pools": command is None,
            "cores": config.cores > 0,
            "cpu": context.host_kernels.get(binary) == firmware.kernels[binary],
        }
        self.devices = [device for device, has in by_name.items() if has]
        """Devices that have a form of the kernel, in the paper's order of preference."""
        if not self.devices:
            raise InvalidArgumentError(
                f"{name}: no device has the kernel {binary!r}: the stack has no cores, and the "
                "context's library for the cpu lacks it; give one, Context(..., library=...)"
            )
        self.tensors = tuple(tensors)
        """Tensors among the arguments, in order."""
        operands = [getattr(work, n) for work in works for n in (*work.operands, "result")]
        self.buffers: list[Buffer] = list(
            {id(t.buffer): t.buffer for t in (*tensors, *operands) if t.buffer is not None}.values()
        )
        """Buffers that the kernel uses."""
        context.check_buffers(self.buffers)
        self.works = [
            planned(work if work.units or work.banks else replace(work, units=config.units), config)
            for work in works
        ]
        used = zip(tensors, uses, strict=True)
        self.accesses = [Access(tensor.span, use != "w", use != "r") for tensor, use in used]
        for work in works:
            self.accesses += (Access(work.span(operand), True, False) for operand in work.operands)
            span = work.span("result")
            self.accesses.append(Access(span, len(span) != ELEMENT_BYTES * work.results, True))
        self._arguments = arguments
        self._slots: PlacedTensor | None = None
        self._words: NDArray[np.uint32] = np.array(work_slots(self.works), np.uint32)
        spans = [access.span for access in self.accesses]
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
        """Set the window around ``spans``, and write the work slots for the cores."""
        context, name = self.context, self.name
        if self._slots is not None and context.pim.config.cores:
            context.pim.write_memory(self._slots.address_bytes, self._words)
        start = min((span.start for span in spans), default=0) // BEAT_BYTES * BEAT_BYTES
        stop = max((span.stop for span in spans), default=BEAT_BYTES)
        size = -(-(stop - start) // BEAT_BYTES) * BEAT_BYTES
        check_integer(f"bytes over which {name} spreads", size, 1, WINDOW_BYTES)
        self.window = Window(start, size)
        """Part of the stack that a core can access while it runs the kernel."""
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
        """Multiplications and additions of the works; without works, elements read and written."""
        return sum(sum(work.operations) for work in self.works) or self.nbytes // ELEMENT_BYTES

    @property
    def nbytes(self) -> int:
        """Bytes of all accesses; each counts once, even if it reads and writes."""
        return sum(len(access.span) for access in self.accesses)

    def spans(self, used: Callable[[Access], bool]) -> list[tuple[int, int]]:
        """Return the distinct (start, stop) of accesses for which ``used`` is true, in order."""
        spans = (access.span for access in self.accesses if used(access))
        return sorted({(span.start, span.stop) for span in spans})

    def check_works(self) -> None:
        """Check the works; cores and the host refuse the same works as the pools.

        Raises :class:`~sw_driver.device.errors.RefusedWorkError` for a work whose result overlaps
        itself or an operand.
        """
        for number, work in enumerate(self.works):
            if work.overlaps:
                raise RefusedWorkError(
                    f"work {number} of {self.name} was refused: overlap; give it a result of its "
                    "own, or one that is an operand of an element-wise work",
                    cause="overlap",
                )

    def on_core(self) -> Command:
        """Return the command for a core or the host, with ``window`` as window 1."""
        name, arguments = self._binary(
            len(self.works), self._arguments, slots=self._slots, offset=self._offset
        )
        windows = [self.window]
        return Command(
            name, [offset_in(a, windows) if isinstance(a, PlacedTensor) else a for a in arguments]
        )

    def _binary(
        self,
        works: int,
        arguments: Sequence[Any],
        *,
        slots: PlacedTensor | None = None,
        offset: int = 0,
    ) -> tuple[str, list[Any]]:
        """Return the name and the arguments of the firmware kernel that computes this kernel."""
        work_arguments = [slots or 0, works] * (works > 0)
        if self.command is None:
            return "compute", [*work_arguments, *arguments, offset]
        return self.command, [*work_arguments, *arguments]

    def on_host(self, memory: NDArray[np.uint8]) -> None:
        """Run the kernel on the host; ``memory`` holds the bytes of ``window``.

        Raises :class:`~sw_driver.device.errors.KernelError` if the kernel fails, such as by an
        access outside of its tensors.
        """
        start = self.window.address_bytes
        places = list(self.accesses)
        if self._slots is not None:
            at = self._slots.address_bytes - start
            memory[at : at + self._words.nbytes] = self._words.view(np.uint8)
            places.append(Access(self._slots.span, True, False))
        shown = [
            Shown(self._label(span), _moved(span, -start), writes) for span, _, writes in places
        ]
        library = self.context.library or package_library()
        library.run(
            self.name, self.context.pim.firmware, self.on_core(), memory, shown, self._offset
        )

    def _label(self, span: range) -> str:
        """Name the tensor that has a span of memory, for messages."""
        named = [*self.tensors, *([self._slots] if self._slots is not None else [])]
        for tensor in named:
            if tensor.span == span and tensor.buffer is not None:
                return tensor.buffer.title
        return f"the tensor at {span.start:#x}"


def _moved(span: range, nbytes: int) -> range:
    return range(span.start + nbytes, span.stop + nbytes)


def host_ns(kernel: Kernel, *, launch_ns: int = 0) -> int:
    """Return the time of a kernel on the paper's CPU, in ns.

    It is the longer of the operations at the processor's rate and the bytes at the memory's rate,
    at least 1 ns, plus a framework's ``launch_ns``.
    """
    cpu = XEON_E5_2630_V3
    compute_ns = kernel.operations / (1000 * cpu.tflop_per_s.value)
    return launch_ns + ceil(max(compute_ns, kernel.nbytes / cpu.gb_per_s.value, 1))


class Place(Exclusive):
    """A place for kernels: the pools, the host or one core; only the pools run several at once."""

    def __init__(self, device: str, number: int = 0) -> None:
        super().__init__(f"core {number}" if device == "cores" else device)
        self.device, self.number = device, number


class Context:
    """The devices of a platform with their shared memory, the striped memory of the stack.

    Making a context starts the cores, which load their firmware in some 45,000 cycles. A command
    sees the results of the commands that it waits for, on any device.

    On the host a kernel reads operands and writes results through the stack's port, in the port's
    time. In between it takes ``cpu_ns(kernel)``, by default :func:`host_ns`. It also writes back
    the old bytes in the gaps of a result, such as between the elements of a column. No other
    command may write to a gap meanwhile; :class:`~sw_driver.pim.runtime.Scheduler` ensures that.

    The host has the package's kernels, or those of ``library``, which ``compile_library`` made from
    the same C files as the cores' image. A kernel that is not there has no form for the CPU.

    Examples
    --------
    >>> from hw.pim.config import configure
    >>> from sw_driver.pim.backends.golden import GoldenPim
    >>> from sw_driver.pim.device import Pim
    >>> with Pim(GoldenPim(configure(preset="tiny", bank_bytes=1 << 17))) as pim:
    ...     context = Context(Platform(pim))
    ...     queue, x = CommandQueue(context, "cpu"), context.buffer("x", (2, 16))
    ...     print(sorted(context.platform.devices), queue.enqueue_read(x).wait().sum())
    ['cpu', 'pools'] 0.0
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
        """Library of the host's kernels; None for the package's."""
        self.host_kernels = package_kernels() if self.library is None else self.library.kernels
        """Number of argument words of the host's kernels, by name."""
        self.kernel_names: set[str] = set()
        """Names of the context's kernels."""
        self.domain = self.pim.transport.domain
        config = self.pim.config
        self.cycle_ns = 1000 / config.clock_mhz if self.domain.timed else 0.0
        self.memory = StackMemory(config)
        cores = range(config.cores)
        self.places = [Place("pools"), *(Place("cores", core) for core in cores), Place("cpu")]
        kernel_ids = [self.pim.pim_prog(config.banks + core, "fill", (0, 0, 0)) for core in cores]
        for kernel_id in kernel_ids:
            self.pim.wait(kernel_id)

    def buffer(self, name: str, shape: tuple[int, ...]) -> PlacedTensor:
        """Allocate a buffer that all devices can access.

        :meth:`~PlacedTensor.release <sw_driver.pim.placing.PlacedTensor.release>`, or the end of a
        ``with``, frees it. A release raises :class:`~sw_driver.device.errors.BusyError` while a
        command that uses the buffer has not ended. Later uses of the buffer raise
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
        """Make a kernel from works, from a command of the firmware, or from both.

        - ``works`` alone run in the pools; a core or the host can compute them instead.
        - ``command`` alone is a kernel of the firmware with ``arguments``.
        - With both, the kernel is recursive: the command starts the works. ``arguments`` are then
          those after the slots.

        ``uses`` has a letter for each tensor among the arguments: ``r`` for read, ``w`` for
        completely written, ``b`` for partly written, or read and written.

        Raises
        ------
        InvalidArgumentError: no device has the command, or its arguments differ.
        RangeError: sizes make a kernel of the package go beyond a tensor. A user's kernel or a
            program that does so fails while it runs: on the host at the first access outside of
            its tensors, on a core at the first one outside of their common window.
        """
        kernel = Kernel(self, name, works, command, arguments, uses)
        self.kernel_names.add(name)
        return kernel

    def cpu_ns(self, kernel: Kernel) -> float:
        """Return the time of a kernel on the host, in ns.

        Raises :class:`~sw_driver.device.errors.InvalidArgumentError` if the context's ``cpu_ns``
        returns no number of ns.
        """
        value = self._cpu_ns(kernel)
        check_number(f"what cpu_ns returns for {kernel.name}", value, 0, _MOST_NS)
        return value

    def check_buffers(self, buffers: Iterable[Buffer]) -> None:
        """Check that all buffers can be used in this context.

        Raises
        ------
        InvalidArgumentError: a buffer belongs to another context.
        PointerError: a buffer was released.
        """
        for buffer in buffers:
            buffer.check()
            if buffer.memory is not self.memory:
                raise InvalidArgumentError(
                    f"{buffer.title} belongs to another context: make one here"
                )

    def check(self, *mine: Event | Kernel) -> None:
        """Check that events and kernels belong to this context.

        Raises :class:`~sw_driver.device.errors.InvalidArgumentError` if one does not.
        """
        for member in mine:
            if not isinstance(member, Event | Kernel) or member.context is not self:
                raise InvalidArgumentError(
                    f"{member!r} is no event or kernel of this context: make it with this one"
                )

    def run(self, kernel: Kernel, place: Place, event: Event) -> Steps:
        """Run a kernel at a place, once that is free."""
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
            for offer in offers:
                running.append((yield from offer))
            for work_id in running:
                yield from pim.completion_steps(work_id)
        finally:
            place.release(domain)

    def _on_host(self, kernel: Kernel) -> Steps:
        start = kernel.window.address_bytes
        memory = np.zeros(kernel.window.size_bytes, np.uint8)
        for at, stop in kernel.spans(lambda access: access.reads):
            memory[at - start : stop - start] = yield from self.pim.read_steps(at, stop - at)
        kernel.on_host(memory)
        if self.domain.timed:
            self.domain.now += ceil(self.cpu_ns(kernel) / self.cycle_ns)
            yield
        written = kernel.spans(lambda access: access.writes)
        blocks = [(at, memory[at - start : stop - start]) for at, stop in written]
        yield from self.pim.write_steps(blocks)


class CommandQueue:
    """A queue of commands for a device, which run one after the other.

    Queueing a command returns its event at once. The command begins when the one before it, and all
    events in ``wait_for``, have ended. Lists that are passed may change afterwards.

    After a failure the commands behind it do not run, and the queue refuses new ones until
    :meth:`recover`. :meth:`finish` raises the error of the failed command. Objects of another
    context are refused with :class:`~sw_driver.device.errors.InvalidArgumentError`.
    """

    def __init__(self, context: Context, device: str) -> None:
        if not isinstance(context, Context):
            raise InvalidArgumentError(f"got {context!r}: expected a Context")
        check_name("the device", device, context.platform.devices)
        self.context, self.device = context, device
        self._devices = [device]
        """Devices that may run the queue's kernels."""
        self._stream = Stream(f"of the {device}", context.domain)

    def enqueue_kernel(self, kernel: Kernel, wait_for: Sequence[Event] = ()) -> Event:
        """Queue a kernel.

        Raises :class:`~sw_driver.device.errors.InvalidArgumentError` if the kernel has no form for
        the device.
        """
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
        """Queue a write of a copy of ``values`` to a buffer of their shape."""
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
        """Queue a read of a buffer; its values are the event's result."""
        self._check_buffer(buffer)
        return self._enqueue(
            "read",
            [Access(buffer.span, True, False)],
            lambda _: self.context.pim.tensor_steps(buffer),
            wait_for,
            [buffer.buffer],
        )

    def enqueue_barrier(self, wait_for: Sequence[Event] = ()) -> Event:
        """Queue a command that ends once all earlier ones, and all of ``wait_for``, have ended."""
        everything = Access(range(self.context.pim.config.stack_bytes), True, True)
        return self._enqueue("barrier", [everything], lambda _: (step for step in ()), wait_for)

    def finish(self) -> None:
        """Let time pass until all queued commands have ended; raise the error of a failed one."""
        self._stream.wait()

    def recover(self) -> BaseException | None:
        """Forget the failure and return its error; the queue accepts commands again."""
        return self._stream.recover()

    def _check_buffer(self, buffer: PlacedTensor) -> None:
        if not isinstance(buffer, PlacedTensor):
            raise InvalidArgumentError(f"got {buffer!r}: expected a buffer, or a part of one")
        if buffer.buffer is not None:
            self.context.check_buffers([buffer.buffer])

    def _enqueue(
        self,
        label: str,
        accesses: Sequence[Access],
        run: Callable[[Event], Steps],
        wait_for: Sequence[Event],
        used: Sequence[Held | None] = (),
    ) -> Event:
        context = self.context
        before = listed("wait_for", wait_for, "a list of events, such as [event]")
        for earlier in before:
            if not isinstance(earlier, Event) or earlier.context is not context:
                raise InvalidArgumentError(
                    f"wait_for has {earlier!r}, which is no event of this context: expected what "
                    "its queues returned"
                )
        event = Event(context, label)

        def steps() -> Steps:
            for earlier in before:
                yield earlier
                earlier.outcome()
            event.start()
            event.submitted = event.running = context.domain.now
            return (yield from run(event))

        with context.domain.clock:
            self._begin(event, accesses, steps)
        for resource in used:
            if resource is not None:
                resource.use(event)
        return event

    def _begin(self, event: Event, _: Sequence[Access], steps: Callable[[], Steps]) -> None:
        """Queues an event."""
        self._stream.submit(event, steps)

    def _run(self, kernel: Kernel, event: Event) -> Steps:
        places = [place for place in self.context.places if place.device == self.device]
        place = next((place for place in places if place.over), places[0])
        return self.context.run(kernel, place, event)
