"""Verilog generation: one module per component, repeated components emitted once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amaranth.hdl import (
    ClockSignal,
    DomainRenamer,
    Elaboratable,
    Fragment,
    Instance,
    Module,
    ResetSignal,
    Shape,
)
from amaranth.hdl._ast import SignalDict, SignalSet  # these are not exported
from amaranth.hdl._ir import PortDirection, build_netlist
from amaranth.hdl._mem import MemoryInstance
from amaranth.hdl._xfrm import DomainCollector
from amaranth.lib import wiring

from hw.verilog_text import KEYWORDS, module_text

__all__ = ["Port", "Shared", "VerilogPlatform", "flat_ports", "ports_of", "to_verilog"]


@dataclass(frozen=True, kw_only=True)
class Port:
    """One port of a generated module."""

    name: str
    width: int
    direction: str
    """``"input"`` or ``"output"``."""


class VerilogPlatform:
    """Collects what an elaboration refers to but does not contain.

    Components placed through :class:`Shared` and Verilog source files (:meth:`add_file`) are
    gathered here, so that each ends up in the output exactly once.
    """

    def __init__(self) -> None:
        self.components: dict[str, list[wiring.Component]] = {}
        """By the name of their module; :func:`to_verilog` sees to it that all of a name are the
        same hardware."""
        self.files: dict[str, str] = {}

    def add_component(self, name: str, component: wiring.Component) -> None:
        """Registers ``component`` as Verilog module ``name``."""
        known = self.components.setdefault(name, [])
        if not any(component is each for each in known):
            known.append(component)

    def add_file(self, name: str, content: str) -> None:
        """Registers a Verilog source; the same name must always carry the same content."""
        if self.files.setdefault(name, content) != content:
            raise ValueError(f"Verilog file {name!r} was added with two different contents")

    def add_path(self, path: Path) -> None:
        """Registers the Verilog source at ``path`` under its file name."""
        self.add_file(path.name, path.read_text())


def flat_ports(component: wiring.Component) -> list[tuple[str, Any, wiring.Flow]]:
    """(Verilog name, value, flow) of each port; nested members are joined with ``_``.

    A name that is a word of the language gets a ``_`` at its end.
    """
    ports = []
    for path, member, value in component.signature.flatten(component):
        name = "_".join(str(part) for part in path)
        ports.append((f"{name}_" if name in KEYWORDS else name, value, member.flow))
    return ports


class Shared(wiring.Component):
    """Stands for ``component`` where it is used many times: one Verilog module, many instances.

    It has the members of the component it wraps. All that are placed under one ``name`` must be
    the same hardware, as :func:`to_verilog` checks; the same object takes no time to compare. The
    component may use the domain ``sync`` only; ``domain`` says which domain drives it here.

    Outside Verilog generation (no :class:`VerilogPlatform`) it elaborates to the component, which
    can then have one place only: there its signals are its own.
    """

    def __init__(self, component: wiring.Component, *, name: str, domain: str = "sync") -> None:
        super().__init__(component.signature)
        self._component = component
        self._name = name
        self._domain = domain

    def elaborate(self, platform: Any) -> Elaboratable | Instance:
        if not isinstance(platform, VerilogPlatform):
            m = Module()
            m.submodules.component = self._component
            wiring.connect(m, wiring.flipped(self), self._component)
            return DomainRenamer(self._domain)(m)
        platform.add_component(self._name, self._component)
        connections: dict[str, Any] = {
            "i_clk": ClockSignal(self._domain),
            "i_rst": ResetSignal(self._domain),
        }
        for name, value, flow in flat_ports(self):
            connections[("i_" if flow is wiring.In else "o_") + name] = value
        return Instance(self._name, **connections)


def ports_of(component: wiring.Component) -> list[Port]:
    """The ports of the module :func:`to_verilog` makes of ``component``, clock and reset first."""
    ports = [Port(name=name, width=1, direction="input") for name in ("clk", "rst")]
    for name, value, flow in flat_ports(component):
        direction = "input" if flow is wiring.In else "output"
        ports.append(Port(name=name, width=Shape.cast(value.shape()).width, direction=direction))
    return ports


class _Modules:
    """The texts of modules, each once.

    A component inside another one is a module of its own, with the ports of its signature; equal
    ones are the same module.
    """

    def __init__(self, top: str, platform: VerilogPlatform) -> None:
        self._top = top
        self._platform = platform
        self._names: dict[str, str] = {}  # by the text without the name
        self._places: Any = SignalDict()  # the component that has a signal inside
        self.texts: dict[str, str] = {}

    def convert(self, component: wiring.Component, name: str) -> str:
        """The text of the module ``name``; what is inside goes to ``texts``."""
        return self._text(Fragment.get(component, self._platform), component, name, {})

    def _text(
        self, fragment: Any, component: wiring.Component, name: str, domains: Mapping[str, Any]
    ) -> str:
        self._take_out(fragment, domains)
        # With the direction left to Amaranth, an output that nothing drives would become an input.
        ports: dict[str, Any] = {
            port: (
                value.as_value() if hasattr(value, "as_value") else value,
                PortDirection.Input if flow is wiring.In else PortDirection.Output,
            )
            for port, value, flow in flat_ports(component)
        }
        netlist = build_netlist(fragment, ports=ports, name=name)
        inputs = netlist.top.ports_i
        netlist.top.ports_i = {
            port: inputs[port] for port in sorted(inputs, key=lambda port: port in ports)
        }
        of_ports = SignalSet(
            signal for value, _ in ports.values() for signal in value._rhs_signals()
        )
        for signal in netlist.signals:
            if signal not in of_ports:
                place = self._places.setdefault(signal, component)
                if place is not component:
                    raise ValueError(
                        f"signal {signal.name!r} is used inside {place!r} and inside "
                        f"{component!r}; a component of Verilog is connected by its ports only"
                    )
        return module_text(netlist, name)

    def _take_out(self, fragment: Any, domains: Mapping[str, Any]) -> None:
        """Puts instances of modules in the place of the components in a fragment."""
        domains = {**domains, **fragment.domains}
        for place, (inner, name, location) in enumerate(fragment.subfragments):
            component = next(
                (each for each in inner.origins or () if isinstance(each, wiring.Component)), None
            )
            if component is None or isinstance(inner, (Instance, MemoryInstance)):
                self._take_out(inner, domains)
                continue
            used = DomainCollector()
            used(inner)
            free = sorted(used.used_domains - used.defined_domains)
            for domain in free:
                if domain in domains and domains[domain].clk_edge != "pos":
                    raise NotImplementedError(f"{component!r} at the falling edge of {domain!r}")
            if len(free) == 1:
                inner = DomainRenamer({free[0]: "sync"})(inner)
            text = self._text(inner, component, _UNNAMED, {})
            connections: dict[str, Any] = {}
            for domain in free:
                prefix = "" if len(free) == 1 or domain == "sync" else f"{domain}_"
                connections[f"i_{prefix}clk"] = ClockSignal(domain)
                connections[f"i_{prefix}rst"] = ResetSignal(domain, allow_reset_less=True)
            for port, value, flow in flat_ports(component):
                connections[("i_" if flow is wiring.In else "o_") + port] = value
            instance = Instance(self._named(text, component), src_loc=location, **connections)
            fragment.subfragments[place] = instance, name, location

    def _named(self, text: str, component: wiring.Component) -> str:
        """The name of the module that has a text: the component's, numbered if there are more."""
        if text not in self._names:
            words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(component).__name__)
            name = plain = f"{self._top}_{words.lower().strip('_')}"
            while name in self.texts:
                name = f"{plain}_{int(name[len(plain) + 1 :] or 1) + 1}"
            self._names[text] = name
            self.texts[name] = text.replace(_UNNAMED, name, 1)
        return self._names[text]


