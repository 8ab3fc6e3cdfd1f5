"""A component that is used many times: one Verilog module, many instances."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from amaranth.hdl import DomainRenamer, Elaboratable, EnableInserter, Instance, Module
from amaranth.lib import wiring

__all__ = ["Shared", "SharingPlatform"]


class SharingPlatform(ABC):
    """A platform that makes one module of all that is placed under one name."""

    @abstractmethod
    def place(self, shared: Shared, *, name: str, domain: str, enable: Any) -> Instance:
        """The instance of module ``name`` that stands where ``shared`` does."""


class Shared(wiring.Component):
    """Stands for ``component`` where it is used many times: one Verilog module, many instances.

    It has the members of the component it wraps. All that are placed under one ``name`` must be
    the same hardware, as :func:`~hw.verilog.writer.to_verilog` checks; the same object takes no
    time to compare. The component may use the domain ``sync`` only; ``domain`` says which domain
    drives it here. ``enable``, if given, holds it while it is low: the module is then another, with
    an input ``ce``, the enable of each register in it and in what it places.

    Outside Verilog generation (no :class:`SharingPlatform`) it elaborates to the component, which
    can then have one place only: there its signals are its own.
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
