"""Verilog generation: one module per component, repeated components emitted once."""

from __future__ import annotations

import gc
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amaranth.hdl import (
    ClockSignal,
    DomainRenamer,
    EnableInserter,
    Fragment,
    Instance,
    ResetSignal,
    Shape,
    Signal,
    Value,
)
from amaranth.hdl._ast import SignalDict, SignalSet  # these are not exported
from amaranth.hdl._ir import PortDirection
from amaranth.hdl._mem import MemoryInstance
from amaranth.hdl._xfrm import DomainCollector
from amaranth.lib import wiring

from hw.logic.clocking import CLOCK_GATE_CELLS
from hw.logic.shared import Shared, SharingPlatform
from hw.verilog.netlist import netlist_of
from hw.verilog.port_meanings import port_meanings, summary
from hw.verilog.text import KEYWORDS, module_text

__all__ = ["Port", "VerilogPlatform", "flat_ports", "ports_of", "to_verilog"]


@dataclass(frozen=True, kw_only=True)
class Port:
    """One port of a generated module."""

    name: str
    width: int
    direction: str
    """Direction of the port: ``"input"`` or ``"output"``."""


class VerilogPlatform(SharingPlatform):
    """Platform that collects the modules and files that an elaboration refers to.

    Components placed through :class:`~hw.logic.shared.Shared` and Verilog source files
    (:meth:`add_file`) are gathered here, so that each is in the output exactly once.

    Parameters
    ----------
    clock_gate_cell
        Cell of the clock gates, one of :data:`~hw.logic.clocking.CLOCK_GATE_CELLS`.
    prefix
        Prefix of the names of all modules that are placed.

    Examples
    --------
    >>> from hw.logic.delay import Delay
    >>> platform = VerilogPlatform(prefix="mine_")
    >>> platform.add_component("mine_delay", Delay(width=8, cycles=2))
    >>> list(platform.components)
    ['mine_delay']
    """

    def __init__(self, *, clock_gate_cell: str = "model", prefix: str = "") -> None:
        if clock_gate_cell not in CLOCK_GATE_CELLS:
            raise ValueError(
                f"clock_gate_cell must be one of {CLOCK_GATE_CELLS}, got {clock_gate_cell!r}"
            )
        self.clock_gate_cell = clock_gate_cell
        """Cell of the clock gates, one of :data:`~hw.logic.clocking.CLOCK_GATE_CELLS`."""
        self.prefix = prefix
        """Prefix of the names of all modules that are placed."""
        self.components: dict[str, list[wiring.Component]] = {}
        """Components by the name of their module; :func:`to_verilog` checks that all components of
        a name are the same hardware."""
        self.files: dict[str, str] = {}
        self.enabled: set[str] = set()
        """Names of the modules in which every register has an enable, an input ``ce``."""
        self.enable: Signal | None = None
        """Enable of the module being elaborated, if that is among ``enabled``."""

    def place(self, shared: Shared, *, name: str, domain: str, enable: Any) -> Instance:
        enable = self.enable if enable is None else enable
        name = f"{self.prefix}{'' if enable is None else 'enabled_'}{name}"
        if enable is not None:
            self.enabled.add(name)
        self.add_component(name, shared.component)
        connections: dict[str, Any] = {
            "i_clk": ClockSignal(domain),
            "i_rst": ResetSignal(domain),
            **({} if enable is None else {"i_ce": enable}),
        }
        for port, value, flow in flat_ports(shared):
            connections[("i_" if flow is wiring.In else "o_") + port] = value
        return Instance(name, **connections)

    def add_component(self, name: str, component: wiring.Component) -> None:
        """Register ``component`` as Verilog module ``name``."""
        known = self.components.setdefault(name, [])
        if not any(component is other for other in known):
            known.append(component)

    def add_file(self, name: str, content: str) -> None:
        """Register a Verilog source; the same name must always have the same content."""
        if self.files.setdefault(name, content) != content:
            raise ValueError(f"Verilog file {name!r} was added with two different contents")

    def add_path(self, path: Path) -> None:
        """Register the Verilog source at ``path`` under its file name."""
        self.add_file(path.name, path.read_text())


def flat_ports(component: wiring.Component) -> list[tuple[str, Any, wiring.Flow]]:
    """Return (Verilog name, value, flow) of each port; nested members are joined with ``_``.

    A name that is a keyword gets a ``_`` at its end.
    """
    ports = []
    for path, member, value in component.signature.flatten(component):
        name = "_".join(str(part) for part in path)
        ports.append((f"{name}_" if name in KEYWORDS else name, value, member.flow))
    return ports


