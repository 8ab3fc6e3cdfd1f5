"""RISC-V processor of a core, VexRiscv, with the float unit at its custom-function port."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from textwrap import indent
from typing import Any

from amaranth.hdl import ClockSignal, Const, Instance, Module, ResetInserter, ResetSignal, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.pim.core.float_unit import FloatUnit

__all__ = ["AccessSignature", "Processor"]


class AccessSignature(wiring.Signature):
    """Memory port of a processor, for one word at a time; requests hold until ``ack``.

    Members
    -------
    valid, write, address, data, strobe : Out(1), Out(1), Out(30), Out(32), Out(4)
        ``address`` counts words; ``strobe`` has a bit for each byte that is written.
    burst : Out(1)
        With the first word of a line of 32 bytes: the other words are read next.
    ack, read_data : In(1), In(32)
        The word is read or written.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "valid": Out(1),
                "write": Out(1),
                "address": Out(30),
                "data": Out(32),
                "strobe": Out(4),
                "burst": Out(1),
                "ack": In(1),
                "read_data": In(32),
            }
        )


class Processor(wiring.Component):
    """VexRiscv (RV32IM, two caches of 4 KiB, lines of 32 bytes) and its float unit.

    Addresses with the highest bit set are not cached. The Verilog is that of the package
    ``pythondata-cpu-vexriscv``; ``ModuleNotFoundError`` without it.

    Parameters
    ----------
    start
        Address of its first instruction.

    Members
    -------
    hold : In(1)
        Holds it in reset.
    fetch, access : Out(:class:`AccessSignature`)
        Its ports for instructions and for data.
    """

    def __init__(self, start: int) -> None:
        self._start = start
        super().__init__(
            {"hold": In(1), "fetch": Out(AccessSignature()), "access": Out(AccessSignature())}
        )

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        platform.add_file("VexRiscv.v", _verilog(platform.prefix))
        floats = FloatUnit()
        m.submodules.floats = ResetInserter(self.hold)(floats)
        ports: dict[str, Any] = {}
        for name, bus in (("iBusWishbone", self.fetch), ("dBusWishbone", self.access)):
            cycle_type = Signal(3, name=f"{name}_cycle_type")
            m.d.comb += bus.burst.eq(cycle_type == 2)
            ports |= {
                f"o_{name}_STB": bus.valid,
                f"o_{name}_WE": bus.write,
                f"o_{name}_ADR": bus.address,
                f"o_{name}_DAT_MOSI": bus.data,
                f"o_{name}_SEL": bus.strobe,
                f"o_{name}_CTI": cycle_type,
                f"i_{name}_ACK": bus.ack,
                f"i_{name}_DAT_MISO": bus.read_data,
                f"i_{name}_ERR": 0,
                f"o_{name}_CYC": Signal(name=f"{name}_cycle"),
                f"o_{name}_BTE": Signal(2, name=f"{name}_burst_type"),
            }
        m.submodules.vexriscv = Instance(
            f"{platform.prefix}VexRiscv",
            i_clk=ClockSignal(),
            i_reset=ResetSignal() | self.hold,
            i_externalResetVector=Const(self._start, 32),
            i_timerInterrupt=0,
            i_softwareInterrupt=0,
            i_externalInterruptArray=Const(0, 32),
            o_CfuPlugin_bus_cmd_valid=floats.i_valid,
            i_CfuPlugin_bus_cmd_ready=floats.i_ready,
            o_CfuPlugin_bus_cmd_payload_function_id=floats.i_function,
            o_CfuPlugin_bus_cmd_payload_inputs_0=floats.i_a,
            o_CfuPlugin_bus_cmd_payload_inputs_1=floats.i_b,
            i_CfuPlugin_bus_rsp_valid=floats.o_valid,
            o_CfuPlugin_bus_rsp_ready=floats.o_ready,
            i_CfuPlugin_bus_rsp_payload_outputs_0=floats.o_y,
            **ports,
        )
        return m


def _verilog(prefix: str) -> str:
    """Return the processor's source with its licence, and ``prefix`` before its module names."""
    package = find_spec("pythondata_cpu_vexriscv")
    if package is None or package.origin is None:
        raise ModuleNotFoundError(
            "cores need the Verilog of VexRiscv: pip install pythondata-cpu-vexriscv, or "
            "configure the pool with cores=0"
        )
    folder = Path(package.origin).parent / "verilog"
    licence = (folder / "ext" / "VexRiscv" / "LICENSE").read_text()
    # A `timescale would also apply to later modules, but not to earlier ones.
    text = (folder / "VexRiscv_FullCfu.v").read_text().replace("`timescale 1ns/1ps", "")
    text = re.sub(r"\b(VexRiscv|DataCache|InstructionCache)\b", rf"{prefix}\1", text)
    return indent(f"The processor is VexRiscv.\n\n{licence}", "// ") + "\n" + text
