"""Designs that can be generated as Verilog."""

from __future__ import annotations

import hashlib
import json
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from typing import Any, NamedTuple

from amaranth.lib import wiring

from hw.axdimm.channel import axdimm_channel, channel_controller
from hw.axdimm.config import MODULE_PRESETS, OPTIONS, ModuleConfig, configure
from hw.axdimm.module import Axdimm
from hw.dram.dfi import DfiController, dfi_timing
from hw.dram.presets import part
from hw.float.add import FloatAdd
from hw.float.compare import FloatCompare
from hw.float.div import FloatDiv
from hw.float.div_sqrt import FloatDivSqrt
from hw.float.format import FloatFormat
from hw.float.integer import FloatFromInteger, FloatToInteger
from hw.float.maximum import FloatMaximum
from hw.float.mul import FloatMul
from hw.float.operator import FloatOperator
from hw.float.sign import FloatSign
from hw.float.sqrt import FloatSqrt
from hw.kernel.config import KernelConfig
from hw.kernel.kernel import Kernel
from hw.kernel.unit import RuleUnit
from hw.memory_node.config import MEMORY_NODE_PRESETS, MemoryNodeConfig
from hw.memory_node.link.config import LINK_PRESETS
from hw.memory_node.link.port import LinkPort
from hw.memory_node.node import MemoryNode
from hw.narrow.bf16 import ToBf16
from hw.narrow.codes import CodeSearch, Dequantizer
from hw.narrow.philox import Philox, RandomWords
from hw.narrow.quantizer import Quantizer
from hw.pim.bank.bank import PimBank
from hw.pim.config import PIM_PRESETS, PimConfig
from hw.pim.pool import PimPool
from hw.pim.vault.timing import vault_part
from hw.rules import PAPER_RULES, RULES
from hw.rules.update_rule import UpdateRule
from hw.verilog.text import KEYWORDS
from hw.verilog.writer import ports_of, to_verilog

__all__ = [
    "DESIGNS",
    "WITH_DEPTHS",
    "Design",
    "Machines",
    "check_free_name",
    "check_module_name",
    "generate",
    "usual_name",
]


_VHDL = """
abs access after alias all and architecture array assert assume attribute begin block body buffer
bus case component configuration constant context cover default disconnect downto else elsif end
entity exit fairness file for force function generate generic group guarded if impure in inertial
inout is label library linkage literal loop map mod nand new next nor not null of on open or others
out package parameter port postponed procedure process property protected private pure range record
register reject release rem report restrict return rol ror select sequence severity shared signal
sla sll sra srl strong subtype then to transport type unaffected units until use variable view vmode
vpkg vprop vunit wait when while with work xnor xor
"""

_C = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl concept
const consteval constexpr constinit continue default delete do double else enum explicit export
extern false final float for friend goto if import inline int long main module mutable namespace new
noexcept not not_eq nullptr operator or or_eq override private protected public register requires
restrict return short signed sizeof static struct switch template this throw true try typedef typeid
typename typeof union unsigned using virtual void volatile while xor xor_eq
"""

_RESERVED = {
    "Verilog": KEYWORDS,
    "VHDL": frozenset(_VHDL.split()),
    "C or C++": frozenset(_C.split()),
}
"""Reserved words by language.

No design may have such a name: its modules, C types and files carry it.
"""


class Machines(NamedTuple):
    """Configurations of the designs.

    Examples
    --------
    >>> from hw.axdimm.config import configure
    >>> from hw.pim.config import PIM_PRESETS
    >>> machines = Machines(configure("tiny"), PIM_PRESETS["tiny"], depths={"add": 4})
    >>> text, description = generate("fp32_add", machines)
    >>> description["latency"], description["configuration"]["format"]
    (4, {'exponent_bits': 8, 'fraction_bits': 23, 'subnormals': True})
    """

    module: ModuleConfig
    pim: PimConfig
    node: MemoryNodeConfig = MEMORY_NODE_PRESETS["paper"]
    clock_gate_cell: str = "bufgce"
    """Cell of the designs' clock gates, one of :data:`hw.logic.clocking.CLOCK_GATE_CELLS`."""
    depths: Mapping[str, int] = {}
    """Stages of operators that differ from their default, by operation; for the designs of
    :data:`WITH_DEPTHS`."""


def _operator(kind: type[FloatOperator]) -> Callable[[Machines], Design]:
    def design(machines: Machines) -> Design:
        own = {
            operation: n for operation, n in machines.depths.items() if operation == kind.operation
        }
        component = kind(format=machines.module.kernel.format, stages=own.get(kind.operation))
        options = _arithmetic(machines._replace(depths=own))
        return Design(component, {"format": asdict(component.format)}, options)

    return design


