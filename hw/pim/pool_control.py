"""The pool without its banks: what gives them work, and the way to the memory."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.axi.bus import AXI4LiteSignature
from hw.csr.bank import CSR_DATA_WIDTH
from hw.pim.bank.interface import BankSignature
from hw.pim.config import PimConfig
from hw.pim.front.front import Front
from hw.pim.memory.host_memory import HostMemory
from hw.pim.memory.memory_port import host_response_layout, memory_request_layout
from hw.pim.memory.switch import MemorySwitch
from hw.pim.registers.pool_registers import REGISTERS_ADDR_WIDTH, PoolRegisters
from hw.pim.scheduler.scheduler import Scheduler
from hw.pim.vault.geometry import VaultGeometry
from hw.pim.work.layouts import Jobs

__all__ = ["PoolControl"]


class PoolControl(wiring.Component):
    """Registers, check of descriptors, scheduler, the host's port to the memory, and the switch.

    No output depends combinationally on an input.

    Parameters
    ----------
    config
        The pool.
    geometry
        Of a vault; ``ValueError`` unless it holds ``vault_bytes``.

    Members
    -------
    s_axi : In(AXI4-Lite, 64 bits)
        The registers of ``pim.rdl``.
    host_request : In(stream of :func:`~hw.pim.memory.memory_port.memory_request_layout`)
    host_response : Out(stream of :func:`~hw.pim.memory.memory_port.host_response_layout`)
        The host's way to the memory; results of running works cannot be seen.
    completed : Out(config.works)
        A bit for each slot: the last work that had it has completed.
    work : Out(:attr:`Jobs.work <hw.pim.work.layouts.Jobs.work>`)
        What banks that start are to work on.
    bank_0, bank_1, ... : Out(:class:`~hw.pim.bank.interface.BankSignature`)
    all others: those of :class:`~hw.pim.memory.switch.MemorySwitch` that begin with ``vault``
    """

    s_axi: Any
    host_request: Any
    host_response: Any
    completed: Any

    def __init__(self, config: PimConfig, geometry: VaultGeometry) -> None:
        self._config = config
        self._switch = MemorySwitch(config=config, geometry=geometry)
        of_switch = self._switch.signature.members
        super().__init__(
            {
                "s_axi": In(
                    AXI4LiteSignature(addr_width=REGISTERS_ADDR_WIDTH, data_width=CSR_DATA_WIDTH)
                ),
                "host_request": In(stream.Signature(memory_request_layout(config))),
                "host_response": Out(stream.Signature(host_response_layout())),
                "completed": Out(config.works),
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
        wiring.connect(m, registers.descriptor_write, front.descriptor_write)
        wiring.connect(m, front.o, scheduler.i)
        wiring.connect(m, scheduler.status, registers.status)
        wiring.connect(m, scheduler.gate, host.gate)
        wiring.connect(m, wiring.flipped(self.host_request), host.request)
        wiring.connect(m, host.response, wiring.flipped(self.host_response))
        wiring.connect(m, host.memory_request, switch.host_request)
        wiring.connect(m, switch.host_response, host.memory_response)
        m.d.comb += [
            front.start.eq(registers.submit),
            registers.busy.eq(front.busy),
            self.completed.eq(scheduler.status.completed),
            registers.host.eq(host.status),
            self.work.eq(scheduler.work),
        ]
        for bank in range(config.banks):
            self._connect(m, bank, scheduler)
        return m

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
