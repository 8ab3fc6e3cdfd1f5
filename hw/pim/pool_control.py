"""Control of the pool: everything but the banks and their memory controllers."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Cat, Const, Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.axi.bus import AXI4LiteSignature
from hw.csr.axi4_lite_arbiter import AXI4LiteArbiter
from hw.csr.bank import CSR_DATA_WIDTH
from hw.logic.in_turn import round_robin
from hw.logic.shared import Shared
from hw.pim.bank.interface import BankSignature
from hw.pim.config import PimConfig
from hw.pim.core.core import Core
from hw.pim.core.faster import FasterCore
from hw.pim.front.front import Front
from hw.pim.memory.host_memory import HostMemory
from hw.pim.memory.memory_port import (
    HOST_TAG_BITS,
    host_response_layout,
    memory_request_layout,
)
from hw.pim.memory.switch import MemorySwitch
from hw.pim.registers.pool_registers import REGISTERS_ADDR_WIDTH, PoolRegisters
from hw.pim.rings.layouts import COUNT_BITS
from hw.pim.rings.rings import Rings
from hw.pim.scheduler.scheduler import Scheduler
from hw.pim.vault.geometry import VaultGeometry
from hw.pim.work.layouts import Jobs

__all__ = ["PoolControl"]

_CORE_TAG = 8


class PoolControl(wiring.Component):
    """Registers, rings, descriptor check, scheduler, cores, host memory port and switch.

    No output depends combinationally on an input.

    Parameters
    ----------
    config
        The pool.
    geometry
        Organisation of a vault; ``ValueError`` unless it holds ``vault_bytes``.

    Members
    -------
    s_axi : In(AXI4-Lite, 64 bits)
        The registers of ``pim.rdl``.
    host_request : In(stream of :func:`~hw.pim.memory.memory_port.memory_request_layout`)
    host_response : Out(stream of :func:`~hw.pim.memory.memory_port.host_response_layout`)
        The host's path to the memory, with tags of ``HOST_TAG_BITS``. The host does not see the
        results of running works.
    irq : Out(config.rings + config.cores)
        A bit for each ring and each core: its interrupt is pending and enabled.
    core_clk : In(1)
        The clock of cores that have one of their own, see :class:`~hw.pim.core.faster.FasterCore`.
    work : Out(:attr:`Jobs.work <hw.pim.work.layouts.Jobs.work>`)
        The work for the banks that start.
    bank_0, bank_1, ... : Out(:class:`~hw.pim.bank.interface.BankSignature`)
    all others: those of :class:`~hw.pim.memory.switch.MemorySwitch` that begin with ``vault``

    Examples
    --------
    >>> from hw.pim.config import PIM_PRESETS
    >>> from hw.pim.vault.timing import vault_part
    >>> config = PIM_PRESETS["tiny"]
    >>> part = vault_part("tiny").with_capacity(config.vault_bytes)
    >>> control = PoolControl(config, part.geometry)
    >>> control.irq.shape(), sum("bank_" in name for name in control.signature.members)
    (unsigned(2), 6)
    """

    def __init__(self, config: PimConfig, geometry: VaultGeometry) -> None:
        self._config = config
        self._switch = MemorySwitch(config=config, geometry=geometry)
        of_switch = self._switch.signature.members
        super().__init__(
            {
                "s_axi": In(
                    AXI4LiteSignature(addr_width=REGISTERS_ADDR_WIDTH, data_width=CSR_DATA_WIDTH)
                ),
                "host_request": In(
                    stream.Signature(memory_request_layout(config, tag_bits=HOST_TAG_BITS))
                ),
                "host_response": Out(
                    stream.Signature(host_response_layout(tag_bits=HOST_TAG_BITS))
                ),
                "irq": Out(config.rings + config.cores),
                **({"core_clk": In(1)} if config.has_core_clock else {}),
                "work": Out(Jobs(config).work),
                **{f"bank_{bank}": Out(BankSignature(config)) for bank in range(config.banks)},
                **{name: of_switch[name] for name in of_switch if name.startswith("vault_")},
            }
        )

    @property
    def tag_bits(self) -> int:
        """Width of a vault's tag, in bits."""
        return self._switch.tag_bits

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        config = self._config
        m.submodules.registers = registers = PoolRegisters(config)
        m.submodules.front = front = Front(config)
        m.submodules.scheduler = scheduler = Scheduler(config)
        m.submodules.host = host = HostMemory(config)
        m.submodules.switch = switch = self._switch
        m.submodules.rings = rings = Rings(config)
        wiring.connect(m, rings.descriptor_write, front.descriptor_write)
        wiring.connect(m, front.o, scheduler.i)
        wiring.connect(m, scheduler.status, registers.status)
        wiring.connect(m, scheduler.gate, host.gate)
        wiring.connect(m, scheduler.events, rings.events)
        wiring.connect(m, wiring.flipped(self.host_request), host.request)
        wiring.connect(m, host.response, wiring.flipped(self.host_response))
        cores = self._place_cores(m, registers, rings)
        self._share(m, host, rings, cores)
        wiring.connect(m, host.memory_request, switch.host_request)
        wiring.connect(m, switch.host_response, host.memory_response)
        m.d.comb += [
            front.start.eq(rings.start),
            rings.settings.eq(registers.ring_control),
            registers.ring_status.eq(rings.status),
            registers.notice.eq(Cat(rings.notice, *(core.notice for core in cores))),
            self.irq.eq(registers.irq),
            registers.host.eq(host.status),
            self.work.eq(scheduler.work),
        ]
        for bank in range(config.banks):
            self._connect(m, bank, scheduler)
        return m

    def _place_cores(self, m: Any, registers: Any, rings: Any) -> list[Any]:
        """Place the cores, and an arbiter by which they share the registers with the host."""
        config, host = self._config, wiring.flipped(self.s_axi)
        if not config.cores:
            wiring.connect(m, host, registers.s_axi)
            return []
        core = FasterCore(config) if config.has_core_clock else Core(config)
        cores: list[Any] = [Shared(core, name="pim_core") for _ in range(config.cores)]
        m.submodules.arbiter = arbiter = AXI4LiteArbiter(
            1 + len(cores), addr_width=REGISTERS_ADDR_WIDTH, data_width=CSR_DATA_WIDTH
        )
        wiring.connect(m, arbiter.m_axi, registers.s_axi)
        wiring.connect(m, host, arbiter.s_axi_0)
        for number, core in enumerate(cores):
            m.submodules[f"core_{number}"] = core
            wiring.connect(m, core.m_axi, getattr(arbiter, f"s_axi_{number + 1}"))
            ring, status = registers.ring_control[number + 1], rings.status[number + 1]
            filled = (ring.head - status.completions)[:COUNT_BITS]
            m.d.comb += [
                core.number.eq(number),
                *([core.core_clk.eq(self.core_clk)] if config.has_core_clock else []),
                core.overfilled.eq(filled > 1 << ring.size),
                core.resting.eq(rings.resting[number + 1]),
                core.control.eq(getattr(registers, f"core_{number}_control")),
                getattr(registers, f"core_{number}_status").eq(core.status),
            ]
        return cores

    @staticmethod
    def _share(m: Any, host: Any, rings: Any, cores: list[Any]) -> None:
        """Share the memory path between rings and cores, round robin.

        The tag of a core's request is its number, with a bit set above those of the rings' tags.
        """
        into, back = host.inner_request, host.inner_response
        users = [rings, *cores]
        asks = Cat(user.request.valid for user in users)
        turn = round_robin(m, asks, advance=into.valid & into.ready) if cores else Const(0)
        chosen = Array(user.request.payload for user in users)[turn]
        m.d.comb += [into.valid.eq(asks.any()), into.payload.eq(chosen), back.ready.eq(1)]
        with m.If(turn != 0):
            m.d.comb += into.payload.tag.eq(_CORE_TAG + turn)
        for number, user in enumerate(users):
            tag = back.payload.tag
            mine = tag == _CORE_TAG + number if number else ~tag[_CORE_TAG.bit_length() - 1]
            m.d.comb += [
                user.request.ready.eq(into.ready & (turn == number)),
                user.response.valid.eq(back.valid & mine),
                user.response.payload.eq(back.payload),
            ]

    def _connect(self, m: Any, number: int, scheduler: Any) -> None:
        bank = getattr(self, f"bank_{number}")
        wiring.connect(m, getattr(scheduler, f"tile_{number}"), wiring.flipped(bank.tile))
        wiring.connect(
            m, wiring.flipped(bank.request), getattr(self._switch, f"bank_{number}_request")
        )
        wiring.connect(
            m, getattr(self._switch, f"bank_{number}_response"), wiring.flipped(bank.response)
        )
        for name in (f"vault_{number}_request", f"vault_{number}_response"):
            ends = [getattr(self._switch, name), wiring.flipped(getattr(self, name))]
            wiring.connect(m, *ends)
        counts = scheduler.counts[number]
        m.d.comb += [
            bank.start.eq(scheduler.start[number]),
            scheduler.done[number].eq(bank.done),
            *(getattr(counts, name).eq(getattr(bank, name)) for name, _ in counts.shape()),
        ]