def _unit(rule: UpdateRule) -> Callable[[Machines], Design]:
    def design(machines: Machines) -> Design:
        unit = RuleUnit(rule, format=machines.module.kernel.format, depths=machines.depths)
        described = {"rule": rule.signature, "format": asdict(unit.format)}
        return Design(unit, described, _arithmetic(machines))

    return design


def _arithmetic(machines: Machines) -> list[str]:
    """Return the options of ``nearmem verilog`` on which operators and units depend."""
    subnormals = machines.module.kernel.subnormals
    return [
        *([] if subnormals == "kept" else [f"--set subnormals={subnormals}"]),
        *(f"--depth {operation}={stages}" for operation, stages in machines.depths.items()),
    ]


def _changes(config: ModuleConfig) -> list[str]:
    """Return the shortest list of ``nearmem verilog`` options that gives a configuration."""

    def values(config: ModuleConfig) -> dict[str, Any]:
        dram = config.part
        places = (config, config.controller, dram, dram.timing, dram.geometry)
        options = {
            name: next(getattr(place, name) for place in places if hasattr(place, name))
            for name in OPTIONS
            if name != "capacity_bytes"  # follows from the geometry
        }
        return options | {"part": dram.base, "rules": ",".join(config.rules)}

    wanted = values(config)
    follow = part(wanted["part"]).timing_at(wanted["tck_ps"], allow_nonstandard=True)
    candidates: list[list[str]] = []
    for preset, base in MODULE_PRESETS.items():
        usual = values(base)
        if wanted["part"] != usual["part"]:
            usual |= values(configure(preset, part=wanted["part"])) | {"part": usual["part"]}
        usual |= follow | {"tck_ps": usual["tck_ps"]}
        changed = [
            f"--set {name}={str(value).lower()}"
            for name, value in wanted.items()
            if value != usual[name]
        ]
        candidates.append([*([f"--config {preset}"] if candidates else []), *changed])
    return min(candidates, key=len)


def _pim_changes(config: PimConfig) -> list[str] | None:
    """Return the ``nearmem verilog`` options of a PIM's configuration; None without a preset."""
    others = [] if config.clocking == "gated" else [f"--clocking {config.clocking}"]
    config = replace(config, clocking="gated")
    if config.cores and config.rings == config.cores + 1:
        others.append(f"--cores {config.cores}")
        if config.has_core_clock:
            others.append(f"--core-clock-ratio {config.core_clock_ratio}")
        config = replace(config, cores=0, rings=PimConfig().rings, core_clock_ratio=1)
    preset = next((name for name, known in PIM_PRESETS.items() if known == config), None)
    return (
        None if preset is None else [*([f"--pim {preset}"] if preset != "paper" else []), *others]
    )


def _part(
    made: Callable[[FloatFormat, int], wiring.Component],
    *depends: str,
    tables: Sequence[str] = (),
) -> Callable[[Machines], Design]:
    """Return a design function for a component that ``made`` builds of a kernel's format and lanes.

    ``depends`` names which of ``format`` and ``lanes`` the component depends on. ``tables`` are the
    tables of codes that its port ``select`` chooses from.
    """

    def design(machines: Machines) -> Design:
        kernel = machines.module.kernel
        described: dict[str, Any] = {"tables": list(tables)} if tables else {}
        options: list[str] = []
        if "format" in depends:
            described["format"] = asdict(kernel.format)
            options += _arithmetic(machines._replace(depths={}))
        if "lanes" in depends:
            described["lanes"] = kernel.lanes
            options += [] if kernel.lanes == KernelConfig.lanes else [f"--lanes {kernel.lanes}"]
        return Design(made(kernel.format, kernel.lanes), described, options)

    return design


def _of_codes(sign: str) -> dict[str, Callable[[Machines], Design]]:
    """Return the designs that convert between states and their codes, by name."""
    tables = f"dynamic_{sign}", f"linear_{sign}"

    def dequantizer(form: FloatFormat, _: int) -> Dequantizer:
        return Dequantizer(tables=tables, format=form)

    def quantizer(form: FloatFormat, lanes: int) -> Quantizer:
        return Quantizer(lanes=lanes, tables=tables, format=form)

    return {
        f"dequantizer_{sign}": _part(dequantizer, "format", tables=tables),
        f"code_search_{sign}": _part(lambda _, __: CodeSearch(tables=tables), tables=tables),
        f"quantizer_{sign}": _part(quantizer, "format", "lanes", tables=tables),
    }


def _kernel(machines: Machines) -> Design:
    config = machines.module.kernel
    return Design(Kernel(config), asdict(config), _changes(machines.module))


