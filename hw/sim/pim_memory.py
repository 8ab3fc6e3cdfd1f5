"""The memory of the stack, simulated: all vaults, and the switch that leads to them."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.logic.expose import expose
from hw.logic.shared import Shared
from hw.pim.config import PimConfig
from hw.pim.memory.memory_port import memory_request_layout, memory_response_layout
from hw.pim.memory.switch import MemorySwitch
from hw.pim.vault.controller import VaultController
from hw.pim.vault.interface import (
    VaultCommandsSignature,
    vault_request_layout,
    vault_response_layout,
)
from hw.pim.vault.timing import VaultPart, VaultTiming
from hw.sim.vault_device import VaultDevice

__all__ = ["PimMemory", "SimulatedVault"]


class SimulatedVault(wiring.Component):
    """A controller with its device.

    ``memory_timing`` is what the device insists on, if not what the controller keeps; to see a
    violation.

    Members
    -------
    i, o, idle
        As those of :class:`~hw.pim.vault.controller.VaultController`.
    violation : Out(1)
        As that of :class:`~hw.sim.vault_device.VaultDevice`.
    commands : Out(:class:`~hw.pim.vault.interface.VaultCommandsSignature`)
        What the controller tells the device, to be watched.
    """

    def __init__(
        self, part: VaultPart, *, tag_bits: int, memory_timing: VaultTiming | None = None
    ) -> None:
        self._part = part
        self._memory_timing = memory_timing or part.timing
        self._tag_bits = tag_bits
        super().__init__(
            {
                "i": In(stream.Signature(vault_request_layout(part.geometry, tag_bits))),
                "o": Out(stream.Signature(vault_response_layout(tag_bits))),
                "idle": Out(1),
                "violation": Out(1),
                "commands": Out(VaultCommandsSignature(part.geometry)),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        geometry, timing = self._part.geometry, self._part.timing
        m: Any = Module()
        m.submodules.controller = controller = VaultController(
            geometry=geometry, timing=timing, tag_bits=self._tag_bits
        )
        m.submodules.device = device = VaultDevice(geometry=geometry, timing=self._memory_timing)
        wiring.connect(m, controller.dram, device.dram)
        expose(m, self, controller, ("i", "o", "idle"))
        expose(m, self, device, ("violation",))
        expose(m, self.commands, controller.dram, self.commands.signature.members)
        return m


class PimMemory(wiring.Component):
    """All vaults of the stack behind one switch, for simulation only.

    A port may go on to the next request in each cycle; a vault takes one a cycle. Requests to one
    vault, of whatever port, take effect in the order in which it takes them, and a read sees all
    writes before it. An idle memory answers 21 cycles after the request with the timing ``hmc2``,
    19 with ``cashmc``. Order and fairness are those of :class:`~hw.pim.memory.switch.MemorySwitch`.

    Parameters
    ----------
    config
        The banks.
    part
        Timing and organisation of their vaults, with as many rows as make ``vault_bytes``.
        ``ValueError`` if no number of rows does.

    Members
    -------
    bank_0_request, bank_1_request, ..., host_request :
        In(stream of :func:`~hw.pim.memory.memory_port.memory_request_layout`)
    bank_0_response, bank_1_response, ..., host_response :
        Out(stream of :func:`~hw.pim.memory.memory_port.memory_response_layout`)
    idle : Out(1)
        All requests have been answered, and the responses taken.
    violation : Out(1)
        A vault's timing was violated since reset; a line on the standard output tells how. The
        simulation must be considered failed.
    """

    def __init__(self, config: PimConfig, part: VaultPart) -> None:
        self._config = config
        self._part = part.with_capacity(config.vault_bytes)
        self._switch = MemorySwitch(config=config, geometry=self._part.geometry)
        request, response = memory_request_layout(config), memory_response_layout()
        members: dict[str, Any] = {"idle": Out(1), "violation": Out(1)}
        for port in self._switch.sources:
            members[f"{port}_request"] = In(stream.Signature(request))
            members[f"{port}_response"] = Out(stream.Signature(response))
        super().__init__(members)

    @property
    def ports(self) -> list[str]:
        """The names of the ports, ``bank_0`` to ``host``."""
        return self._switch.sources

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        m.submodules.switch = switch = self._switch
        ways = ("request", "response")
        expose(m, self, switch, [f"{port}_{way}" for port in switch.sources for way in ways])
        one = SimulatedVault(self._part, tag_bits=switch.tag_bits)
        vaults: Any = [Shared(one, name="pim_vault") for _ in range(self._config.banks)]
        for number, vault in enumerate(vaults):
            m.submodules[f"vault_{number}"] = vault
            wiring.connect(m, getattr(switch, f"vault_{number}_request"), vault.i)
            wiring.connect(m, vault.o, getattr(switch, f"vault_{number}_response"))
        m.d.comb += [
            self.idle.eq(switch.idle & Cat(vault.idle for vault in vaults).all()),
            self.violation.eq(Cat(vault.violation for vault in vaults).any()),
        ]
        return m
