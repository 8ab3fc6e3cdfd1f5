"""Hand-off packages of a design for FPGA tools, simulators and programmers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hw.pim.bank.bank import PimBank
from hw.pim.pool import PimPool
from hw.verilog.generate import DESIGNS, Machines, check_free_name, generate
from sw_driver.files import replacing

from .boards import memory_top_files, selftest_top_files
from .buses import find_buses
from .ipxact import component_text
from .registers import registers_of
from .selftest import selftest_files
from .templating import TEMPLATES, fill

__all__ = ["package_files", "write_package"]


def package_files(
    design: str, machines: Machines, *, name: str | None = None, src: bool = False
) -> dict[str, bytes]:
    """Return the files of a design's package by path; equal configurations give equal files.

    ``name`` and ``src`` are those of :func:`~hw.verilog.generate.generate`.

    Raises ``ValueError`` for an unknown design, an invalid name, or a self test that cannot be
    made. Raises ``ImportError`` if a writer of a register-map form is not installed.
    """
    text, description = generate(design, machines, name=name, src=src)
    name = str(description["name"])
    component = DESIGNS[design](machines).component
    ports = description["ports"]
    of_pim = isinstance(component, PimBank | PimPool)
    if isinstance(component, PimPool) and machines.pim.has_core_clock:
        ratio = machines.pim.core_clock_ratio
        raise ValueError(f"core_clock_ratio is {ratio}, but a package has one clock: leave it out")
    mhz = machines.pim.clock_mhz if of_pim else machines.module.fabric_mhz
    clock = {"mhz": f"{mhz:g}", "period_ns": f"{1e3 / mhz:.3f}"}
    buses = find_buses(ports)
    registers = registers_of(component, description["configuration"], name)
    selftest = selftest_files(component, description)
    has_memory_port = [bus.is_manager for bus in buses] in ([True, False], [False, True])
    sources = [f"rtl/{name}.v"]
    made: dict[str, str | bytes] = {
        sources[0]: text,
        f"{name}.json": json.dumps(description, indent=2) + "\n",
        f"{name}.f": "".join(f"{source}\n" for source in sources),
        f"{name}.xml": component_text(
            description,
            version=version("nearmem"),
            clock_hz=round(mhz * 1e6),
            buses=buses,
            registers=registers,
            sources=sources,
        ),
        f"constraints/{name}.xdc": fill("design.xdc", name=name, **clock),
        f"constraints/{name}.lpf": fill("design.lpf", name=name, **clock),
    }
    if registers is not None:
        made |= _in("registers", registers.files(name))
    if selftest:
        half_period_ns = f"{500 / mhz:.3f}"
        made |= _in("selftest", selftest)
        made[f"sim/{name}_tb.v"] = fill("tb.v", name=name, half_period_ns=half_period_ns)
        made |= _in("boards", selftest_top_files(name, clock))
    if has_memory_port:
        made |= _in("boards", memory_top_files(name, ports, buses, clock["mhz"]))
    gated = description["clock_gate_cell"] is not None
    if gated:
        made["sim/clock_cells.v"] = fill("clock_cells_sim.v")
        for board in ("ecp5", "xilinx"):
            made[f"boards/clock_cells_{board}.v"] = fill(f"clock_cells_{board}.v")
    made[f"{name}.core"] = _core(name, list(selftest)[1:], has_memory_port, gated)
    made |= {f"tools/{tool.name}": tool.read_bytes() for tool in (TEMPLATES / "tools").iterdir()}
    for path, content in made.items():
        if path.endswith(".v"):
            check_free_name(name, str(content))
    made["README.md"] = _readme(name, made)
    return {
        path: content.encode() if isinstance(content, str) else content
        for path, content in sorted(made.items())
    }


def write_package(
    folder: Path, design: str, machines: Machines, *, name: str | None = None, src: bool = False
) -> list[Path]:
    """Write the :func:`package_files` of a design to ``folder``, completely or not at all.

    Returns the files. Raises ``FileExistsError`` if ``folder`` exists and is not empty: it may
    hold pins that a user has added. Also raises as :func:`package_files`, and ``OSError`` with the
    name of ``folder``.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise FileExistsError(
            f"{str(folder)!r} exists and is not an empty folder: give another, or remove it"
        )
    try:
        with replacing(folder.resolve()) as part:
            part.mkdir(parents=True)
            contents = package_files(design, machines, name=name, src=src)
            for path, content in contents.items():
                file = part / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
                if path.startswith("tools/"):
                    file.chmod(0o755)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from error
    return [folder / path for path in contents]


def _in(folder: str, contents: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{folder}/{name}": content for name, content in contents.items()}


def _core(name: str, vectors: list[str], has_memory_port: bool, gated: bool) -> str:
    values = {
        "name": name,
        "vlnv": f"nearmem:nearmem:{name}:{version('nearmem')}",
        "vectors": "\n".join(
            f"      - selftest/{file}: {{file_type: mem, copyto: {file}}}" for file in vectors
        ),
        **{
            f"cells_{kind}": f", clock_cells_{kind}" if gated else ""
            for kind in ("sim", "ecp5", "xilinx")
        },
        # A project's own targets state whether they need the cells; Vivado has its own.
        "cells_flag": ', "nearmem_clock_cells? (clock_cells_sim)"' if gated else "",
    }
    parts = {
        "filesets": {"clock": gated, "selftest": vectors, "memory": has_memory_port},
        "targets": {"selftest": vectors, "memory": has_memory_port},
    }
    filled = {
        part: "".join(fill(f"{kind}_{part}.core", **values) for kind in kinds if kinds[kind])
        for part, kinds in parts.items()
    }
    return fill("design.core", **values, **filled).rstrip() + "\n"


_ABOUT = {
    "rtl/{name}.v": "the Verilog, with every module that the design needs",
    "{name}.f": "the file list, for tools that take one",
    "{name}.json": "ports with widths and directions, latency, configuration",
    "{name}.core": "for FuseSoC; the targets are below",
    "{name}.xml": "IP-XACT (IEEE 1685-2014): ports, buses, registers",
    "constraints/": "clock and reset of the design as a top, XDC and LPF",
    "registers/": "the register map: SystemRDL, C header, CMSIS-SVD, HTML",
    "selftest/": "Verilog that runs the design and compares, and what it applies and expects",
    "sim/{name}_tb.v": "runs the self test in a simulator; run it where the .hex files are",
    "boards/": "example tops with their constraints",
    "tools/": "for a machine whose tools are PyPI's wheels: put this folder first on PATH",
}


def _readme(name: str, made: Mapping[str, Any]) -> str:
    lines = [
        f"| `{path}` | {about} |"
        for path, about in ((path.format(name=name), about) for path, about in _ABOUT.items())
        if any(file.startswith(path) for file in made)
    ]
    core = str(made[f"{name}.core"])
    targets = [
        f"| `{target}` | {about} |"
        for target, about in re.findall(
            r"^  (\w+):.*\n(?:    <<.*\n)?    description: (.*)$", core, re.MULTILINE
        )
    ]
    return "\n".join(
        [
            f"# Package of {name}\n\n| file | is |\n|---|---|",
            *lines,
            "\n```",
            f"fusesoc --cores-root . run --target lint nearmem:nearmem:{name}",
            "```\n\n| target | does |\n|---|---|",
            *targets,
            "",
        ]
    )