def ports_of(component: wiring.Component) -> list[Port]:
    """Return the ports of the module :func:`to_verilog` makes, clock and reset first."""
    ports = [Port(name=name, width=1, direction="input") for name in ("clk", "rst")]
    for name, value, flow in flat_ports(component):
        direction = "input" if flow is wiring.In else "output"
        ports.append(Port(name=name, width=Shape.cast(value.shape()).width, direction=direction))
    return ports


class _Modules:
    """Texts of modules, each once.

    A component inside another one is a module of its own, with the ports of its signature; equal
    components share a module.
    """

    def __init__(self, top: str, platform: VerilogPlatform, *, src: bool) -> None:
        self._top = top
        self._platform = platform
        self._src = src
        self._names: dict[str, str] = {}  # by the text without the name
        self._places: Any = SignalDict()  # the component that has a signal inside
        self._driven = SignalSet()
        self.texts: dict[str, str] = {}

    def convert(self, component: wiring.Component, name: str) -> str:
        """Return the text of the module ``name``; modules inside it go to ``texts``."""
        platform = self._platform
        platform.enable = Signal(name="ce") if name in platform.enabled else None
        fragment = Fragment.get(component, platform)
        more: dict[str, Any] = {}
        if platform.enable is not None:
            more["ce"] = platform.enable
            fragment = EnableInserter(platform.enable)(fragment)
        uses = _Uses()
        uses(fragment)
        self._driven = uses.driven
        self._driven.update(more.values())
        return self._text(fragment, component, name, more)

    def _text(
        self, fragment: Any, component: wiring.Component, name: str, more: Mapping[str, Any]
    ) -> str:
        """Return the text of a module; ``more`` are inputs in addition to the component's ports."""
        self._take_out(fragment, {})
        # If Amaranth chose the directions, an output that nothing drives would become an input.
        ports: dict[str, Any] = {
            port: (
                value.as_value() if hasattr(value, "as_value") else value,
                PortDirection.Input if flow is wiring.In else PortDirection.Output,
            )
            for port, value, flow in flat_ports(component)
        }
        if taken := ports.keys() & {"clk", "rst"}:
            raise ValueError(
                f"{component!r} has a member {min(taken)!r}, the name of the port of the clock or "
                "the reset; give it another one"
            )
        outside = {port: (signal, PortDirection.Input) for port, signal in more.items()}
        netlist = netlist_of(fragment, ports | outside, name)
        self._claim(netlist.signals, component, [*more.values()])
        meanings = port_meanings(component)
        return module_text(
            netlist,
            name,
            src=self._src,
            title=f"{type(component).__name__}: {summary(component)}",
            meanings={port: meanings.get(port, "") for port in ports},
        )

    def _claim(self, signals: Iterable[Any], component: Any, outside: Iterable[Any]) -> None:
        """Raise ``ValueError`` if another component has one of the signals inside."""
        shared = SignalSet(outside)
        for _, value, _ in flat_ports(component):
            shared.update(Value.cast(value)._rhs_signals())
        for signal in signals:
            if signal not in shared:
                place = self._places.setdefault(signal, component)
                if place is not component:
                    raise ValueError(
                        f"signal {signal.name!r} of {place!r} is used in {component!r}, too, or "
                        "the other way round: only ports connect components in Verilog"
                    )

    def _take_out(self, fragment: Any, domains: Mapping[str, Any]) -> None:
        """Replace the components in a fragment by instances of modules."""
        domains = {**domains, **fragment.domains}
        for place, (inner, name, location) in enumerate(fragment.subfragments):
            component = _component_of(inner)
            if component is None:
                self._take_out(inner, domains)
                continue
            uses = _Uses()
            uses(inner)
            free = uses.free_domains()
            for domain in free:
                if domain in domains and domains[domain].clk_edge != "pos":
                    raise NotImplementedError(f"{component!r} at the falling edge of {domain!r}")
            if len(free) == 1 and free != ["sync"]:
                inner = DomainRenamer({free[0]: "sync"})(inner)
            more = uses.foreign(self._driven)
            text = self._text(inner, component, _UNNAMED, more)
            connections: dict[str, Any] = {}
            for domain in free:
                prefix = "" if len(free) == 1 or domain == "sync" else f"{domain}_"
                connections[f"i_{prefix}clk"] = ClockSignal(domain)
                connections[f"i_{prefix}rst"] = ResetSignal(domain, allow_reset_less=True)
            for port, signal in more.items():
                connections[f"i_{port}"] = signal
            for port, value, flow in flat_ports(component):
                connections[("i_" if flow is wiring.In else "o_") + port] = value
            instance = Instance(self._named(text, component), src_loc=location, **connections)
            fragment.subfragments[place] = instance, name, location

    def _named(self, text: str, component: wiring.Component) -> str:
        """Return the name of the module with a text: the component's, numbered if it is taken."""
        if text not in self._names:
            words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(component).__name__)
            prefix = self._platform.prefix or f"{self._top}_"
            name = plain = f"{prefix}{words.lower().strip('_')}"
            while name in self.texts or name in self._platform.components:
                name = f"{plain}_{int(name[len(plain) + 1 :] or 1) + 1}"
            self._names[text] = name
            self.texts[name] = text.replace(_UNNAMED, name, 1)
        return self._names[text]


