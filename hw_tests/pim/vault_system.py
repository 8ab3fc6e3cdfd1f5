"""A vault for benches: controller and device, with a record of the commands."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from amaranth.hdl import ClockSignal, Instance, Module, ResetSignal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.pim.vault import VaultController
from hw.pim.vault_device import VaultDevice
from hw.pim.vault_interface import VAULT_SLOTS, vault_request_layout, vault_response_layout
from hw.pim.vault_timing import VaultPart

__all__ = ["TAG_BITS", "VaultSystem"]

TAG_BITS = 8


def _value(value: Any) -> Any:
    return value.as_value() if hasattr(value, "as_value") else value


class VaultSystem(wiring.Component):
    """A controller with its device; the commands are recorded in the file ``NAME.csv``.

    The members are those of controller and device, and ``flush`` for the record.
    """

    i: Any
    o: Any
    idle: Any
    flush: Any
    violation: Any

    def __init__(self, part: VaultPart, name: str) -> None:
        self.part = part
        self._name = name
        super().__init__(
            {
                "i": In(stream.Signature(vault_request_layout(part.geometry, TAG_BITS))),
                "o": Out(stream.Signature(vault_response_layout(TAG_BITS))),
                "idle": Out(1),
                "flush": In(1),
                "violation": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        geometry, timing = self.part.geometry, self.part.timing
        m: Any = Module()
        m.submodules.controller = controller = VaultController(
            geometry=geometry, timing=timing, tag_bits=TAG_BITS
        )
        m.submodules.device = device = VaultDevice(geometry=geometry, timing=timing)
        wiring.connect(m, wiring.flipped(self.i), controller.i)
        wiring.connect(m, wiring.flipped(self.o), controller.o)
        wiring.connect(m, controller.dram, device.dram)
        m.d.comb += [self.idle.eq(controller.idle), self.violation.eq(device.violation)]
        platform.add_path(Path(__file__).with_name("vault_trace.v"))
        settings = " ".join(f"{name}={value}" for name, value in asdict(geometry).items())
        m.submodules.trace = Instance(
            "vault_trace",
            p_LAYER_BITS=geometry.layer_bits,
            p_BANK_BITS=geometry.bank_bits,
            p_ADDRESS_BITS=geometry.command_address_bits,
            p_FILE=f"{self._name}.csv",
            p_HEADER=f"# nearmem vault trace v1 part={self.part.name} {settings}",
            i_clk=ClockSignal(),
            i_rst=ResetSignal(),
            i_flush=self.flush,
            **{
                f"i_{name}_p{slot}": _value(getattr(controller.dram, f"{name}_p{slot}"))
                for slot in range(VAULT_SLOTS)
                for name in ("command", "layer", "bank", "address")
            },
        )
        return m
