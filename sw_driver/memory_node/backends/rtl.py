"""A network of Verilated memory-nodes with their DDR4, in this process."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hw.memory_node.config import MemoryNodeConfig
from sw_driver.device.clock import Clock, Domain, Steps
from sw_driver.device.errors import ClosedError, InvalidArgumentError
from sw_driver.device.streams import Handle
from sw_driver.device.transport import DeviceFault, DeviceTimeout
from sw_driver.simulator.library import load_library
from sw_driver.simulator.parts import parts_library

from ..dma import DmaNetwork, check_ring
from ..packets import LINE_BYTES, Flit
from ..registers import NodeRegisters

if TYPE_CHECKING:
    from hw.sim.assembly import Assembly

__all__ = ["RtlNetwork"]

_OK, _WAITING = 0, 1

_REGISTER_LIMIT_CYCLES = 1000
"""Cycle limit of a register access."""

_REGISTER_CYCLES = 3
"""Cycles of a normal register access."""

_MOST_FLITS = 4096
"""Flits that one call fetches from the simulator, at most."""

_FLIT = np.dtype(
    [("channel", "u1"), ("head", "u1"), ("tail", "u1"), ("", "u1"), ("payload", f"V{LINE_BYTES}")]
)

_HARNESS = Path(__file__).with_name("rtl_harness.cpp")

_u64 = ctypes.c_uint64


class RtlNetwork(DmaNetwork):
    """A ring of ``devices`` device-nodes and as many Verilated memory-nodes.

    See :func:`~hw.sim.memory_node_ring.memory_node_ring`. The clock stands still between calls.

    Parameters
    ----------
    devices
        Number of devices, 2 to 128.
    config
        Configuration of the memory-nodes, with two groups.
    local_bytes
        Bytes of a device's memory.
    announce
        Function called with a message when the simulator must be built first.
    clock
        Clock shared with other devices, if any.

    Raises
    ------
    BuildError
        The simulator cannot be built.

    Examples
    --------
    >>> from hw.memory_node.config import MEMORY_NODE_PRESETS
    >>> from nearmem import DeviceNode, Direction
    >>> network = RtlNetwork(config=MEMORY_NODE_PRESETS["tiny"], local_bytes=1 << 20)
    >>> node = DeviceNode(network)
    >>> here, there = node.cuda_malloc(64), node.cuda_malloc_remote(64)
    >>> copy = node.cuda_memcpy_async(there, here, 64, Direction.LOCAL_TO_REMOTE)
    >>> node.synchronize()
    >>> network.close()
    """

    name = "rtl"

    def __init__(
        self,
        *,
        devices: int = 2,
        config: MemoryNodeConfig,
        local_bytes: int,
        announce: Callable[[str], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        check_ring(devices, local_bytes)
        if not config.ring:
            raise InvalidArgumentError(f"groups is {config.groups}: expected nodes with two groups")
        self.ports = RtlPorts(devices, config, local_bytes, announce, clock)
        super().__init__(self.ports, self.ports.domain)

    def close(self) -> None:
        """Discard queued operations and release the models."""
        super().close()

    def _close(self) -> None:
        super()._close()
        self.ports.close()


class RtlPorts:
    """Device ends of the links, and the registers of the nodes.

    A register access takes simulated time like any operation.
    """

    timed = True

    def __init__(
        self,
        devices: int,
        config: MemoryNodeConfig,
        local_bytes: int,
        announce: Callable[[str], None] | None,
        clock: Clock | None = None,
    ) -> None:
        self.devices = devices
        self.side_links = config.links // 2
        self.local_bytes = local_bytes
        self.share_bytes = config.group_bytes
        cycle_ps = 4 * config.part.timing.tck_ps
        self.domain = Domain(clock, mhz=10**6 / cycle_ps, question_cycles=_REGISTER_CYCLES)

        def design() -> Assembly:
            from hw.sim.memory_node_ring import memory_node_ring

            return memory_node_ring(config, devices)

        path = parts_library(
            design,
            name="memory_nodes",
            about=f"the simulator of {devices} memory-nodes",
            parameters=[repr(config), str(devices)],
            harness=_HARNESS,
            unused=["axdimm", "kernel", "rules", "pim"],
            announce=announce,
        )
        self._library = load_library(path, _HARNESS)
        self._ring = self._library.nm_open()
        # Closes a network that the program did not close; not at exit, where others close it.
        self._finalizer = weakref.finalize(self, self._library.nm_close, self._ring)
        self._finalizer.atexit = False
        self._buffer = np.empty(_MOST_FLITS, _FLIT)
        self.registers = [
            NodeRegisters(partial(self._access, number), partial(self._access, number, write=True))
            for number in range(devices)
        ]
        for number, node in enumerate(self.registers):
            node.place(identity=2 * number + 1, date_line=number == 0)
            for group, device in enumerate((number, (number + 1) % devices)):
                node.allocate(group, owner=2 * device, base=0, size=config.group_bytes)

    def send(self, device: int, link: int, channel: int, flits: list[Flit]) -> None:
        """See :class:`~sw_driver.memory_node.dma.Ports`."""
        words = np.array(
            [(channel, head, tail, 0, payload) for head, tail, payload in flits], _FLIT
        )
        self._call("send", self._link(device, link), words.ctypes.data, len(words))

    def unsent(self, device: int, link: int) -> int:
        """See :class:`~sw_driver.memory_node.dma.Ports`."""
        return self._call("waiting", self._link(device, link))

    def received(self, device: int, link: int) -> Iterator[tuple[int, Flit]]:
        """See :class:`~sw_driver.memory_node.dma.Ports`."""
        count = _MOST_FLITS
        while count == _MOST_FLITS:
            with self.domain.clock.within():
                place = self._link(device, link), self._buffer.ctypes.data
                count = self._call("receive", *place, _MOST_FLITS)
                flits = self._buffer[:count].tolist()
            for channel, head, tail, _, payload in flits:
                yield channel, Flit(bool(head), bool(tail), payload)

    def dead(self, device: int, link: int) -> bool:
        """See :class:`~sw_driver.memory_node.dma.Ports`."""
        return bool(self._call("dead", self._link(device, link)))

    def cut(self, device: int, link: int) -> None:
        """Cut a link: the device receives nothing from it any more."""
        self._call("cut", self._link(device, link))

    def consistent(self, cycles: int) -> bool:
        """Advance by ``cycles``; return True if no output depended on an input in the same cycle.

        Parts that are simulated one by one require this.
        """
        return bool(self._call("consistent", cycles))

    def advance(self, cycles: int) -> None:
        """See :class:`~sw_driver.memory_node.dma.Ports`.

        Raises :class:`~sw_driver.device.transport.DeviceFault` if a DRAM timing rule was broken.
        """
        with self.domain.clock.within():
            self._call("advance", cycles)
            if self._call("violated"):
                raise DeviceFault("a DRAM of a memory-node reports a broken timing rule")

    def cycles(self) -> int:
        """See :class:`~sw_driver.memory_node.dma.Ports`."""
        return self._call("cycles")

    def close(self) -> None:
        """Release the models once calls of other threads are over."""
        with self.domain.clock.within():
            self._finalizer()
            self._ring = None

    def _access(self, node: int, offset_bytes: int, value: int = 0, *, write: bool = False) -> int:
        word = _u64(value)
        label = f"the register at {offset_bytes:#x} of memory-node {2 * node + 1}"

        def steps() -> Steps:
            yield from self.domain.catch_up(self.cycles, self.advance)
            access = node, write, offset_bytes, _REGISTER_LIMIT_CYCLES, ctypes.byref(word)
            status = self._call("access", *access)
            self.domain.now = max(self.domain.now, self.cycles())
            if status == _WAITING:
                raise DeviceTimeout(f"{label} did not answer in {_REGISTER_LIMIT_CYCLES} cycles")
            if status != _OK:
                raise DeviceFault(f"{label} was refused")

        with self.domain.clock:
            Handle(f"an access to {label}", self.domain).carry_out(steps())
        return word.value

    def _link(self, device: int, link: int) -> int:
        return device * 2 * self.side_links + link

    def _call(self, function: str, *arguments: Any) -> Any:
        # One thread at a time: the library has no locks.
        with self.domain.clock.within():
            if self._ring is None:
                raise ClosedError("the network was closed: make another one")
            return getattr(self._library, f"nm_{function}")(self._ring, *arguments)