_UNNAMED = "nearmem_module"


def _component_of(fragment: Any) -> wiring.Component | None:
    """Return the component of a fragment that becomes a module of its own, or None."""
    if isinstance(fragment, (Instance, MemoryInstance)):
        return None
    return next((o for o in fragment.origins or () if isinstance(o, wiring.Component)), None)


class _Uses(DomainCollector):
    """Finder of the clock domains of a fragment, and of the signals that it reads and drives."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.driven = SignalSet(), SignalSet()
        self._signals = self.read

    def on_Signal(self, value: Any) -> None:  # noqa: N802 (Amaranth's)
        self._signals.add(value)

    def on_Assign(self, stmt: Any) -> None:  # noqa: N802
        self._signals = self.driven
        self.on_value(stmt.lhs)
        self._signals = self.read
        self.on_value(stmt.rhs)

    def on_fragment(self, fragment: Any) -> None:
        if isinstance(fragment, Instance):
            for value, kind in fragment.ports.values():
                if kind == "o":
                    self.driven.update(value._rhs_signals())
        if isinstance(fragment, MemoryInstance):
            for port in fragment._read_ports:
                self.driven.update(port._data._rhs_signals())
        if (component := _component_of(fragment)) is not None:
            for _, value, _ in flat_ports(component):
                self.driven.update(Value.cast(value)._rhs_signals())
        super().on_fragment(fragment)

    def free_domains(self) -> list[str]:
        """Return the domains that are not defined in the fragment."""
        return sorted(self.used_domains - self.defined_domains)

    def foreign(self, driven: Any) -> dict[str, Any]:
        """Return the signals driven outside the fragment, by name, without ports of components.

        An example is the enable of an ``EnableInserter``.
        """
        outside = (signal for signal in self.read if signal in driven and signal not in self.driven)
        return {signal.name: signal for signal in outside}


@contextmanager
def _collecting_rarely() -> Iterator[None]:
    """Make Python collect garbage rarely.

    Among the millions of objects of netlists it takes a third of the time.
    """
    usual = gc.get_threshold()
    gc.set_threshold(max(usual[0], 100_000), *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


@_collecting_rarely()
def to_verilog(
    component: wiring.Component,
    name: str,
    *,
    src: bool = False,
    clock_gate_cell: str = "model",
    prefix: str = "",
) -> str:
    """Return Verilog of ``component`` as module ``name``, with every module that it needs.

    The module has the ports ``clk`` and ``rst`` (synchronous, active high) of the domain ``sync``
    and one port for each member of the signature. Interfaces are flattened with ``_``: a member
    ``m_axi`` with a member ``awaddr`` becomes ``m_axi_awaddr``. Each component inside it is a
    module, too; equal components share one. With ``src``, wires, registers, instances, assignments
    and branches have attributes ``src``: their location in the source, with paths that begin with
    the package.

    ``clock_gate_cell`` is that of the :class:`VerilogPlatform`: for an FPGA choose the FPGA's.
    ``prefix`` begins the names of all modules but ``name``, for designs that share a project.

    Raises ``ValueError`` if two different components are placed under the name of one module.
    """
    platform = VerilogPlatform(clock_gate_cell=clock_gate_cell, prefix=prefix)
    platform.add_component(name, component)
    modules = _Modules(name, platform, src=src)
    texts: dict[str, str] = {}
    compared: Counter[str] = Counter()
    while pending := [
        (module, placed_component)
        for module, placed in platform.components.items()
        for placed_component in placed[compared[module] :]
    ]:
        for module, placed_component in pending:
            compared[module] += 1
            text = modules.convert(placed_component, module)
            if texts.setdefault(module, text) != text:
                raise ValueError(
                    f"module name {module!r} stands for two different components: "
                    f"{platform.components[module][0]!r} and {placed_component!r}; give each "
                    "configuration a name of its own"
                )
    files = [platform.files[file] for file in sorted(platform.files)]
    return "\n".join([*texts.values(), *modules.texts.values(), *files])
