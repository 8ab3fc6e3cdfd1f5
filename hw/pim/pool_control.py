"""The pool without its banks: what gives them work, and the way to the memory."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.axi.bus import AXI4LiteSignature
from hw.csr.bank import CSR_DATA_WIDTH
from hw.pim.bank.interface import BankSignature
from hw.pim.config import PimConfig
from hw.pim.front.front import Front
from hw.pim.memory.host_memory import HostMemory
from hw.pim.memory.memory_port import (
    HOST_TAG_BITS,
    host_response_layout,
    memory_request_layout,
)
from hw.pim.memory.switch import MemorySwitch
from hw.pim.registers.pool_registers import REGISTERS_ADDR_WIDTH, PoolRegisters
from hw.pim.rings.rings import Rings
from hw.pim.scheduler.scheduler import Scheduler
from hw.pim.vault.geometry import VaultGeometry
from hw.pim.work.layouts import Jobs

__all__ = ["PoolControl"]


class PoolControl(wiring.Component):
    """Registers, rings, check of descriptors, scheduler, the host's port to the memory, and the
    switch.

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
        The host's way to the memory, with tags of ``HOST_TAG_BITS``; results of running works
        cannot be seen. The rings have the same way, before the host.
    irq : Out(config.rings)
        A bit for each ring: its interrupt is pending and enabled.
    work : Out(:attr:`Jobs.work <hw.pim.work.layouts.Jobs.work>`)
        What banks that start are to work on.
    bank_0, bank_1, ... : Out(:class:`~hw.pim.bank.interface.BankSignature`)
    all others: those of :class:`~hw.pim.memory.switch.MemorySwitch` that begin with ``vault``
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
                "irq": Out(config.rings),
                "work": Out(Jobs(config).work),
                **{f"bank_{bank}": Out(BankSignature(config)) for bank in range(config.banks)},
                **{name: of_switch[name] for name in of_switch if name.startswith("vault_")},
            }
        )

    @property
    def tag_bits(self) -> int:
        """Width of a vault's tag."""
        return self._switch.tag_bits

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        config = self._config
        m.submodules.registers = registers = PoolRegisters(config)
        m.submodules.front = front = Front(config)
        m.submodules.scheduler = scheduler = Scheduler(config)
        m.submodules.host = host = HostMemory(config)
        m.submodules.switch = switch = self._switch
        wiring.connect(m, wiring.flipped(self.s_axi), registers.s_axi)
        m.submodules.rings = rings = Rings(config)
        wiring.connect(m, rings.descriptor_write, front.descriptor_write)
        wiring.connect(m, front.o, scheduler.i)
        wiring.connect(m, scheduler.status, registers.status)
        wiring.connect(m, scheduler.gate, host.gate)
        wiring.connect(m, scheduler.events, rings.events)
        self._share(m, host, rings)
        wiring.connect(m, host.memory_request, switch.host_request)
        wiring.connect(m, switch.host_response, host.memory_response)
        m.d.comb += [
            front.start.eq(rings.start),
            rings.settings.eq(registers.ring_control),
            registers.ring_status.eq(rings.status),
            registers.notice.eq(rings.notice),
            self.irq.eq(registers.irq),
            registers.host.eq(host.status),
            self.work.eq(scheduler.work),
        ]
        for bank in range(config.banks):
            self._connect(m, bank, scheduler)
        return m

    def _share(self, m: Any, host: Any, rings: Any) -> None:
        """The way to the memory, of which the rings need little: the uppermost bit of a tag tells
        whose a request is."""
        asked, given = self.host_request, self.host_response
        request, response = host.request.payload, host.response
        for name, _ in request.shape():
            ours, theirs = getattr(rings.request.payload, name), getattr(asked.payload, name)
            m.d.comb += getattr(request, name).eq(Mux(rings.request.valid, ours, theirs))
        of_rings = response.payload.tag[HOST_TAG_BITS]
        m.d.comb += [
            request.tag[HOST_TAG_BITS].eq(rings.request.valid),
            host.request.valid.eq(rings.request.valid | asked.valid),
            rings.request.ready.eq(host.request.ready),
            asked.ready.eq(host.request.ready & ~rings.request.valid),
            rings.response.valid.eq(response.valid & of_rings),
            rings.response.payload.eq(response.payload),
            given.valid.eq(response.valid & ~of_rings),
            response.ready.eq(given.ready | of_rings),
            *(
                getattr(given.payload, name).eq(getattr(response.payload, name))
                for name, _ in given.payload.shape()
            ),
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