_UNNAMED = "nearmem_module"


def to_verilog(component: wiring.Component, name: str) -> str:
    """Verilog of ``component`` as module ``name``, with every module that it needs.

    The module has the ports ``clk`` and ``rst`` (synchronous, active high) of the domain ``sync``
    and one port for each member of the signature; interfaces are flattened with ``_``, so that a
    member ``m_axi`` with a member ``awaddr`` becomes ``m_axi_awaddr``. Each component inside it is
    a module, too; equal ones are one.

    Raises ``ValueError`` if two different components are placed under the name of one module.
    """
    platform = VerilogPlatform()
    platform.add_component(name, component)
    modules = _Modules(name, platform)
    texts: dict[str, str] = {}
    compared: Counter[str] = Counter()
    while pending := [
        (module, each)
        for module, placed in platform.components.items()
        for each in placed[compared[module] :]
    ]:
        for module, each in pending:
            compared[module] += 1
            text = modules.convert(each, module)
            if texts.setdefault(module, text) != text:
                raise ValueError(
                    f"module name {module!r} stands for two different components: "
                    f"{platform.components[module][0]!r} and {each!r}; give each configuration a "
                    "name of its own"
                )
    files = [platform.files[file] for file in sorted(platform.files)]
    return "\n".join([*texts.values(), *modules.texts.values(), *files])
