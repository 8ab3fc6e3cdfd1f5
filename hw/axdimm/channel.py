"""Channel of the module: arbiter, kernel and memory."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import wiring

from hw.axdimm.arbiter import Arbiter
from hw.axdimm.config import ModuleConfig
from hw.axdimm.host_axi import HostAxiPort
from hw.axdimm.host_port import HostPort
from hw.axdimm.memory import AxiMemory, Ddr4Memory
from hw.axdimm.memory_join import ExclusiveJoin, MemoryJoin
from hw.axdimm.run_account import RUN_COMMANDS, RunAccount
from hw.dram.controller import Ddr4Controller
from hw.dram.dfi import DfiController
from hw.kernel.kernel import Kernel
from hw.logic.expose import expose

__all__ = [
    "Channel",
    "axdimm_channel",
    "channel_arbiter",
    "channel_controller",
]


class Channel(wiring.Component):
    """Arbiter, kernel and memory, connected (paper section 3.1, Figure 2).

    Parameters
    ----------
    arbiter, kernel
        Arbiter between host and kernel, and the kernel that updates the parameters.
    memory
        Component with a member ``memory``, In(:class:`~hw.axdimm.memory.MemorySignature`). Its
        other members are interfaces to the outside, as :class:`~hw.axdimm.memory.Ddr4Memory` has.

    Members
    -------
    link or s_axi : as that of ``arbiter``
        The host.
    dfi, m_axi or others : as those of ``memory``
        The DRAM of the channel.
    read_done : Out(1)
        See :class:`~hw.axdimm.arbiter.Arbiter`.
    idle : Out(1)
        No request of the host is queued or in flight, and the memory is idle.

    Examples
    --------
    >>> from hw.axdimm.config import configure
    >>> channel = axdimm_channel(configure("tiny"))
    >>> list(channel.signature.members)
    ['link', 'read_done', 'idle', 'dfi']
    >>> list(axdimm_channel(configure("tiny", host="axi4", memory="axi4")).signature.members)
    ['s_axi', 'read_done', 'idle', 'm_axi']
    """

    def __init__(self, *, arbiter: Arbiter, kernel: Kernel, memory: wiring.Component) -> None:
        self._arbiter = arbiter
        self._kernel = kernel
        self._memory = memory
        self._outside = {
            name: arbiter.signature.members[name] for name in (arbiter.side, "read_done", "idle")
        }
        members = memory.signature.members
        self.memory_side = {name: member for name, member in members.items() if name != "memory"}
        """Members that the channel takes over from the memory."""
        super().__init__({**self._outside, **self.memory_side})

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        m.submodules.arbiter = arbiter = self._arbiter
        m.submodules.kernel = kernel = self._kernel
        m.submodules.memory = memory = self._memory
        m.submodules.account = account = RunAccount()
        expose(m, self, arbiter, self._outside)
        wiring.connect(m, kernel.m_axi, arbiter.kernel)
        wiring.connect(m, arbiter.kernel_csr, kernel.s_axi)
        wiring.connect(m, arbiter.memory, memory.memory)
        expose(m, self, memory, self.memory_side)
        wiring.connect(m, account.o, arbiter.run)
        m.d.comb += [
            arbiter.kernel_busy.eq(kernel.busy),
            account.begins.eq(kernel.begins),
            account.check_cycles.eq(kernel.check_cycles),
            account.running.eq(kernel.running),
            *(
                getattr(account, name).eq(getattr(memory.memory, name))
                for name in ("activity", *RUN_COMMANDS)
            ),
        ]
        return m


def axdimm_channel(config: ModuleConfig) -> Channel:
    """Return a channel of the module, where host and kernel exclude each other at the memory."""
    return Channel(
        arbiter=channel_arbiter(config, ExclusiveJoin(addr_width=config.address_width)),
        kernel=Kernel(config.kernel),
        memory=(
            AxiMemory(addr_width=config.address_width)
            if config.memory == "axi4"
            else Ddr4Memory(channel_controller(config, DfiController, reserve=False))
        ),
    )


def channel_arbiter(config: ModuleConfig, join: MemoryJoin) -> Arbiter:
    """Return the arbiter of a channel of the module, with ``join`` before the memory."""
    if config.host == "axi4":
        port = HostAxiPort(address_width=config.address_width)
    else:
        port = HostPort(
            address_width=config.address_width, read_latency=config.read_latency_fabric_cycles
        )
    return Arbiter(
        join=join,
        port=port,
        lanes=config.lanes,
        block_bytes=config.block_bytes,
        rules=tuple(rule.identifier for rule in config.kernel.update_rules),
        narrow=config.narrow,
    )


def channel_controller(
    config: ModuleConfig, kind: type[Ddr4Controller | DfiController], *, reserve: bool
) -> Any:
    """Return a DRAM controller of class ``kind`` for a channel of the module.

    Within the channel it is built without ``reserve``, since read data are always taken there.
    """
    return kind(
        geometry=config.part.geometry,
        timing=config.part.timing,
        addr_width=config.address_width,
        id_width=1,
        config=config.controller,
        reserve=reserve,
    )
