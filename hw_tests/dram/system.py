"""Designs for the DRAM benches: controller and device, recorded, with or without a manager."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from amaranth.hdl import ClockSignal, Instance, Module, ResetSignal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.axi.bus import AXI4Signature
from hw.dram.config import ControllerConfig
from hw.dram.controller import COUNTER_BITS, COUNTERS, Ddr4Controller
from hw.dram.presets import DramPart
from hw.sim.dram_device import Ddr4Device
from hw_tests.dram.command_trace import command_trace

__all__ = ["ADDR_WIDTH", "ID_WIDTH", "DramSystem", "StreamSystem", "trace_header"]

ADDR_WIDTH = 34
ID_WIDTH = 4


def trace_header(part: DramPart) -> str:
    """The first line of a recorded command trace."""
    geometry = " ".join(f"{name}={value}" for name, value in asdict(part.geometry).items())
    return f"# nearmem dram trace v1 preset={part.name} {geometry} tck_ps={part.timing.tck_ps}"


class DramSystem(wiring.Component):
    """A controller with its device; the commands may be recorded in the file ``trace``.

    The members are the controller's ``s_axi``, ``prompt``, ``idle`` and counters, the
    device's ``violation``, ``violation_code`` and ``violation_tck``, and ``flush`` for the record.
    """

    def __init__(
        self, part: DramPart, config: ControllerConfig | None = None, *, trace: str = ""
    ) -> None:
        self.part = part
        self.config = config or ControllerConfig()
        self.trace = trace
        super().__init__(
            {
                "s_axi": In(
                    AXI4Signature(addr_width=ADDR_WIDTH, data_width=512, id_width=ID_WIDTH)
                ),
                "prompt": In(1),
                "flush": In(1),
                "idle": Out(1),
                **{name: Out(COUNTER_BITS) for name in COUNTERS},
                "violation": Out(1),
                "violation_code": Out(8),
                "violation_tck": Out(48),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        geometry, timing = self.part.geometry, self.part.timing
        m: Any = Module()
        m.submodules.controller = controller = Ddr4Controller(
            geometry=geometry,
            timing=timing,
            addr_width=ADDR_WIDTH,
            id_width=ID_WIDTH,
            config=self.config,
        )
        m.submodules.dram = device = Ddr4Device(
            geometry=geometry, timing=timing, check_refresh=self.config.refresh
        )
        wiring.connect(m, wiring.flipped(self.s_axi), controller.s_axi)
        wiring.connect(m, controller.dram, device.dram)
        m.d.comb += [getattr(self, name).eq(getattr(controller, name)) for name in COUNTERS]
        m.d.comb += [
            controller.prompt.eq(self.prompt),
            self.idle.eq(controller.idle),
            self.violation.eq(device.violation),
            self.violation_code.eq(device.violation_code),
            self.violation_tck.eq(device.violation_tck),
        ]
        if self.trace:
            header = f"{trace_header(self.part)}\ntck,channel,command,bank_group,bank,row,column"
            m.submodules.trace = command_trace(
                platform, controller.dram, file=self.trace, header=header, flush=self.flush
            )
        return m


class StreamSystem(wiring.Component):
    """A :class:`DramSystem` under the traffic of ``stream_player.v``.

    ``start`` begins ``rounds`` rounds on the blocks at ``base_0`` … ``base_3``; ``done`` rises at
    the last write response, after ``cycles``, with ``mismatches`` in ids, responses or data.
    """

    def __init__(
        self, part: DramPart, config: ControllerConfig | None = None, *, trace: str = ""
    ) -> None:
        self._system = DramSystem(part, config, trace=trace)
        super().__init__(
            {
                "start": In(1),
                "rounds": In(16),
                **{f"base_{tensor}": In(ADDR_WIDTH) for tensor in range(4)},
                "flush": In(1),
                "done": Out(1),
                "cycles": Out(48),
                "mismatches": Out(32),
                "idle": Out(1),
                **{name: Out(COUNTER_BITS) for name in COUNTERS},
                "violation": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        platform.add_path(Path(__file__).with_name("stream_player.v"))
        m: Any = Module()
        m.submodules.system = system = self._system
        axi = {}
        for name, member in system.s_axi.signature.members.items():
            direction = "o_" if member.flow is wiring.In else "i_"
            axi[f"{direction}m_axi_{name}"] = getattr(system.s_axi, name)
        m.submodules.player = Instance(
            "stream_player",
            p_ADDR_WIDTH=ADDR_WIDTH,
            p_ID_WIDTH=ID_WIDTH,
            i_clk=ClockSignal(),
            i_rst=ResetSignal(),
            i_start=self.start,
            i_rounds=self.rounds,
            **{f"i_base_{tensor}": getattr(self, f"base_{tensor}") for tensor in range(4)},
            o_done=self.done,
            o_cycles=self.cycles,
            o_mismatches=self.mismatches,
            **axi,
        )
        m.d.comb += system.flush.eq(self.flush)
        m.d.comb += [
            getattr(self, name).eq(getattr(system, name))
            for name in (*COUNTERS, "idle", "violation")
        ]
        return m
