"""Verilog generation: one module per component, repeated components emitted once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amaranth.back import rtlil
from amaranth.back.verilog import _convert_rtlil_text  # of several modules; not exported
from amaranth.hdl import (
    ClockSignal,
    DomainRenamer,
    Elaboratable,
    EnableInserter,
    Instance,
    Module,
    ResetSignal,
    Shape,
    Signal,
)
from amaranth.hdl._ir import PortDirection  # what `ports` of `convert` takes; not exported
from amaranth.lib import wiring

from hw.clocking import CLOCK_GATE_CELLS

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

    Parameters
    ----------
    clock_gate_cell
        What clock gates are made of, one of :data:`~hw.clocking.CLOCK_GATE_CELLS`.
    """

    def __init__(self, *, clock_gate_cell: str = "model") -> None:
        if clock_gate_cell not in CLOCK_GATE_CELLS:
            raise ValueError(
                f"clock_gate_cell must be one of {CLOCK_GATE_CELLS}, got {clock_gate_cell!r}"
            )
        self.clock_gate_cell = clock_gate_cell
        """See the parameter."""
        self.components: dict[str, list[wiring.Component]] = {}
        """By the name of their module; :func:`to_verilog` sees to it that all of a name are the
        same hardware."""
        self.files: dict[str, str] = {}
        self.enabled: set[str] = set()
        """Names of the modules all registers of which have an enable, an input ``ce``."""
        self.enable: Signal | None = None
        """That of the module that is being elaborated, if it is one of them."""

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
    """(Verilog name, value, flow) of each port; nested members are joined with ``_``."""
    return [
        ("_".join(str(part) for part in path), value, member.flow)
        for path, member, value in component.signature.flatten(component)
    ]


class Shared(wiring.Component):
    """Stands for ``component`` where it is used many times: one Verilog module, many instances.

    It has the members of the component it wraps. All that are placed under one ``name`` must be
    the same hardware, as :func:`to_verilog` checks; the same object takes no time to compare. The
    component may use the domain ``sync`` only; ``domain`` says which domain drives it here.
    ``enable``, if given, holds it while it is low: the module is then another, with an input
    ``ce``, the enable of each register in it and in what it places.

    Outside Verilog generation (no :class:`VerilogPlatform`) it elaborates to the component, which
    can then have one place only: there its signals are its own.
    """

    def __init__(
        self, component: wiring.Component, *, name: str, domain: str = "sync", enable: Any = None
    ) -> None:
        super().__init__(component.signature)
        self._component = component
        self._name = name
        self._domain = domain
        self._enable = enable

    def elaborate(self, platform: Any) -> Elaboratable | Instance:
        if not isinstance(platform, VerilogPlatform):
            m = Module()
            m.submodules.component = self._component
            wiring.connect(m, wiring.flipped(self), self._component)
            held = m if self._enable is None else EnableInserter(self._enable)(m)
            return DomainRenamer(self._domain)(held)
        enable = platform.enable if self._enable is None else self._enable
        name = self._name
        if enable is not None:
            name = f"enabled_{name}"
            platform.enabled.add(name)
        platform.add_component(name, self._component)
        connections: dict[str, Any] = {
            "i_clk": ClockSignal(self._domain),
            "i_rst": ResetSignal(self._domain),
            **({} if enable is None else {"i_ce": enable}),
        }
        for port, value, flow in flat_ports(self):
            connections[("i_" if flow is wiring.In else "o_") + port] = value
        return Instance(name, **connections)


def ports_of(component: wiring.Component) -> list[Port]:
    """The ports of the module :func:`to_verilog` makes of ``component``, clock and reset first."""
    ports = [Port(name=name, width=1, direction="input") for name in ("clk", "rst")]
    for name, value, flow in flat_ports(component):
        direction = "input" if flow is wiring.In else "output"
        ports.append(Port(name=name, width=Shape.cast(value.shape()).width, direction=direction))
    return ports


def _rtlil(component: wiring.Component, name: str, platform: VerilogPlatform) -> str:
    # With the direction left to Amaranth, an output that nothing drives would become an input.
    ports = {
        port_name: (
            value.as_value() if hasattr(value, "as_value") else value,
            PortDirection.Input if flow is wiring.In else PortDirection.Output,
        )
        for port_name, value, flow in flat_ports(component)
    }
    design: Any = component
    platform.enable = None
    if name in platform.enabled:
        platform.enable = ce = Signal(name="ce")
        ports["ce"] = ce, PortDirection.Input
        design = EnableInserter(ce)(component)
    return rtlil.convert(design, name=name, platform=platform, ports=ports, emit_src=False)


def _emit_memory(self: Any, index: int, cell: Any) -> None:
    """As Amaranth's, which takes the initial contents bit by bit: most of a channel's time."""
    mask = (1 << cell.width) - 1
    rows = [f"{row & mask:0{cell.width}b}" for row in reversed(cell.init)]
    contents = f"{cell.width * cell.depth}'{''.join(rows)}"
    self.builder.cell(
        "$meminit_v2",
        ports={"ADDR": self.sigspec(), "DATA": contents, "EN": f"{cell.width}'{'1' * cell.width}"},
        parameters={
            "MEMID": self.memories[index].memid,
            "ABITS": 0,
            "WIDTH": cell.width,
            "WORDS": cell.depth,
            "PRIORITY": 0,
        },
    )


rtlil.ModuleEmitter.emit_memory = _emit_memory


# What Yosys writes is right but not always sized or ranged as a linter wants it.
_HEADER = "".join(
    f"/* verilator lint_off {rule} */\n"
    for rule in ("ASCRANGE", "CASEINCOMPLETE", "CMPCONST", "UNSIGNED", "WIDTHEXPAND", "WIDTHTRUNC")
)


def to_verilog(component: wiring.Component, name: str, *, clock_gate_cell: str = "model") -> str:
    """Verilog of ``component`` as module ``name``, with every module that it needs.

    The module has the ports ``clk`` and ``rst`` (synchronous, active high) of the domain ``sync``
    and one port for each member of the signature; interfaces are flattened with ``_``, so that a
    member ``m_axi`` with a member ``awaddr`` becomes ``m_axi_awaddr``.

    ``clock_gate_cell`` is that of the :class:`VerilogPlatform`: for an FPGA choose the FPGA's.

    Raises ``ValueError`` if two different components are placed under the name of one module.
    """
    platform = VerilogPlatform(clock_gate_cell=clock_gate_cell)
    platform.add_component(name, component)
    texts: dict[str, str] = {}
    compared: Counter[str] = Counter()
    while pending := [
        (module, each)
        for module, placed in platform.components.items()
        for each in placed[compared[module] :]
    ]:
        for module, each in pending:
            compared[module] += 1
            text = _rtlil(each, module, platform)
            if texts.setdefault(module, text) != text:
                raise ValueError(
                    f"module name {module!r} stands for two different components: "
                    f"{platform.components[module][0]!r} and {each!r}; give each configuration a "
                    "name of its own"
                )
    # Yosys takes longer to start than to convert most modules.
    converted = _convert_rtlil_text("\n".join(texts.values()), strip_internal_attrs=True)
    files = [platform.files[file] for file in sorted(platform.files)]
    return "\n".join([_HEADER, converted, *files])