def _papers_kernel(machines: Machines) -> Design:
    module = replace(machines.module, rules=PAPER_RULES)
    return Design(Kernel(module.kernel), asdict(module.kernel), _changes(module))


def _controller(machines: Machines) -> Design:
    config = machines.module
    controller = channel_controller(config, DfiController, reserve=True)
    return Design(
        controller,
        {
            "part": asdict(config.part),
            **asdict(controller.config),
            "dfi": dfi_timing(config.part.timing),
        },
        _changes(config),
    )


def _channel(machines: Machines) -> Design:
    return Design(
        axdimm_channel(machines.module), _described(machines.module), _changes(machines.module)
    )


def _module(machines: Machines) -> Design:
    return Design(Axdimm(machines.module), _described(machines.module), _changes(machines.module))


def _described(config: ModuleConfig) -> dict[str, Any]:
    values = config.describe()
    if config.memory == "ddr4":
        return {**values, "dfi": dfi_timing(config.part.timing)}
    del values["controller"]
    return values


def _bank(machines: Machines) -> Design:
    config = machines.pim
    # The largest bank: a corner's.
    units = {
        "multipliers": config.placement.multipliers[0],
        "adders": config.placement.adders[0],
    }
    return Design(PimBank(config, **units), {**asdict(config), **units}, _pim_changes(config))


def _pool(machines: Machines) -> Design:
    config, part = machines.pim, vault_part("hmc2")
    described = {**asdict(config), "part": asdict(part)}
    return Design(PimPool(config, part), described, _pim_changes(config))


def _link_port(_: Machines) -> Design:
    config = LINK_PRESETS["full"]
    return Design(LinkPort(config), asdict(config))


def _memory_node(machines: Machines) -> Design:
    config = machines.node
    preset = next((name for name, known in MEMORY_NODE_PRESETS.items() if known == config), None)
    options = None if preset is None else [f"--node {preset}"] if preset != "paper" else []
    described = {**asdict(config), "dfi": dfi_timing(config.part.timing)}
    return Design(MemoryNode(config, DfiController), described, options)


class Design(NamedTuple):
    """Component and its configuration as plain values."""

    component: wiring.Component
    configuration: dict[str, Any]
    options: Sequence[str] | None = ()
    """Options of ``nearmem verilog`` that make the design, or None if no options do."""


WITH_DEPTHS: dict[str, Callable[[Machines], Design]] = {
    "fp32_add": _operator(FloatAdd),
    "fp32_mul": _operator(FloatMul),
    "fp32_div": _operator(FloatDiv),
    "fp32_sqrt": _operator(FloatSqrt),
    "fp32_sign": _operator(FloatSign),
    "fp32_maximum": _operator(FloatMaximum),
    "fp32_compare": _operator(FloatCompare),
    "fp32_from_integer": _operator(FloatFromInteger),
    "fp32_to_integer": _operator(FloatToInteger),
    **{f"{name}_unit": _unit(rule) for name, rule in RULES.items()},
}
"""Designs of operators and functional units, by name."""

DESIGNS: dict[str, Callable[[Machines], Design]] = {
    **WITH_DEPTHS,
    "fp32_div_sqrt": _part(lambda _, __: FloatDivSqrt()),
    "fp32_to_bf16": _part(lambda _, __: ToBf16()),
    "philox4x32_10": _part(lambda _, __: Philox()),
    "random_words": _part(lambda _, lanes: RandomWords(lanes=lanes), "lanes"),
    **_of_codes("signed"),
    **_of_codes("unsigned"),
    "_".join((*PAPER_RULES, "kernel")): _papers_kernel,
    "kernel": _kernel,
    "ddr4_controller": _controller,
    "axdimm_channel": _channel,
    "axdimm": _module,
    "pim_bank": _bank,
    "pim_pool": _pool,
    "link_port": _link_port,
    "memory_node": _memory_node,
}
"""All designs, by name."""


