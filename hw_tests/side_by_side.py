"""Several designs in one simulator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from hw.logic.expose import expose

__all__ = ["Side", "SideBySide"]


class SideBySide(wiring.Component):
    """Independent components in one design; component ``name`` has its ports as ``name_…``.

    Most of the time of a bench goes into building the simulator; this way it is built once.
    """

    def __init__(self, components: Mapping[str, wiring.Component]) -> None:
        self._components = dict(components)
        super().__init__({name: Out(each.signature) for name, each in components.items()})

    def elaborate(self, platform: Any) -> Module:
        m: Any = Module()
        for name, component in self._components.items():
            m.submodules[name] = component
            expose(m, getattr(self, name), component, component.signature.members)
        return m


class Side:
    """The ports of component ``name`` of a :class:`SideBySide`, in cocotb; clock and reset too."""

    def __init__(self, dut: Any, name: str) -> None:
        self._dut = dut
        self._prefix = name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dut, name if name in ("clk", "rst") else f"{self._prefix}_{name}")
