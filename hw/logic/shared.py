"""A component that is used many times: one Verilog module, many instances."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from amaranth.hdl import DomainRenamer, Elaboratable, EnableInserter, Instance, Module
from amaranth.lib import wiring

__all__ = ["Shared", "SharingPlatform"]


class SharingPlatform(ABC):
    """Platform that makes one module of all components placed under one name."""

    @abstractmethod
    def place(self, shared: Shared, *, name: str, domain: str, enable: Any) -> Instance:
        """Return the instance of module ``name`` that replaces ``shared``."""


class Shared(wiring.Component):
    """Stands for ``component`` where it is used many times: one Verilog module, many instances.

    It has the members of the component it wraps. All components placed under one ``name`` must be
    the same hardware; :func:`~hw.verilog.writer.to_verilog` checks it, in no time for one object.
    The component may use the domain ``sync`` only, which ``domain`` drives here. If given,
    ``enable`` holds the component while low. The module then differs: it has an input ``ce``, the
    enable of each register in it and in the modules below.

    Outside Verilog generation (no :class:`SharingPlatform`) it elaborates to the component itself,
    which can then be placed only once.

    Examples
    --------
    >>> from hw.logic.delay import Delay
    >>> from hw.verilog.writer import VerilogPlatform
    >>> platform = VerilogPlatform()
    >>> for _ in range(9):
    ...     placed = Shared(Delay(width=8, cycles=2), name="delay").elaborate(platform)
    >>> list(platform.components)
    ['delay']
    """

    def __init__(
        self, component: wiring.Component, *, name: str, domain: str = "sync", enable: Any = None
    ) -> None:
        super().__init__(component.signature)
        self.component = component
        """The component that is placed."""
        self._name = name
        self._domain = domain
        self._enable = enable

    def elaborate(self, platform: Any) -> Elaboratable | Instance:
        if isinstance(platform, SharingPlatform):
            return platform.place(self, name=self._name, domain=self._domain, enable=self._enable)
        m = Module()
        m.submodules.component = self.component
        wiring.connect(m, wiring.flipped(self), self.component)
        held = m if self._enable is None else EnableInserter(self._enable)(m)
        return DomainRenamer(self._domain)(held)