def generate(
    design: str, machines: Machines, *, name: str | None = None, src: bool = False
) -> tuple[str, dict[str, Any]]:
    """Return the Verilog of a design, and a description of it for tools.

    Equal configurations give equal text. The top module is called ``name``. The names of all other
    modules begin with it and ``__``, so that designs with different names can share a project. The
    default name is that of the design, followed by the settings that are not defaults. ``src`` is
    that of :func:`~hw.verilog.writer.to_verilog`.

    The description has ``name`` and ``design``, ``clock`` and ``reset``, ``latency`` (clock cycles
    from ``i_valid`` to ``o_valid``, or None without such a pair), ``ports`` (name, width,
    direction; with clock and reset), ``clock_gate_cell`` (cell of the clock gates, or None without
    any) and ``configuration``.

    Raises ``ValueError`` for an unknown design and for an invalid name.
    """
    if design not in DESIGNS:
        raise ValueError(f"no design {design!r}; known: {', '.join(DESIGNS)}")
    if name is not None:
        check_module_name(name)
    component, configuration, options = DESIGNS[design](machines)
    cell = machines.clock_gate_cell
    gated = configuration.get("clocking") == "gated"
    more = [
        *([f"--cell {cell}"] if gated and cell != "bufgce" else []),
        *(["--src"] if src else []),
    ]
    options = None if options is None else [*options, *more]
    name_options = [json.dumps(configuration), *more] if options is None else options
    usual = usual_name(design, name_options)
    if options is not None and name not in (None, usual):
        options = [*options, f"--name {name}"]
    name = name or usual
    text = to_verilog(component, name, src=src, clock_gate_cell=cell, prefix=f"{name}__")
    check_free_name(name, text)
    description = {
        "name": name,
        "design": design,
        "clock": "clk",
        "reset": "rst",
        "latency": getattr(component, "latency", None),
        "ports": [asdict(port) for port in ports_of(component)],
        "clock_gate_cell": cell if gated else None,
        "configuration": configuration,
    }
    notes = [_CLOCK_GATE_NOTE.format(cell=cell, what=_CLOCK_GATES[cell])] if gated else []
    if any(port["name"] == "core_clk" for port in description["ports"]):
        notes.append(_CORE_CLOCK_NOTE.format(ratio=configuration["core_clock_ratio"]))
    return _header(design, name, configuration, options, notes) + text, description


def check_module_name(name: str) -> None:
    """Raise ``ValueError`` unless ``name`` can begin names of modules, files, C types and macros.

    A name in that role must not be a reserved word.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or len(name) > 64:
        raise ValueError(
            f"the name is {name!r}: expected lower-case letters, digits and single underscores, 64 "
            "at most, with a letter first and no underscore last"
        )
    for language, words in _RESERVED.items():
        if name in words:
            raise ValueError(f"the name is {name!r}, a word of {language}: give another")


def check_free_name(name: str, text: str) -> None:
    """Raise ``ValueError`` if a Verilog text has ``name`` for more than a module or its instance.

    Names that differ only in case count as the same, as in VHDL.
    """
    code = re.sub(r'//[^\n]*|"[^"\n]*"', "", text)
    if len(re.findall(rf"\b{name}\b", code, re.IGNORECASE)) > 1:
        raise ValueError(
            f"the name is {name!r}, as is that of a port, signal or instance within: give another"
        )


def usual_name(design: str, options: Sequence[str]) -> str:
    """Return the name of a design made with ``options``; other options give another name."""
    settings = re.sub(r"--(set|config|pim|node) ", "", " ".join(options))
    words = re.findall(r"[a-z0-9]+", settings)
    exact = re.fullmatch(r"[a-z0-9_= -]*", settings) is not None
    short = len(settings) <= 48
    digest = hashlib.sha256("\n".join(options).encode()).hexdigest()[:8]
    return "_".join([design, *(words if short else []), *([] if exact and short else [digest])])


_FOR_SIMULATORS = "; for a simulator that does not know it, write with --cell model"

_CLOCK_GATES = {
    "model": "a latch and an AND gate, for simulation and not for an FPGA",
    "bufgce": f"BUFGCE of AMD's UltraScale and UltraScale+{_FOR_SIMULATORS}",
    "dcca": f"DCCA of Lattice's ECP5{_FOR_SIMULATORS}",
}

_CLOCK_GATE_NOTE = 'The clock gates are of the cell "{cell}": {what}.'

_CORE_CLOCK_NOTE = (
    "core_clk is {ratio} times as fast as clk; a rising edge of clk is one of it, too."
)


def _header(
    design: str,
    name: str,
    configuration: dict[str, Any],
    options: Sequence[str] | None,
    notes: Sequence[str],
) -> str:
    lines = [
        f"{name}, with every module that it needs; their names begin with {name}__.",
        "",
        "SPDX-License-Identifier: Apache-2.0",
        f"Generated by Nearmem {version('nearmem')}" + (", by" if options is not None else "."),
    ]
    if options is not None:
        lines.append(f"  {' '.join(['nearmem verilog', design, *options])}")
    lines += [
        "",
        "All ports belong to the clock clk; rst is synchronous to it and active high.",
        *notes,
        "",
        "Made for:",
    ]
    for key, value in configuration.items():
        text = value if isinstance(value, str) else json.dumps(value)
        lines += textwrap.wrap(
            f"{key}: {text}", 95, initial_indent="  ", subsequent_indent="    ",
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
    return "".join(f"// {line}".rstrip() + "\n" for line in lines) + "\n"
